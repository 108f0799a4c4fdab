"""What one forward pass gives to whoever drives the engine."""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from mocker_protocol.forward_pass import QueuedRequests, ScheduledRequests
from mocker_protocol.kv_events import KvCacheEvent
from mocker_worker.engine.pass_load import PassLoad
from mocker_worker.engine.request import FinishReason, Request


class TokenOutput(NamedTuple):
    """One generated token; a request has at most one per pass."""

    request_id: str
    token_id: int
    finish_reason: FinishReason | None
    """Set on a request's last token only."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache when the request was first admitted."""


class PassOutput(msgspec.Struct):
    """One forward pass, in the engine's own terms."""

    duration_ms: float
    """Simulated length of the pass after the speedup ratios; 0 when `speedup_ratio` is 0."""
    load: PassLoad
    sampled: list[tuple[Request, int]]
    """Who got a token with the end of the pass, and its id, in the order of admission."""
    admitted: list[Request]
    """Who left the queue for this pass, after a preemption as well."""
    preempted: int
    """Requests that lost their KV in this pass."""
    num_running: int
    """Requests running during the pass, those that it finished included."""
    kv_usage_ratio: float
    """Share of the cache's blocks held by requests during the pass, 0..1."""


@dataclass(slots=True)
class StepOutput:
    """One forward pass. The engine's state is already that of the pass's end."""

    duration_ms: float
    """Simulated length of the pass after the speedup ratios; 0 when `speedup_ratio` is 0."""
    outputs: list[TokenOutput]
    """To be delivered when the pass has ended, in the order of admission."""
    kv_events: list[KvCacheEvent]
    """Visible at the start of the pass."""
    scheduled: ScheduledRequests
    queued: QueuedRequests
    admitted: list[Request]
    """Who left the queue for this pass; `num_preemptions` is 0 if for the first time."""
    preempted: int
    """Requests that lost their KV in this pass."""
    num_running: int
    """Requests running during the pass, those that it finished included."""
    kv_usage_ratio: float
    """Share of the cache's blocks held by requests during the pass, 0..1."""
