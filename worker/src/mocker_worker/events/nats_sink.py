"""The sink of a worker with NATS: KV events to JetStream, forward-pass metrics to NATS core.

Metrics are worth something only while they are fresh: without a connection they are dropped and
counted. Decode workers, and workers without prefix caching, publish no KV events.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from mocker_protocol.forward_pass import TOPIC, ForwardPassMetrics, encode_forward_pass
from mocker_protocol.kv_events import KvCacheEvent
from mocker_protocol.names import Component
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.kv_publisher import KvEventPublisher
from mocker_worker.events.sink import PassReport

_MAX_QUEUED_PASSES = 1024


class NatsSink:
    """Publishes events of all ranks of one worker."""

    def __init__(
        self,
        connection: NatsConnection,
        component: Component,
        *,
        worker_id: int,
        kv_publisher: KvEventPublisher | None,
    ) -> None:
        self._connection = connection
        self._subject = component.endpoint_subject(TOPIC)
        self._worker_id = worker_id
        self._kv_publisher = kv_publisher
        self._passes: deque[bytes] = deque()
        self._queued = asyncio.Event()
        self._counters: dict[int, int] = {}
        self._sequence = 0
        self.dropped_passes = 0

    def publish_kv_events(self, dp_rank: int, events: Sequence[KvCacheEvent]) -> None:
        """Queue KV events, if this worker publishes any."""
        if self._kv_publisher is not None:
            self._kv_publisher.publish(dp_rank, events)

    def publish_pass(self, dp_rank: int, report: PassReport) -> None:
        """Queue one pass; messages are numbered even if they are dropped."""
        counter = self._counters[dp_rank] = self._counters.get(dp_rank, 0) + 1
        sequence, self._sequence = self._sequence, self._sequence + 1
        if not self._connection.is_up or len(self._passes) >= _MAX_QUEUED_PASSES:
            self.dropped_passes += 1
            return
        metrics = ForwardPassMetrics(
            worker_id=str(self._worker_id),
            dp_rank=dp_rank,
            counter_id=counter,
            wall_time=report.wall_time_s,
            scheduled_requests=report.scheduled,
            queued_requests=report.queued,
        )
        self._passes.append(
            encode_forward_pass(
                metrics,
                publisher_id=self._worker_id,
                sequence=sequence,
                published_at_ms=time.time_ns() // 1_000_000,
            )
        )
        self._queued.set()

    async def run(self) -> None:
        """Publish forward-pass metrics until cancelled."""
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._passes:
                if not await self._connection.publish(self._subject, self._passes.popleft()):
                    self.dropped_passes += 1
