"""Requests that wait for admission: preempted ones in front, the others first come, first served.

The figures that forward-pass metrics tell about the queue are kept as it changes, so that a pass
costs the same however long the queue is.
"""

from collections import deque

from mocker_protocol.forward_pass import QueuedRequests
from mocker_worker.engine.moments import Moments
from mocker_worker.engine.request import Request, RequestStatus


class WaitingQueue:
    """FIFO queue with a way back to its front."""

    def __init__(self) -> None:
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
        self._requests.append(request)
        self._fresh_prompts.add(request.num_prompt_tokens)

    def push_front(self, request: Request) -> None:
        """Put a preempted request before all others."""
        self._requests.appendleft(request)
        self._preempted_contexts.add(request.num_tokens)

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
        if request.status is RequestStatus.PREEMPTED:
            self._preempted_contexts.remove(request.num_tokens)
        else:
            self._fresh_prompts.remove(request.num_prompt_tokens)
