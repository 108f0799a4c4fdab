"""One data-parallel rank of the mock engine, one forward pass at a time, or many alike at once.

`step` has no clock: it schedules a pass, says how long it takes and what it yields, and leaves
the engine as it is when the pass has ended. The caller lets the time go by before it delivers the
tokens. Requests may be added and aborted between two calls. Not thread-safe.
"""

import sys
from collections.abc import Sequence

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.forward_pass import QueuedRequests
from mocker_protocol.kv_events import BlockStored, KvCacheEvent
from mocker_protocol.names import WorkerType
from mocker_worker.engine.admission import check_admissible
from mocker_worker.engine.block_pool import BlockKey
from mocker_worker.engine.decode_run import DecodeRun
from mocker_worker.engine.kv_cache import KvCache
from mocker_worker.engine.outputs import PassOutput, StepOutput, TokenOutput
from mocker_worker.engine.pass_load import PassLoad
from mocker_worker.engine.prefix_cache_stats import PrefixCacheStats
from mocker_worker.engine.request import FinishReason, Request, RequestRefused
from mocker_worker.engine.sampling import stream_seed
from mocker_worker.engine.scheduler import Schedule, Scheduler
from mocker_worker.engine.timing import PassTimer


class EngineCore:
    """Scheduler, KV cache and timing of one rank. Same arguments and calls, same results."""

    def __init__(self, args: EngineArgs, *, dp_rank: int = 0) -> None:
        self.args = args
        self.dp_rank = dp_rank
        self.num_preemptions = 0
        """Since the start."""
        self._stats = PrefixCacheStats()
        self._kv_cache = KvCache(args)
        self._scheduler = Scheduler(args, self._kv_cache, self._stats)
        self._timer = PassTimer(args)
        self._requests: dict[str, Request] = {}
        self._num_arrived = 0
        self._max_model_len = args.max_model_len or sys.maxsize

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._requests)

    @property
    def running(self) -> Sequence[Request]:
        """Requests that hold blocks, in the order of admission."""
        return self._scheduler.running

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._scheduler.waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of the requests in the queue, cached ones included."""
        return self._scheduler.waiting.num_prompt_tokens

    @property
    def num_kv_blocks_held(self) -> int:
        """Blocks that requests hold; 0 when idle, however much is cached."""
        return self._kv_cache.num_held_blocks

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the blocks that requests hold, 0..1; 0 when idle, however much is cached."""
        return self._kv_cache.usage_ratio

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Mean share of cached prompt tokens over the latest 1000 admissions, 0..1."""
        return self._stats.hit_rate

    @property
    def prefix_cache_queries(self) -> int:
        """Prompt tokens looked up since the start."""
        return self._stats.queries_tokens

    @property
    def prefix_cache_hits(self) -> int:
        """Prompt tokens found since the start."""
        return self._stats.hits_tokens

    def add_request(self, request: Request) -> None:
        """Queue a request; it takes part from the next pass on.

        Raises:
            RequestRefused: if it can never finish here, or its id is in use.
        """
        self.check_request(request)
        request.sampling_seed = stream_seed(self.args.seed, request.request_id, request.seed)
        request.limit(self._max_model_len)
        request.arrival = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self._scheduler.waiting.append(request)

    def check_request(self, request: Request) -> None:
        """See that a request can be added now; nothing changes but the length of its answer.

        Raises:
            RequestRefused: as `add_request`.
        """
        if request.request_id in self._requests:
            raise RequestRefused(
                request.request_id, "request_id", "is in use by an unfinished request; use another"
            )
        if self.args.worker_type is WorkerType.PREFILL:
            request.max_tokens = min(request.max_tokens, 1)
        check_admissible(request, self.args)

    def abort_request(self, request_id: str) -> bool:
        """Drop an unfinished request and free its slot and blocks at once.

        A token of the latest pass that was not delivered yet is the caller's to drop.

        Returns:
            False if no unfinished request has this id.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        self._scheduler.remove(request)
        request.finish(FinishReason.ABORT)
        return True

    def step(self) -> StepOutput | None:
        """Run one forward pass and describe it for clients and metrics; None if idle."""
        result = self.run_pass()
        if result is None:
            return None
        return StepOutput(
            duration_ms=result.duration_ms,
            outputs=[
                TokenOutput(
                    request.request_id, token_id, request.finish_reason, request.num_cached_tokens
                )
                for request, token_id in result.sampled
            ],
            kv_events=self._kv_cache.take_events(),
            scheduled=result.load.metrics(),
            queued=self.queued_requests(),
            admitted=result.admitted,
            preempted=result.preempted,
            num_running=result.num_running,
            kv_usage_ratio=result.kv_usage_ratio,
        )

    def run_pass(self) -> PassOutput | None:
        """Run one forward pass; None if there is no request."""
        if not self._requests:
            return None
        plan = self._scheduler.schedule()
        self.num_preemptions += plan.preempted
        num_running, kv_usage_ratio = self.num_running, self.kv_usage_ratio
        load, sampled = self._execute(plan)
        return PassOutput(
            self._timer.duration_ms(load),
            load=load,
            sampled=sampled,
            admitted=plan.admitted,
            preempted=plan.preempted,
            num_running=num_running,
            kv_usage_ratio=kv_usage_ratio,
        )

    def queued_requests(self) -> QueuedRequests:
        """Describe the queue as forward-pass metrics do."""
        return self._scheduler.waiting.metrics()

    def decode_run(self) -> DecodeRun | None:
        """Describe the coming passes that can be run as one; None if the next one is special.

        Nothing changes. The description holds until a request is added or aborted, or a pass run.
        """
        passes = self._scheduler.steady_passes()
        if passes < 1:
            return None
        running = self._scheduler.running
        contexts = sum(request.num_tokens for request in running)
        cost = self._timer.decode_cost(len(running), contexts)
        return DecodeRun(len(running), min(passes, cost.num_passes), cost)

    def run_decodes(self, passes: int) -> list[Request]:
        """Run so many passes of the `decode_run`, as single passes would.

        That is exact for requests with private answers (`OutlineRequest`) only: a block that
        another request's answer fills in the middle of the run is not looked for.

        Returns:
            The requests that end with the last of them.
        """
        finished = self._scheduler.decode(passes)
        for request in finished:
            self._finish(request)
        if finished:
            self._scheduler.retire(finished)
        return finished

    def count_cached(self, keys: list[BlockKey]) -> int:
        """Return how many blocks of a prompt with these keys are cached."""
        return self._kv_cache.count_cached(keys)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing changes, while requests hold blocks."""
        return self._kv_cache.clear()

    def take_events(self) -> list[KvCacheEvent]:
        """Return events that no pass has carried yet, such as that of `reset_prefix_cache`."""
        return self._kv_cache.take_events()

    def cached_blocks(self) -> list[BlockStored]:
        """Return what is cached as `stored` events, parents first, for a consumer that lost some.

        Events not taken yet are part of it already.
        """
        return self._kv_cache.cached_chains()

    def _execute(self, plan: Schedule) -> tuple[PassLoad, list[tuple[Request, int]]]:
        load = PassLoad()
        sampled: list[tuple[Request, int]] = []
        contexts: list[int] = []
        finished: list[Request] = []
        for request, count in plan.scheduled:
            computed, num_tokens = request.num_computed_tokens, request.num_tokens
            if computed >= request.prefill_end:
                contexts.append(num_tokens)
            else:
                load.add_prefill(count, computed=computed, prompt_tokens=request.num_prompt_tokens)
                if computed + count == num_tokens > request.num_prompt_tokens:
                    load.billed.add_resumed(num_tokens)
            request.num_computed_tokens = computed = computed + count
            if computed == num_tokens:
                sampled.append((request, request.generate(1)))
                if num_tokens + 1 >= request.end_tokens:
                    self._finish(request)
                    finished.append(request)
        load.add_decodes(contexts)
        if finished:
            self._scheduler.retire(finished)
        return load, sampled

    def _finish(self, request: Request) -> None:
        request.finish(request.end_reason)
        del self._requests[request.request_id]
