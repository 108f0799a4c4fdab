"""The KV cache's blocks as a tree of runs: who holds them, what they contain, which one goes next.

A run is a stretch of full blocks that always had the same holders, hung below the run of the
blocks before it, so a block's identity is its key and its path. Holding, letting go and evicting
cost the same however long a run is. A run is *held* (by one request or more) or *idle*; idle
blocks are evicted only when no blank ones are left, least recently used first and tails before
heads. A content is in the tree once; who computes it again while others hold it has a *twin* of
their blocks, which becomes blank when its owner leaves, or replaces theirs when they leave first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from mocker_protocol.block_hash import BlockHash

BlockKey: TypeAlias = BlockHash | int
"""What a full block holds. A hash where contents are published, any integer where they are not."""


class Run:
    """Consecutive full blocks with the same holders."""

    __slots__ = ("children", "holders", "keys", "parent", "token_ids", "twins")

    def __init__(
        self,
        keys: list[BlockKey],
        parent: "Run | None",
        holders: int,
        token_ids: "array[int] | None" = None,
    ) -> None:
        self.keys = keys
        self.token_ids = token_ids
        """Of all blocks, one after the other, in a pool that keeps them."""
        self.parent = parent
        self.holders = holders
        self.children: dict[BlockKey, Run] = {}
        """By the first key."""
        self.twins: list[object] = []
        """Holders that have blocks of their own for this content; at least one other has none."""


@dataclass(slots=True)
class CachedPrefix:
    """The known blocks that some keys start with; valid until the pool changes."""

    run: Run
    """The deepest run that matches."""
    length: int
    """Blocks of `run` that match."""
    num_blocks: int
    num_idle: int
    """How many of the blocks nobody holds."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Blocks whose content became known."""

    parent: BlockKey | None
    keys: list[BlockKey]
    token_ids: "array[int] | None"
    """Of all blocks, one after the other, in a pool that keeps them."""


class BlockPool:
    """Fixed number of blocks. Blocks without a known content are only counted."""

    def __init__(self, num_blocks: int, *, tokens_per_block: int = 0) -> None:
        """Make an empty pool.

        Args:
            num_blocks: All that can be held or cached.
            tokens_per_block: Of the tokens that are kept with each block; 0 keeps none.
        """
        self.num_blocks = num_blocks
        self._tokens_per_block = tokens_per_block
        self.num_held = 0
        """Blocks that requests hold."""
        self._num_idle = 0
        self._idle: OrderedDict[Run, None] = OrderedDict()
        self.root = Run([], None, 1)
        """The run before every first block: empty, and never idle."""

    @property
    def num_free(self) -> int:
        """Blocks that could be handed out, idle ones included."""
        return self.num_blocks - self.num_held

    @property
    def num_cached(self) -> int:
        """Blocks that a lookup can hit."""
        return sum(len(run.keys) for run in self._runs())

    def lookup(self, keys: list[BlockKey], limit: int) -> CachedPrefix:
        """Return the longest known prefix of `keys`, of `limit` blocks at most."""
        run, length, matched, idle = self.root, 0, 0, 0
        while matched < limit:
            child = run.children.get(keys[matched])
            if child is None:
                break
            run, length = child, _common_length(child.keys, keys, matched, limit)
            matched += length
            if not child.holders:
                idle += length
            if length < len(child.keys):
                break
        return CachedPrefix(run, length, matched, idle)

    def hold(self, prefix: CachedPrefix) -> Run:
        """Add a holder to the blocks of a prefix; returns its last run."""
        run = prefix.run
        if prefix.length < len(run.keys):
            run = self._split(run, prefix.length)
        step: Run | None = run
        while step is not None:
            self._add_holder(step)
            step = step.parent
        return run

    def take(self, count: int) -> list[BlockKey]:
        """Hand out `count` blocks of unknown content, at most `num_free`.

        Returns:
            The contents that left the pool for them, children before parents.
        """
        lacking = count - (self.num_blocks - self.num_held - self._num_idle)
        self.num_held += count
        return self._evict(lacking) if lacking > 0 else []

    def fill(
        self,
        run: Run,
        keys: list[BlockKey],
        holder: object,
        token_ids: "array[int] | None" = None,
    ) -> tuple[Run, StoredRun | None]:
        """Tell what taken blocks hold that follow `run`, the last run of their only holder.

        Args:
            run: Where the holder's known contents end.
            keys: The contents that follow.
            holder: Whose blocks they are.
            token_ids: Those of the same blocks, if the pool keeps them.

        Returns:
            The holder's last run now, and the contents that were not known before: a tail.
        """
        start = 0
        while start < len(keys):
            child = run.children.get(keys[start])
            if child is None:
                new = keys[start:]
                if token_ids is not None:
                    token_ids = token_ids[start * self._tokens_per_block :]
                stored = StoredRun(run.keys[-1] if run.keys else None, new, token_ids)
                return self._append(run, new, token_ids), stored
            length = _common_length(child.keys, keys, start, len(keys))
            run = child if length == len(child.keys) else self._split(child, length)
            if run.holders:
                run.twins.append(holder)
            else:
                self.num_held -= length
            self._add_holder(run)
            start += length
        return run, None

    def release(self, run: Run, num_blank: int, holder: object) -> None:
        """Take a holder off a path, and `num_blank` blocks of unknown content back."""
        self.num_held -= num_blank
        step: Run | None = run
        while step is not None:
            step.holders -= 1
            if step.twins:
                self._drop_twin(step, holder)
            elif not step.holders:
                self._idle[step] = None
                self._num_idle += len(step.keys)
                self.num_held -= len(step.keys)
            step = step.parent

    def clear(self) -> None:
        """Forget every content; legal only while no block is held."""
        if self.num_held:
            raise RuntimeError("the block pool cannot be cleared while requests hold blocks")
        self._idle.clear()
        self._num_idle = 0
        self.root.children.clear()

    def contents(self) -> Iterator[StoredRun]:
        """Yield what a lookup can hit, parents before children."""
        for run in self._runs():
            parent = run.parent
            last = parent.keys[-1] if parent and parent.keys else None
            yield StoredRun(last, list(run.keys), run.token_ids and run.token_ids[:])

    def _runs(self) -> Iterator[Run]:
        pending = list(self.root.children.values())
        while pending:
            run = pending.pop()
            yield run
            pending += run.children.values()

    def _add_holder(self, run: Run) -> None:
        if not run.holders:
            del self._idle[run]
            self._num_idle -= len(run.keys)
            self.num_held += len(run.keys)
        run.holders += 1

    def _split(self, run: Run, length: int) -> Run:
        """Cut a run in two and return the head.

        The tail keeps the identity, so that holders still name their last block by it. An idle
        head joins the queue as the youngest: it is about to be held.
        """
        parent = run.parent
        assert parent is not None, "the root has no blocks to cut"
        head = Run(run.keys[:length], parent, run.holders)
        head.twins = list(run.twins)
        del run.keys[:length]
        if run.token_ids is not None:
            cut = length * self._tokens_per_block
            head.token_ids = run.token_ids[:cut]
            del run.token_ids[:cut]
        parent.children[head.keys[0]] = head
        head.children[run.keys[0]] = run
        run.parent = head
        if not head.holders:
            self._idle[head] = None
        return head

    def _drop_twin(self, run: Run, holder: object) -> None:
        """Let a holder go from a content that exists more than once."""
        if holder in run.twins:
            run.twins.remove(holder)
        elif run.holders == len(run.twins):
            del run.twins[0]
        else:
            return
        self.num_held -= len(run.keys)

    def _append(self, run: Run, keys: list[BlockKey], token_ids: "array[int] | None") -> Run:
        if run.holders == 1 and not run.children and run is not self.root:
            run.keys += keys
            if run.token_ids is not None and token_ids is not None:
                run.token_ids += token_ids
            return run
        child = Run(keys, run, 1, token_ids and token_ids[:])
        run.children[keys[0]] = child
        return child

    def _evict(self, count: int) -> list[BlockKey]:
        evicted: list[BlockKey] = []
        self._num_idle -= count
        while count:
            run = next(iter(self._idle))
            keys = run.keys
            if len(keys) <= count:
                del self._idle[run]
                assert run.parent is not None, "the root is never idle"
                del run.parent.children[keys[0]]
            gone = keys[-count:]
            del keys[-count:]
            if run.token_ids is not None:
                del run.token_ids[len(keys) * self._tokens_per_block :]
            count -= len(gone)
            gone.reverse()
            evicted += gone
        return evicted


def _common_length(run: list[BlockKey], keys: list[BlockKey], start: int, limit: int) -> int:
    """Return how many of a run's blocks `keys[start:limit]` begins with."""
    most = min(len(run), limit - start)
    wanted = keys[start : start + most]
    if (run if most == len(run) else run[:most]) == wanted:
        return most
    return next(i for i, key in enumerate(wanted) if key != run[i])
