"""Prefix caching and block allocation for requests (vLLM v1's KV cache manager).

A block becomes visible to lookups, and to the event stream, when the pass that completes it is
scheduled, so later requests of the same pass can hit it. Events name parents before children and
a content once, however many blocks hold it. A failed allocation leaves nothing behind.
"""

from collections.abc import Collection
from typing import cast

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvCacheEvent
from mocker_worker.engine.block_pool import BlockKey, BlockPool, CachedPrefix, StoredRun
from mocker_worker.engine.hashing import chain_factory
from mocker_worker.engine.request import Request


class KvCache:
    """The KV cache of one data-parallel rank."""

    def __init__(self, args: EngineArgs) -> None:
        self._block_size = args.block_size
        self._caching = args.enable_prefix_caching
        self._publishing = args.publishes_kv_events
        self._new_chain = chain_factory(args)
        self._pool = BlockPool(
            args.num_gpu_blocks, tokens_per_block=args.block_size if self._publishing else 0
        )
        self._salts: dict[BlockKey, str] = {}
        """Of the cached prompts that have one, by their first block."""
        self._nothing = CachedPrefix(self._pool.root, 0, 0, 0)
        self._events: list[KvCacheEvent] = []

    @property
    def usage_ratio(self) -> float:
        """Share of the blocks that requests hold, 0..1; cached content that waits is not usage."""
        return self._pool.num_held / self._pool.num_blocks

    @property
    def num_held_blocks(self) -> int:
        """Blocks that requests hold."""
        return self._pool.num_held

    @property
    def num_free_blocks(self) -> int:
        """Blocks that could be allocated, cached ones that nobody holds included."""
        return self._pool.num_free

    def lookup(self, request: Request) -> CachedPrefix:
        """Return the cached blocks that the request's known tokens start with.

        The block of the last known token is never among them: a pass must compute something.
        """
        if not self._caching:
            return self._nothing
        usable = (request.num_tokens - 1) // self._block_size
        return self._pool.lookup(request.keys_of(usable, self._new_chain), usable)

    def count_cached(self, keys: list[BlockKey]) -> int:
        """Return how many blocks of a prompt with these keys are cached."""
        return self._pool.lookup(keys, len(keys)).num_blocks

    def fits(self, request: Request, cached: CachedPrefix) -> bool:
        """Whether all known tokens fit now, not only those of the first chunk."""
        held = cached.num_blocks - cached.num_idle
        return self._blocks_for(request.num_tokens) - held <= self._pool.num_free

    def admit(self, request: Request, cached: CachedPrefix, num_tokens: int) -> None:
        """Allocate the first `num_tokens` tokens of a request that `fits`, on top of `cached`."""
        request.last_run = self._pool.hold(cached)
        request.num_blocks = request.num_registered_blocks = cached.num_blocks
        self._take(request, self._blocks_for(num_tokens) - cached.num_blocks)
        self._register(request, num_tokens, request.num_prompt_tokens)
        self._settle(request)

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Extend the allocation to `num_tokens`; False, and nothing changes, if blocks lack."""
        missing = self._blocks_for(num_tokens) - request.num_blocks
        if missing > 0:
            if missing > self._pool.num_free:
                return False
            self._take(request, missing)
        self._register(request, num_tokens, request.num_prompt_tokens)
        self._settle(request)
        return True

    def grow_together(self, requests: Collection[Request]) -> None:
        """Extend the allocation of requests to their computed tokens; there is room for all."""
        size, total = self._block_size, 0
        for request in requests:
            num_tokens = request.num_computed_tokens
            if num_tokens <= request.settled_tokens:
                continue
            missing = -(-num_tokens // size) - request.num_blocks
            request.num_blocks += missing
            total += missing
        self._evicted(self._pool.take(total))
        for request in requests:
            if request.num_computed_tokens > request.settled_tokens:
                self._register(request, request.num_computed_tokens, request.num_prompt_tokens)
                self._settle(request)

    def free(self, request: Request, num_tokens: int) -> None:
        """Take a request off its blocks; what they hold stays cached until it is evicted.

        Args:
            request: Who has no use for its blocks any more.
            num_tokens: Tokens with KV, or that a pass has been scheduled to compute.
        """
        if request.last_run is not None:
            self._register(request, num_tokens, num_tokens)
            blank = request.num_blocks - request.num_registered_blocks
            self._pool.release(request.last_run, blank, request)
        request.last_run = None
        request.num_blocks = request.num_registered_blocks = request.settled_tokens = 0

    def clear(self) -> bool:
        """Forget everything cached; False, and nothing changes, while requests hold blocks."""
        if self._pool.num_held:
            return False
        self._pool.clear()
        self._salts.clear()
        self._publish(AllBlocksCleared())
        return True

    def take_events(self) -> list[KvCacheEvent]:
        """Return the events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def cached_chains(self) -> list[BlockStored]:
        """Return what is cached as the events that would build it, parents first."""
        salts = dict(self._salts)
        chains = []
        for run in self._pool.contents():
            salt = salts.get(run.keys[0] if run.parent is None else run.parent)
            if salt is not None:
                salts[run.keys[-1]] = salt
            chains.append(_stored(run, salt))
        return chains

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _take(self, request: Request, count: int) -> None:
        request.num_blocks += count
        self._evicted(self._pool.take(count))

    def _evicted(self, keys: list[BlockKey]) -> None:
        if not keys or not self._publishing:
            return
        self._publish(BlockRemoved(tuple([block.sequence for block in _hashes(keys)])))
        if self._salts:
            for key in keys:
                self._salts.pop(key, None)

    def _register(self, request: Request, num_tokens: int, told_tokens: int) -> None:
        """Make the blocks known that are full once `num_tokens` tokens are computed.

        An answer that nobody else can know is not told before its blocks are let go: until then
        only its first `told_tokens` tokens are.
        """
        if not self._caching:
            return
        if request.has_private_answer and told_tokens < num_tokens:
            num_tokens = told_tokens
        start, end = request.num_registered_blocks, num_tokens // self._block_size
        if end <= start:
            return
        keys = request.keys_of(end, self._new_chain)[start:end]
        size, run = self._block_size, request.last_run
        assert run is not None, "a running request has a place in the pool"
        request.num_registered_blocks = end
        if not self._publishing:
            request.last_run, _ = self._pool.fill(run, keys, request)
            return
        token_ids = request.token_ids[start * size : end * size]
        request.last_run, stored = self._pool.fill(run, keys, request, token_ids)
        if stored is not None:
            self._publish(_stored(stored, request.cache_salt))
            if request.cache_salt and stored.parent is None:
                self._salts[stored.keys[0]] = request.cache_salt

    def _settle(self, request: Request) -> None:
        """Note up to how many tokens the request can grow without the cache."""
        size = self._block_size
        settled = request.num_blocks * size
        if self._caching:
            told = request.num_registered_blocks
            if not request.has_private_answer or told < request.num_prompt_tokens // size:
                settled = min(settled, (told + 1) * size - 1)
        request.settled_tokens = settled

    def _publish(self, event: KvCacheEvent) -> None:
        if self._publishing:
            self._events.append(event)


def _stored(run: StoredRun, cache_salt: str | None) -> BlockStored:
    parent = None if run.parent is None else _hashes([run.parent])[0].sequence
    return BlockStored(parent, tuple(_hashes(run.keys)), run.token_ids or (), cache_salt)


def _hashes(keys: list[BlockKey]) -> list[BlockHash]:
    """Return the hashes that keys are; requests with token ids have no other keys."""
    if not isinstance(keys[0], BlockHash):
        raise TypeError("requests without token ids have no hashes: turn publish_kv_events off")
    return cast(list[BlockHash], keys)
