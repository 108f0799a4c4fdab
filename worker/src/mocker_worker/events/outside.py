"""A worker's outside world beside HTTP: KV events by any transport, reports and registration.

Whatever of it is configured is here, NATS, ZMQ or nothing at all; drivers see a sink, and the
worker something that starts, registers, drains and closes.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mocker_protocol.kv_events import KvCacheEvent
from mocker_worker.config import WorkerConfig
from mocker_worker.events.ending import end
from mocker_worker.events.hub import KvEventHub
from mocker_worker.events.sink import CacheSnapshot, EngineLoad, PassReport

if TYPE_CHECKING:
    from mocker_worker.events.nats_link import NatsLink
    from mocker_worker.events.zmq_publisher import ZmqKvPublisher

_CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class TransportCounts:
    """What became of KV events on one transport since the start."""

    transport: str
    """`jetstream`, `event-plane` or `zmq`."""
    published_events: int
    dropped_events: int


@dataclass(frozen=True, slots=True)
class EventCounts:
    """What became of everything that left the worker, or should have."""

    transports: Sequence[TransportCounts]
    resynchronizations: int
    """How often a rank was told anew."""
    dropped_passes: int
    """Forward-pass metrics that were not sent."""
    dropped_loads: int
    """Passes whose load was not reported, since NATS was away."""


class OutsideWorld:
    """Owns the ways out of one worker; it is the sink of its drivers."""

    def __init__(
        self, config: WorkerConfig, *, snapshot: CacheSnapshot, settle: Callable[[int], None]
    ) -> None:
        """Make what the configuration asks for; `KvEventHub` says what the callables are."""
        self._config = config
        self._hub = KvEventHub(snapshot, config.args.dp_size, settle=settle)
        self._nats = self._make_nats_link()
        self._zmq = self._make_zmq()
        self._tasks: asyncio.TaskGroup | None = None
        self._running: list[asyncio.Task[None]] = []

    @property
    def wants_kv_events(self) -> bool:
        """Whether anybody is told of KV events."""
        return bool(self._hub.transports)

    @property
    def wants_passes(self) -> bool:
        """Whether anybody is told of passes."""
        return self._nats is not None

    def publish_kv_events(self, dp_rank: int, events: Sequence[KvCacheEvent]) -> None:
        """Take what the cache of a rank went through, oldest first."""
        self._hub.publish(dp_rank, events)

    def publish_pass(self, dp_rank: int, report: PassReport) -> None:
        """Take the metrics of one pass of a rank."""
        if self._nats is not None:
            self._nats.reports.publish(dp_rank, report)

    def publish_load(self, dp_rank: int, load: EngineLoad) -> None:
        """Take the load of a rank that has just become idle."""
        if self._nats is not None:
            self._nats.reports.publish_load(dp_rank, load)

    def counts(self) -> EventCounts:
        """Return what was published and what was dropped."""
        reports = self._nats.reports if self._nats is not None else None
        return EventCounts(
            [
                TransportCounts(item.name, item.published_events, item.dropped_events)
                for item in self._hub.transports
            ],
            resynchronizations=self._hub.resynchronizations,
            dropped_passes=reports.dropped_passes if reports is not None else 0,
            dropped_loads=reports.dropped_loads if reports is not None else 0,
        )

    def zmq_sources(self) -> Sequence[Mapping[str, object]]:
        """Say where each rank publishes on ZMQ; nothing without ZMQ."""
        return [] if self._zmq is None else self._zmq.sources()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start what runs in the background."""
        self._tasks = tasks
        if self._nats is not None:
            self._nats.start(self._run)
        if self._zmq is not None:
            self._run(self._zmq.run(), "kv-events-zmq")
        self._hub.start()

    async def register(self, url: str) -> None:
        """Return when the worker is registered as ready, if there is anywhere to register."""
        if self._nats is not None:
            await self._nats.register(url, self._run)

    def drain(self) -> None:
        """Register as draining."""
        if self._nats is not None:
            self._nats.drain()

    async def close(self) -> None:
        """Withdraw the worker's blocks and its registration, publish what is queued, end."""
        try:
            if self._tasks is not None:
                self._hub.withdraw()
            await self._leave()
        finally:
            for task in reversed(self._running):
                await end(task)

    async def _leave(self) -> None:
        async with asyncio.TaskGroup() as leaving:
            for transport in self._hub.transports:
                leaving.create_task(transport.flush(_CLOSE_TIMEOUT_S), name=transport.name)
            if self._nats is not None:
                leaving.create_task(self._nats.leave(_CLOSE_TIMEOUT_S), name="leave")

    def _run(self, coroutine: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        if self._tasks is None:
            raise RuntimeError("start the outside world first")
        task = self._tasks.create_task(coroutine, name=name)
        self._running.append(task)
        return task

    def _make_nats_link(self) -> "NatsLink | None":
        if self._config.nats_url is None:
            return None
        # A worker without NATS does not pay for its client's memory and start-up time.
        from mocker_worker.events.nats_link import NatsLink

        return NatsLink(self._config, self._config.nats_url, hub=self._hub)

    def _make_zmq(self) -> "ZmqKvPublisher | None":
        config = self._config
        if config.events.zmq is None or not config.args.publishes_kv_events:
            return None
        # Nor for ZMQ if it has no use for it.
        from mocker_worker.events.zmq_publisher import ZmqKvPublisher

        publisher = ZmqKvPublisher(
            config.events.zmq,
            dp_size=config.args.dp_size,
            model_name=config.model_name,
            pod_name=config.pod_name,
            pod_ip=config.advertised_host,
            port=config.port,
        )
        publisher.resynchronize = self._hub.resynchronize
        self._hub.attach(publisher)
        return publisher
