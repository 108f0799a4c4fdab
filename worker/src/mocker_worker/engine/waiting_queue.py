"""Requests that wait for admission, in one of two orders.

First come, first served, with preempted ones in front; or by priority and arrival, preempted ones
as well. The figures that forward-pass metrics tell about the queue are kept as it changes, so that
a pass costs the same however long the queue is.
"""

from bisect import insort
from collections import deque

from mocker_protocol.forward_pass import QueuedRequests
from mocker_worker.engine.moments import Moments
from mocker_worker.engine.request import Request, RequestStatus

_EMPTY = QueuedRequests()


def urgency(request: Request) -> tuple[int, int]:
    """Return what requests are ordered by where priorities count; the smallest goes first."""
    return request.priority, request.arrival


class WaitingQueue:
    """Queue with a way back for preempted requests."""

    def __init__(self, *, by_priority: bool = False) -> None:
        self.num_prompt_tokens = 0
        """Of all that wait."""
        self._by_priority = by_priority
        self._requests: deque[Request] = deque()
        self._fresh_prompts = Moments()
        self._preempted_contexts = Moments()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def head(self) -> Request | None:
        """The next request to admit, if any."""
        return self._requests[0] if self._requests else None

    def append(self, request: Request) -> None:
        """Queue a new request."""
        if self._by_priority:
            insort(self._requests, request, key=urgency)
        else:
            self._requests.append(request)
        self._fresh_prompts.add(request.num_prompt_tokens)
        self.num_prompt_tokens += request.num_prompt_tokens

    def put_back(self, request: Request) -> None:
        """Queue a preempted request again."""
        if self._by_priority:
            insort(self._requests, request, key=urgency)
        else:
            self._requests.appendleft(request)
        self._preempted_contexts.add(request.num_tokens)
        self.num_prompt_tokens += request.num_prompt_tokens

    def pop_front(self) -> Request:
        """Take the head out."""
        request = self._requests.popleft()
        self._forget(request)
        return request

    def remove(self, request: Request) -> None:
        """Take a queued request out, wherever it stands; O(length)."""
        self._requests.remove(request)
        self._forget(request)

    def metrics(self) -> QueuedRequests:
        """Describe the queue as forward-pass metrics do."""
        if not self._requests:
            return _EMPTY
        fresh, preempted = self._fresh_prompts, self._preempted_contexts
        return QueuedRequests(
            num_prefill_requests=fresh.count,
            sum_prefill_tokens=fresh.total,
            var_prefill_length=fresh.variance,
            num_decode_requests=preempted.count,
            sum_decode_kv_tokens=preempted.total,
            var_decode_kv_tokens=preempted.variance,
        )

    def _forget(self, request: Request) -> None:
        self.num_prompt_tokens -= request.num_prompt_tokens
        if request.status is RequestStatus.PREEMPTED:
            self._preempted_contexts.remove(request.num_tokens)
        else:
            self._fresh_prompts.remove(request.num_prompt_tokens)
