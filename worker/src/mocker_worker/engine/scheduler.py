"""Decides what each forward pass computes (vLLM v1's scheduler, Dynamo 1.6's refinements).

Running requests come first, in the order of their admission, then the head of the waiting queue,
within a budget of tokens. Blocks are allocated as tokens are scheduled; when they run out, a
victim loses its KV and goes back to the queue with its tokens kept: to the front, or where its
priority belongs. Nobody is admitted in a pass that preempted somebody, nor whose known tokens
would not fit as a whole.
"""

import sys

import msgspec

from mocker_protocol.engine_args import EngineArgs, PreemptionMode, SchedulingPolicy
from mocker_worker.engine.block_pool import CachedPrefix
from mocker_worker.engine.kv_cache import KvCache
from mocker_worker.engine.prefix_cache_stats import PrefixCacheStats
from mocker_worker.engine.request import Request, RequestStatus
from mocker_worker.engine.waiting_queue import WaitingQueue, urgency

_RUNNING = RequestStatus.RUNNING  # Python 3.11 takes long to find a member in its enum


class Schedule(msgspec.Struct):
    """One pass: who computes how many tokens, in the order of admission."""

    budget: int
    """Tokens that may still be scheduled."""
    scheduled: list[tuple[Request, int]] = msgspec.field(default_factory=list)
    admitted: list[Request] = msgspec.field(default_factory=list)
    preempted: int = 0

    def add(self, request: Request, num_tokens: int) -> None:
        """Let a request compute `num_tokens` tokens in this pass."""
        self.scheduled.append((request, num_tokens))
        self.budget -= num_tokens

    def withdraw(self, request: Request) -> int:
        """Take a request out again and give its tokens back to the budget; returns how many."""
        for index, (scheduled, num_tokens) in enumerate(self.scheduled):
            if scheduled is request:
                self.budget += num_tokens
                del self.scheduled[index]
                return num_tokens
        return 0


class Scheduler:
    """Waiting and running requests of one data-parallel rank."""

    def __init__(self, args: EngineArgs, kv_cache: KvCache, stats: PrefixCacheStats) -> None:
        self._by_priority = args.scheduling_policy is SchedulingPolicy.PRIORITY
        self.waiting = WaitingQueue(by_priority=self._by_priority)
        self.running: list[Request] = []
        self._kv_cache = kv_cache
        self._stats = stats
        self._caching = args.enable_prefix_caching
        self._block_size = args.block_size
        self._max_tokens = args.max_num_batched_tokens or sys.maxsize
        self._max_seqs = args.max_num_seqs or sys.maxsize
        self._chunked = args.enable_chunked_prefill
        self._victim = -1 if args.preemption_mode is PreemptionMode.LIFO else 0

    def schedule(self) -> Schedule:
        """Plan one pass and allocate its KV; the plan is empty only without any request."""
        plan = Schedule(self._max_tokens)
        self._schedule_running(plan)
        if not plan.preempted:
            self._admit_waiting(plan)
        return plan

    def steady_passes(self) -> int:
        """Return how many passes from now on do nothing but decode one token for all that run.

        Up to the pass in which the first of them ends, or before that in which blocks run out. A
        head of the queue that must wait now must wait all that time: room only shrinks. (Answers
        of requests with token ids could become hits for it, a chance that is not looked for.)
        """
        running = self.running
        if not running or len(running) > self._max_tokens:
            return 0
        passes = sys.maxsize
        for request in running:
            computed = request.num_computed_tokens
            if computed < request.prefill_end or computed != request.num_tokens - 1:
                return 0
            passes = min(passes, request.end_tokens - request.num_tokens)
        return 0 if self._can_admit() else self._passes_with_room(passes)

    def decode(self, passes: int) -> list[Request]:
        """Run so many of the `steady_passes`; returns the requests that end with the last one."""
        finished: list[Request] = []
        for request in self.running:
            request.generate(passes)
            request.num_computed_tokens = request.num_tokens - 1
            if request.num_tokens >= request.end_tokens:
                finished.append(request)
        self._kv_cache.grow_together(self.running)
        return finished

    def _can_admit(self) -> bool:
        head, budget = self.waiting.head, self._max_tokens - len(self.running)
        if head is None or budget <= 0 or len(self.running) >= self._max_seqs:
            return False
        return self._admission(head, budget) is not None

    def _passes_with_room(self, passes: int) -> int:
        """Return the first pass number, `passes` at most, after which blocks lack."""
        free = self._kv_cache.num_free_blocks
        if len(self.running) * (passes // self._block_size + 1) <= free:
            return passes
        low, high = 0, passes
        while low < high:
            middle = (low + high + 1) // 2
            if self._blocks_lacking(middle) <= free:
                low = middle
            else:
                high = middle - 1
        return low

    def _blocks_lacking(self, passes: int) -> int:
        """Return the blocks that must be taken for so many more tokens per running request."""
        size = self._block_size
        return sum(
            -(-(request.num_computed_tokens + passes) // size) - request.num_blocks
            for request in self.running
        )

    def remove(self, request: Request) -> None:
        """Forget a request that is aborted, and free what it holds."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._kv_cache.free(request, request.num_computed_tokens)
        else:
            self.waiting.remove(request)

    def retire(self, finished: list[Request]) -> None:
        """Free the requests of a pass that have finished."""
        for request in finished:
            self._kv_cache.free(request, request.num_computed_tokens)
        self.running = [r for r in self.running if r.status is _RUNNING]

    def _schedule_running(self, plan: Schedule) -> None:
        for request in tuple(self.running):
            if plan.budget <= 0:
                return
            if plan.preempted and request.status is not _RUNNING:
                continue
            computed = request.num_computed_tokens
            count = 1  # the usual case, and most of all the work there is
            if computed + 1 != request.num_tokens:
                count = self._tokens_to_compute(request, computed, plan.budget)
            wanted = computed + count
            if count and (
                wanted <= request.settled_tokens
                or self._kv_cache.grow(request, wanted)
                or self._grow_by_preempting(request, wanted, plan)
            ):
                plan.scheduled.append((request, count))
                plan.budget -= count

    def _tokens_to_compute(self, request: Request, computed: int, budget: int) -> int:
        """Return the next chunk's length; 0 if it must not be cut and does not fit.

        Without chunked prefill a recomputation may still be cut when its generated tokens have
        made it longer than any pass: it could never run otherwise.
        """
        remaining = request.num_tokens - computed
        if remaining <= budget:
            return remaining
        if self._chunked or remaining > self._max_tokens:
            return budget
        return 0

    def _grow_by_preempting(self, request: Request, num_tokens: int, plan: Schedule) -> bool:
        """Take blocks from victims until the request has its own; False if it becomes one."""
        while True:
            victim = self._take_victim()
            self._preempt(victim, plan)
            if victim is request:
                return False
            if self._kv_cache.grow(request, num_tokens):
                return True

    def _take_victim(self) -> Request:
        """Take out who has to give up its blocks: the least urgent, or the newest or oldest."""
        if not self._by_priority:
            return self.running.pop(self._victim)
        victim = max(self.running, key=urgency)
        self.running.remove(victim)
        return victim

    def _preempt(self, victim: Request, plan: Schedule) -> None:
        scheduled = plan.withdraw(victim)
        plan.preempted += 1
        self._kv_cache.free(victim, victim.num_computed_tokens + scheduled)
        victim.status = RequestStatus.PREEMPTED
        victim.num_preemptions += 1
        victim.num_computed_tokens = 0
        self.waiting.put_back(victim)

    def _admit_waiting(self, plan: Schedule) -> None:
        while plan.budget > 0 and len(self.running) < self._max_seqs:
            request = self.waiting.head
            if request is None or not self._admit(request, plan):
                return

    def _admit(self, request: Request, plan: Schedule) -> bool:
        """Move the head of the queue to running if its whole known length fits."""
        admission = self._admission(request, plan.budget)
        if admission is None:
            return False
        cached, computed, count = admission
        self.waiting.pop_front()
        self._kv_cache.admit(request, cached, computed + count)
        request.num_reused_tokens = cached.num_blocks * self._block_size
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_reused_tokens
            if self._caching:  # as in vLLM, nothing is looked up otherwise
                self._stats.record(request.num_cached_tokens, request.num_prompt_tokens)
        request.num_computed_tokens = computed
        request.prefill_end = 0 if request.has_remote_kv else request.num_tokens
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        plan.admitted.append(request)
        plan.add(request, count)
        return True

    def _admission(self, request: Request, budget: int) -> tuple[CachedPrefix, int, int] | None:
        """Return what is cached, already computed and to compute; None if it must wait."""
        cached = self._kv_cache.lookup(request)
        computed = cached.num_blocks * self._block_size
        if request.has_remote_kv:
            computed = request.num_tokens - 1
        count = self._tokens_to_compute(request, computed, budget)
        if count == 0 or not self._kv_cache.fits(request, cached):
            return None
        return cached, computed, count
