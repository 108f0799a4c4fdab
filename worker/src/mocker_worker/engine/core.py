"""One data-parallel rank of the mock engine, one forward pass at a time.

`step` has no clock: it schedules a pass, says how long it takes and what it yields, and leaves
the engine as it is when the pass has ended. The caller lets the time go by before it delivers the
tokens. Requests may be added and aborted between two calls. Not thread-safe.
"""

import sys

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.kv_events import BlockStored, KvCacheEvent
from mocker_protocol.names import WorkerType
from mocker_worker.engine.admission import check_admissible
from mocker_worker.engine.kv_cache import KvCache
from mocker_worker.engine.outputs import StepOutput, TokenOutput
from mocker_worker.engine.pass_load import PassLoad
from mocker_worker.engine.prefix_cache_stats import PrefixCacheStats
from mocker_worker.engine.request import FinishReason, Request, RequestRefused, RequestStatus
from mocker_worker.engine.sampling import sample_token, stream_seed
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
        self._max_model_len = args.max_model_len or sys.maxsize

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._requests)

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._scheduler.waiting)

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
        if request.request_id in self._requests:
            raise RequestRefused(
                request.request_id, "request_id", "is in use by an unfinished request; use another"
            )
        if self.args.worker_type is WorkerType.PREFILL:
            request.max_tokens = min(request.max_tokens, 1)
        check_admissible(request, self.args)
        request.sampling_seed = stream_seed(self.args.seed, request.request_id, request.seed)
        self._kv_cache.hash_prompt(request)
        self._requests[request.request_id] = request
        self._scheduler.waiting.append(request)

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
        request.status = RequestStatus.FINISHED_ABORTED
        return True

    def step(self) -> StepOutput | None:
        """Run one forward pass; None if there is no request."""
        if not self._requests:
            return None
        plan = self._scheduler.schedule()
        self.num_preemptions += plan.preempted
        num_running, kv_usage_ratio = self.num_running, self.kv_usage_ratio
        load, outputs = self._execute(plan)
        return StepOutput(
            duration_ms=self._timer.duration_ms(load),
            outputs=outputs,
            kv_events=self._kv_cache.take_events(),
            scheduled=load.metrics(),
            queued=self._scheduler.waiting.metrics(),
            preempted=plan.preempted,
            num_running=num_running,
            num_waiting=self.num_waiting,
            kv_usage_ratio=kv_usage_ratio,
        )

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

    def _execute(self, plan: Schedule) -> tuple[PassLoad, list[TokenOutput]]:
        load = PassLoad()
        outputs: list[TokenOutput] = []
        finished: list[Request] = []
        for request, count in plan.scheduled:
            computed = request.num_computed_tokens
            num_tokens = len(request.token_ids)
            if computed < request.prefill_end:
                load.add_prefill(count, computed=computed, prompt_tokens=request.num_prompt_tokens)
            else:
                load.decode_contexts.add(num_tokens)
            request.num_computed_tokens = computed = computed + count
            if computed == num_tokens:
                output = self._sample(request)
                outputs.append(output)
                if output.finish_reason is not None:
                    finished.append(request)
        if finished:
            self._scheduler.retire(finished)
        return load, outputs

    def _sample(self, request: Request) -> TokenOutput:
        """Generate a request's next token, and end the request with its last one."""
        position = request.num_output_tokens
        token_id = sample_token(request.sampling_seed, position)
        request.token_ids.append(token_id)
        finish_reason = None
        if position + 1 >= request.max_tokens or request.num_tokens >= self._max_model_len:
            finish_reason = FinishReason.LENGTH
            request.status = RequestStatus.FINISHED_LENGTH
            del self._requests[request.request_id]
        return TokenOutput(request.request_id, token_id, finish_reason, request.num_cached_tokens)
