"""What a worker with NATS says of each pass: forward-pass metrics, and its load when it changed.

Both are worth something only while they are fresh: what cannot be sent at once is dropped and
counted.
"""

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from mocker_protocol.forward_pass import TOPIC, ForwardPassMetrics, encode_forward_pass
from mocker_protocol.load_report import (
    LOAD_TOPIC,
    ActiveLoad,
    KvStats,
    LoadEvent,
    LoadMetrics,
    WorkerStats,
    encode_active_load,
    encode_load_event,
)
from mocker_protocol.names import Component
from mocker_worker.config import NatsFormat
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.envelopes import Envelopes
from mocker_worker.events.sink import EngineLoad, PassReport

_MAX_QUEUED_REPORTS = 1024


class LoadFormat(Protocol):
    """One way to report load."""

    subject: str

    def encode(self, dp_rank: int, load: EngineLoad) -> bytes:
        """Return what there is to say; it is said only when it changed."""
        ...

    def wrap(self, dp_rank: int, payload: bytes) -> bytes:
        """Return the message."""
        ...


class JetStreamEraLoad:
    """A JSON LoadEvent of Dynamo 0.7."""

    def __init__(self, component: Component, worker_id: int) -> None:
        self.subject = component.namespace_subject(LOAD_TOPIC)
        self._worker_id = worker_id

    def encode(self, dp_rank: int, load: EngineLoad) -> bytes:
        """Return the whole message."""
        stats = WorkerStats(
            data_parallel_rank=dp_rank,
            request_active_slots=load.num_running,
            num_requests_waiting=load.num_waiting,
        )
        cache = KvStats(
            kv_active_blocks=load.kv_used_blocks,
            kv_total_blocks=load.kv_total_blocks,
            gpu_cache_usage_perc=load.kv_used_blocks / load.kv_total_blocks,
            gpu_prefix_cache_hit_rate=load.prefix_cache_hit_rate,
        )
        data = LoadMetrics(worker_stats=stats, kv_stats=cache)
        return encode_load_event(LoadEvent(worker_id=self._worker_id, data=data))

    def wrap(self, dp_rank: int, payload: bytes) -> bytes:
        """Return it as it is."""
        return payload


class EventPlaneLoad:
    """An ActiveLoad of Dynamo 1.6."""

    def __init__(self, component: Component, worker_id: int, envelopes: Envelopes) -> None:
        self.subject = component.endpoint_subject(LOAD_TOPIC)
        self._worker_id = worker_id
        self._envelopes = envelopes

    def encode(self, dp_rank: int, load: EngineLoad) -> bytes:
        """Return the payload."""
        return encode_active_load(
            ActiveLoad(
                worker_id=self._worker_id, dp_rank=dp_rank, kv_used_blocks=load.kv_used_blocks
            )
        )

    def wrap(self, dp_rank: int, payload: bytes) -> bytes:
        """Return the enveloped message."""
        return self._envelopes.wrap(dp_rank, LOAD_TOPIC, payload)


def load_format(
    nats_format: NatsFormat, component: Component, *, worker_id: int, envelopes: Envelopes
) -> LoadFormat | None:
    """Return how load is reported beside KV events of this format."""
    match nats_format:
        case NatsFormat.JETSTREAM:
            return JetStreamEraLoad(component, worker_id)
        case NatsFormat.EVENT_PLANE:
            return EventPlaneLoad(component, worker_id, envelopes)
        case NatsFormat.NONE:
            return None


class _Report(NamedTuple):
    subject: str
    message: bytes
    is_load: bool


class PassReporter:
    """Publishes reports of all ranks of one worker."""

    def __init__(
        self,
        connection: NatsConnection,
        component: Component,
        *,
        worker_id: int,
        envelopes: Envelopes,
        load: LoadFormat | None,
    ) -> None:
        self._connection = connection
        self._subject = component.endpoint_subject(TOPIC)
        self._worker_id = worker_id
        self._envelopes = envelopes
        self._load = load
        self._queue: deque[_Report] = deque()
        self._queued = asyncio.Event()
        self._counters: dict[int, int] = {}
        self._told_loads: dict[int, bytes] = {}
        self.dropped_passes = 0
        self.dropped_loads = 0
        connection.on_connected(self._told_loads.clear)

    def publish(self, dp_rank: int, report: PassReport) -> None:
        """Queue the reports of one pass; metrics are numbered even if they are dropped."""
        counter = self._counters[dp_rank] = self._counters.get(dp_rank, 0) + 1
        if not self._takes_more():
            self.dropped_passes += 1
            self.dropped_loads += self._load is not None and report.load is not None
            return
        metrics = ForwardPassMetrics(
            worker_id=str(self._worker_id),
            dp_rank=dp_rank,
            counter_id=counter,
            wall_time=report.wall_time_s,
            scheduled_requests=report.scheduled,
            queued_requests=report.queued,
        )
        message = self._envelopes.wrap(dp_rank, TOPIC, encode_forward_pass(metrics))
        self._put(_Report(self._subject, message, is_load=False))
        if report.load is not None:
            self._queue_load(dp_rank, report.load)

    def publish_load(self, dp_rank: int, load: EngineLoad) -> None:
        """Queue a load report alone, if there is something new to say."""
        if self._takes_more():
            self._queue_load(dp_rank, load)
        else:
            self.dropped_loads += self._load is not None

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._queue:
                report = self._queue.popleft()
                if await self._connection.publish(report.subject, report.message, is_fresh=True):
                    continue
                if report.is_load:
                    self.dropped_loads += 1
                    self._told_loads.clear()
                else:
                    self.dropped_passes += 1

    def _queue_load(self, dp_rank: int, load: EngineLoad) -> None:
        if (form := self._load) is None:
            return
        payload = form.encode(dp_rank, load)
        if self._told_loads.get(dp_rank) == payload:
            return
        self._told_loads[dp_rank] = payload
        self._put(_Report(form.subject, form.wrap(dp_rank, payload), is_load=True))

    def _takes_more(self) -> bool:
        return self._connection.is_up and len(self._queue) < _MAX_QUEUED_REPORTS

    def _put(self, report: _Report) -> None:
        self._queue.append(report)
        self._queued.set()
