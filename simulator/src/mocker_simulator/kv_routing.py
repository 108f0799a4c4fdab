"""KV-aware routing with the cost function of Dynamo's router.

A worker's cost for a request is its prefill work in blocks, with what it has cached taken off,
plus the blocks it would then hold for active requests; the cheapest gets the request, and equals
draw lots. For prefill workers only the prefill work counts, for decode workers only the blocks.
The cached blocks are those of the worker's present pass.
"""

from random import Random

from mocker_protocol.names import WorkerType
from mocker_simulator.records import SimulatedRequest
from mocker_simulator.virtual_worker import VirtualWorker
from mocker_worker.engine.block_pool import BlockPool, Run


class _Load:
    """What the router has sent to one worker and not seen finished."""

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.blocks = BlockPool(0)

    def blocks_with(self, request: SimulatedRequest) -> int:
        """Return the blocks of active requests, one more included; shared ones count once."""
        keys = request.prompt_keys
        prefix = self.blocks.lookup(keys, len(keys))
        shared = prefix.num_blocks - prefix.num_idle
        return self.blocks.num_held + len(keys) - shared


class _Stay:
    """One request on one worker."""

    def __init__(self, load: _Load, request: SimulatedRequest, prefill_tokens: int) -> None:
        keys = request.prompt_keys
        self.load = load
        self.prefill_tokens = prefill_tokens
        load.prefill_tokens += prefill_tokens
        prefix = load.blocks.lookup(keys, len(keys))
        run = load.blocks.hold(prefix)
        new_blocks = len(keys) - prefix.num_blocks
        # No room for blocks that nobody holds: they count for nothing here.
        load.blocks.num_blocks = load.blocks.num_held + new_blocks
        load.blocks.take(new_blocks)
        self._run: Run
        self._run, _ = load.blocks.fill(run, keys[prefix.num_blocks :], self)

    def prefilled(self) -> None:
        self.load.prefill_tokens -= self.prefill_tokens
        self.prefill_tokens = 0

    def leave(self) -> None:
        self.prefilled()
        self.load.blocks.release(self._run, 0, self)


class KvRouter:
    """Sends requests where their prefix is cached, unless that worker has too much to do."""

    looks_at_caches = True

    def __init__(self, workers: list[VirtualWorker], *, seed: int = 0) -> None:
        """Set a router up; `seed` is that of the lots that equals draw."""
        self._workers = workers
        self._loads = [_Load() for _ in workers]
        self._stays: dict[int, _Stay] = {}
        self._random = Random(seed)
        args = workers[0].engine.args
        self._block_size = args.block_size
        self._counts_prefills = args.worker_type is not WorkerType.DECODE
        self._counts_blocks = args.worker_type is not WorkerType.PREFILL

    def choose(self, request: SimulatedRequest, now_ms: float) -> VirtualWorker:
        """Return the cheapest worker."""
        best: list[tuple[int, int]] = []
        lowest = float("inf")
        for index, worker in enumerate(self._workers):
            new_tokens = self._new_tokens(request, worker)
            load = self._loads[index]
            cost = (load.prefill_tokens + new_tokens) / self._block_size
            if self._counts_blocks:
                cost += load.blocks_with(request)
            if cost < lowest:
                lowest, best = cost, []
            if cost == lowest:
                best.append((index, new_tokens))
        index, new_tokens = self._random.choice(best)
        self._stays[request.record.index] = _Stay(self._loads[index], request, new_tokens)
        return self._workers[index]

    def prefilled(self, request: SimulatedRequest) -> None:
        """Take a prompt off the prefill work."""
        self._stays[request.record.index].prefilled()

    def completed(self, request: SimulatedRequest) -> None:
        """Forget a request; one that was refused after it was sent, too."""
        self._stays.pop(request.record.index).leave()

    def _new_tokens(self, request: SimulatedRequest, worker: VirtualWorker) -> int:
        if not self._counts_prefills:
            return 0
        cached = worker.cached_blocks(request) * self._block_size
        return request.num_prompt_tokens - cached
