"""Prefix caching and block allocation for requests (vLLM v1's KV cache manager).

A block becomes visible to lookups, and to the event stream, when the pass that completes it is
scheduled, so later requests of the same pass can hit it. Events name parents before children and
a content once, however many blocks hold it. A failed allocation leaves nothing behind.
"""

from collections.abc import Sequence

from mocker_protocol.block_hash import BlockHash, hash_blocks
from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvCacheEvent
from mocker_worker.engine.block_pool import BlockContent, BlockPool
from mocker_worker.engine.cached_chains import chains
from mocker_worker.engine.request import Request


class KvCache:
    """The KV cache of one data-parallel rank."""

    def __init__(self, args: EngineArgs) -> None:
        self._block_size = args.block_size
        self._caching = args.enable_prefix_caching
        self._publishing = args.publishes_kv_events
        self._pool = BlockPool(args.num_gpu_blocks)
        self._events: list[KvCacheEvent] = []

    @property
    def usage_ratio(self) -> float:
        """Share of the blocks that requests hold, 0..1; cached content that waits is not usage."""
        return self._pool.num_held / self._pool.num_blocks

    def hash_prompt(self, request: Request) -> None:
        """Hash a new request's full prompt blocks, once for all its life."""
        if self._caching:
            request.block_hashes = list(hash_blocks(request.token_ids, self._block_size))

    def lookup(self, request: Request) -> list[int]:
        """Return the cached blocks that the request's known tokens start with.

        The block of the last known token is never among them: a pass must compute something.
        """
        blocks: list[int] = []
        usable = (request.num_tokens - 1) // self._block_size
        for block_hash in request.block_hashes[:usable]:
            block = self._pool.lookup(block_hash.sequence)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def fits(self, request: Request, cached: Sequence[int]) -> bool:
        """Whether all known tokens fit now, not only those of the first chunk."""
        held = sum(not self._pool.is_idle(block) for block in cached)
        return self._blocks_for(request.num_tokens) - held <= self._pool.num_free

    def admit(self, request: Request, cached: Sequence[int], num_tokens: int) -> None:
        """Allocate the first `num_tokens` tokens of a request that `fits`, on top of `cached`."""
        for block in cached:
            self._pool.hold(block)
        request.block_ids = list(cached)
        request.num_registered_blocks = len(cached)
        self._take(request, self._blocks_for(num_tokens) - len(cached))
        self._register(request, num_tokens)

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Extend the allocation to `num_tokens`; False, and nothing changes, if blocks lack."""
        num_full, partial = divmod(num_tokens, self._block_size)
        missing = num_full + (partial > 0) - len(request.block_ids)
        if missing > 0:
            if missing > self._pool.num_free:
                return False
            self._take(request, missing)
        if num_full > request.num_registered_blocks:
            self._register(request, num_tokens)
        return True

    def free(self, request: Request) -> None:
        """Take the request off its blocks; what they hold stays cached until it is evicted."""
        self._pool.release(request.block_ids)
        request.block_ids = []
        request.num_registered_blocks = 0

    def clear(self) -> bool:
        """Forget everything cached; False, and nothing changes, while requests hold blocks."""
        if self._pool.num_held:
            return False
        self._pool.clear()
        self._publish(AllBlocksCleared())
        return True

    def take_events(self) -> list[KvCacheEvent]:
        """Return the events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def cached_chains(self) -> list[BlockStored]:
        """Return what is cached as the events that would build it, parents first."""
        return chains(self._pool.contents())

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _take(self, request: Request, count: int) -> None:
        blocks, evicted = self._pool.take(count)
        request.block_ids += blocks
        if evicted:
            self._publish(BlockRemoved(tuple(evicted)))

    def _register(self, request: Request, num_tokens: int) -> None:
        """Make the blocks known that are full once `num_tokens` tokens are computed."""
        if not self._caching:
            return
        start, end = request.num_registered_blocks, num_tokens // self._block_size
        self._hash_generated(request, end)
        hashes = request.block_hashes
        parent = hashes[start - 1].sequence if start else None
        run_parent, run = parent, list[BlockHash]()
        for index in range(start, end):
            block_hash = hashes[index]
            is_new = self._pool.fill(request.block_ids[index], BlockContent(block_hash, parent))
            if is_new:
                run.append(block_hash)
            else:
                self._publish_run(run_parent, run)
                run_parent, run = block_hash.sequence, []
            parent = block_hash.sequence
        self._publish_run(run_parent, run)
        request.num_registered_blocks = end

    def _hash_generated(self, request: Request, num_blocks: int) -> None:
        hashes = request.block_hashes
        if len(hashes) < num_blocks:
            tokens = request.token_ids[len(hashes) * self._block_size :]
            parent = hashes[-1].sequence if hashes else None
            hashes += hash_blocks(tokens, self._block_size, parent)

    def _publish_run(self, parent: int | None, run: list[BlockHash]) -> None:
        if run:
            self._publish(BlockStored(parent, tuple(run)))

    def _publish(self, event: KvCacheEvent) -> None:
        if self._publishing:
            self._events.append(event)
