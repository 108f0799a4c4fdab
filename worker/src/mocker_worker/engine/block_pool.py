"""The KV cache's blocks: who holds them, what they contain, and which one to give up next.

A block is *held* (by one request or more), *idle* (held by none, content still usable) or *blank*.
Blank blocks are handed out first, then idle ones, least recently used first. Only held blocks may
share a content: when the first of them is let go while a twin lives, it becomes blank, so the pool
never keeps two idle copies. Policy (what to look up, when to publish) is `kv_cache`'s.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mocker_protocol.block_hash import BlockHash


@dataclass(frozen=True, slots=True)
class BlockContent:
    """What a full block holds, and the sequence hash of the block before it."""

    block_hash: BlockHash
    parent: int | None


class BlockPool:
    """Fixed number of blocks, named 0..num_blocks-1. Every operation is O(1) per block."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders: list[int] = []
        """Per block that was ever used; the others are blank and unborn."""
        self._content: list[BlockContent | None] = []
        self._blank: list[int] = []
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._block_with: dict[int, int] = {}
        """Sequence hash to the block to hit; a held one wherever one is held."""
        self._twins: dict[int, list[int]] = {}
        """Sequence hash to further held blocks of the same content."""

    @property
    def num_held(self) -> int:
        """Blocks that requests hold."""
        return len(self._holders) - len(self._blank) - len(self._idle)

    @property
    def num_free(self) -> int:
        """Blocks that could be handed out, idle ones included."""
        return self.num_blocks - self.num_held

    @property
    def num_cached(self) -> int:
        """Distinct contents that a lookup can hit."""
        return len(self._block_with)

    def lookup(self, sequence_hash: int) -> int | None:
        """Return a block with this content, or None."""
        return self._block_with.get(sequence_hash)

    def is_idle(self, block: int) -> bool:
        """Whether the block is usable content that nobody holds."""
        return block in self._idle

    def hold(self, block: int) -> None:
        """Add a holder to a block that `lookup` returned."""
        self._idle.pop(block, None)
        self._holders[block] += 1

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """Hand out blocks with unknown content, each with one holder.

        Args:
            count: At most `num_free`.

        Returns:
            The blocks, and the sequence hashes of contents that left the pool for them.
        """
        blocks: list[int] = []
        evicted: list[int] = []
        for _ in range(count):
            if self._blank:
                block = self._blank.pop()
            elif len(self._holders) < self.num_blocks:
                block = self._new_block()
            else:
                block, _ = self._idle.popitem(last=False)
                evicted.append(self._erase(block))
            self._holders[block] = 1
            blocks.append(block)
        return blocks, evicted

    def fill(self, block: int, content: BlockContent) -> bool:
        """Make a held block's content known; True if the pool did not have that content."""
        sequence = content.block_hash.sequence
        self._content[block] = content
        twin = self._block_with.get(sequence)
        if twin is None:
            self._block_with[sequence] = block
            return True
        if twin in self._idle:
            del self._idle[twin]
            self._make_blank(twin)
            self._block_with[sequence] = block
        else:
            self._twins.setdefault(sequence, []).append(block)
        return False

    def release(self, blocks: Sequence[int]) -> None:
        """Take one holder off each block, the last one first, so that tails are evicted first."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._let_go(block)

    def clear(self) -> None:
        """Make every block blank; legal only while none is held."""
        if self.num_held:
            raise RuntimeError("the block pool cannot be cleared while requests hold blocks")
        self._holders.clear()
        self._content.clear()
        self._blank.clear()
        self._idle.clear()
        self._block_with.clear()

    def contents(self) -> Iterator[BlockContent]:
        """Yield what a lookup can hit, in no particular order."""
        for block in self._block_with.values():
            content = self._content[block]
            if content is not None:
                yield content

    def _new_block(self) -> int:
        self._holders.append(0)
        self._content.append(None)
        return len(self._holders) - 1

    def _let_go(self, block: int) -> None:
        content = self._content[block]
        if content is None:
            self._blank.append(block)
        elif twins := self._twins.get(content.block_hash.sequence):
            self._drop_twin(block, content.block_hash.sequence, twins)
        else:
            self._idle[block] = None

    def _drop_twin(self, block: int, sequence: int, twins: list[int]) -> None:
        if self._block_with[sequence] == block:
            self._block_with[sequence] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[sequence]
        self._make_blank(block)

    def _make_blank(self, block: int) -> None:
        self._content[block] = None
        self._blank.append(block)

    def _erase(self, block: int) -> int:
        content = self._content[block]
        assert content is not None, "an idle block has content"
        self._content[block] = None
        del self._block_with[content.block_hash.sequence]
        return content.block_hash.sequence
