"""Where a driver puts what a pass changed; a sink never blocks and never raises."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from mocker_protocol.forward_pass import QueuedRequests, ScheduledRequests
from mocker_protocol.kv_events import KvCacheEvent

CacheSnapshot: TypeAlias = Callable[[int], Sequence[KvCacheEvent]]
"""Gives the events that rebuild a rank's cache from nothing, parents first."""


class EngineLoad(msgspec.Struct, frozen=True):
    """How full a rank is in one pass, or while it is idle."""

    num_running: int
    num_waiting: int
    kv_used_blocks: int
    """Blocks that requests hold; cached content that waits is not use."""
    kv_total_blocks: int
    prefix_cache_hit_rate: float
    """0..1."""


class PassReport(msgspec.Struct, frozen=True):
    """One forward pass; made for each, in a fifth of the time that a frozen dataclass takes."""

    wall_time_s: float
    scheduled: ScheduledRequests
    queued: QueuedRequests
    load: EngineLoad | None = None
    """None reports no load."""


HEARTBEAT = PassReport(0.0, ScheduledRequests(), QueuedRequests())
"""What an idle rank reports."""


class EventSink(Protocol):
    """Takes events of all data-parallel ranks of one worker."""

    @property
    def wants_passes(self) -> bool:
        """Whether `publish_pass` and `publish_load` do anything; fixed."""
        ...

    def publish_kv_events(self, dp_rank: int, events: Sequence[KvCacheEvent]) -> None:
        """Take what the cache of a rank went through, oldest first."""
        ...

    def publish_pass(self, dp_rank: int, report: PassReport) -> None:
        """Take the metrics of one pass of a rank."""
        ...

    def publish_load(self, dp_rank: int, load: EngineLoad) -> None:
        """Take the load of a rank that has just become idle."""
        ...
