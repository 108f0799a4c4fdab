"""A worker's link to NATS: connection, KV events, forward-pass metrics, registration."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from mocker_protocol.registration import WorkerRegistration
from mocker_worker.config import WorkerConfig
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.kv_publisher import KvEventPublisher
from mocker_worker.events.nats_sink import NatsSink
from mocker_worker.events.registrar import Registrar
from mocker_worker.events.sink import CacheSnapshot

_CLOSE_TIMEOUT_S = 2.0
_CANCEL_AGAIN_S = 3.0
"""Long enough not to cut off what a task does to clean up."""


class NatsLink:
    """Owns everything of one worker that talks to NATS."""

    def __init__(self, config: WorkerConfig, url: str, *, snapshot: CacheSnapshot) -> None:
        self._config = config
        self._connection = NatsConnection(url, name=f"mocker-worker-{config.worker_id:x}")
        self._publisher: KvEventPublisher | None = None
        if config.args.publishes_kv_events:
            self._publisher = KvEventPublisher(
                self._connection,
                config.component,
                worker_id=config.worker_id,
                snapshot=snapshot,
            )
        self.sink = NatsSink(
            self._connection,
            config.component,
            worker_id=config.worker_id,
            kv_publisher=self._publisher,
        )
        self._registrar: Registrar | None = None
        self._registering: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._running: list[asyncio.Task[None]] = []

    @property
    def dropped_kv_events(self) -> int:
        """KV events that found no place in the queue."""
        return self._publisher.dropped_events if self._publisher is not None else 0

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Connect and publish in the background."""
        self._tasks = tasks
        self._run(self._connection.run(), "nats-connection")
        self._run(self.sink.run(), "forward-pass-metrics")
        if self._publisher is not None:
            self._run(self._publisher.run(), "kv-events")

    async def register(self, url: str) -> None:
        """Register as ready; waits for NATS without a limit, since readiness needs it."""
        self._registrar = Registrar(self._connection, self._record(url))
        self._registering = self._run(self._registrar.run(), "registration")
        await self._registrar.registered.wait()

    def drain(self) -> None:
        """Register as draining."""
        if self._registrar is not None:
            self._registrar.drain()

    async def close(self) -> None:
        """Delete the registration, publish what is queued, disconnect."""
        try:
            await self._leave()
        finally:
            for task in reversed(self._running):
                await _end(task)

    async def _leave(self) -> None:
        if self._registrar is not None and self._registering is not None:
            await _end(self._registering)
            if self._registrar.registered.is_set():
                await self._registrar.remove(_CLOSE_TIMEOUT_S)
        if self._publisher is not None and self._connection.is_up:
            await self._publisher.flush(_CLOSE_TIMEOUT_S)

    def _run(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        if self._tasks is None:
            raise RuntimeError("start the link first")
        task = self._tasks.create_task(coroutine, name=name)
        self._running.append(task)
        return task

    def _record(self, url: str) -> WorkerRegistration:
        args = self._config.args
        return WorkerRegistration(
            worker_id=self._config.worker_id,
            namespace=self._config.namespace,
            worker_type=args.worker_type,
            url=url,
            model=self._config.model_name,
            block_size=args.block_size,
            num_gpu_blocks=args.num_gpu_blocks,
            max_num_seqs=args.max_num_seqs,
            dp_size=args.dp_size,
        )


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it ends.

    nats-py, and `asyncio.wait_for` of Python 3.11 (bpo-37658), can swallow a cancellation.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)
