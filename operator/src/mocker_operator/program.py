"""An operator process: the queue, the decision source and Kopf as one group of tasks.

They start and end together: when one of them fails for good, the process does too, and Kubernetes
starts it again.
"""

import asyncio
import contextlib
import logging
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import kopf

from mocker_operator.config import OperatorConfig
from mocker_operator.controller import Controller
from mocker_operator.errors import OperatorFailed
from mocker_operator.handlers.registry import build_registry, operator_settings
from mocker_operator.kube.gateway import Gateway
from mocker_operator.kube.login import connection_info, load_configuration
from mocker_operator.reconcile.model import Key
from mocker_operator.render import RenderSettings
from mocker_operator.scaling.nats_source import NatsDecisionSource
from mocker_operator.tasks import end
from mocker_operator.telemetry import Metrics
from mocker_operator.work_queue import WorkQueue

_log = logging.getLogger(__name__)
_RESYNC_SPREAD = 0.1
DEEPEST_JSON = 4 * 10_000
"""Frames for the deepest JSON that an API server takes (10,000 levels), a few to a level."""


class Operator:
    """The parts of one operator, wired.

    Args:
        config: What it was told.
        gateway: The API server.
        metrics: Where it counts.
    """

    def __init__(self, config: OperatorConfig, gateway: Gateway, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self.queue = WorkQueue[Key](self._pass, concurrency=config.concurrency)
        self.source = NatsDecisionSource(
            config.nats_url, on_change=self._decided, on_sync=self._wake_all
        )
        self.controller = Controller(
            gateway,
            self.source,
            RenderSettings(
                image=config.worker_image,
                image_pull_policy=config.image_pull_policy,
                nats_url=config.worker_nats_url,
            ),
            now=lambda: datetime.now(UTC),
            resync_s=self._resync_s,
        )
        metrics.watch_depth(lambda: self.queue.depth)

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Run until a signal, or until `stop` is set.

        Raises:
            OperatorFailed: if a part has failed for good.
        """
        failure: OperatorFailed | None = None
        try:
            await self._run(stop)
        except ExceptionGroup as group:
            error = group.exceptions[0]
            _log.error("a part of the operator has failed", exc_info=error)
            failure = OperatorFailed(f"{type(error).__name__}: {error}")
        if failure is not None:
            # Outside of the handler, for Kopf's errors have themselves for a context.
            raise failure

    async def _run(self, stop: asyncio.Event | None) -> None:
        async with asyncio.TaskGroup() as group:
            parts = [
                group.create_task(self.queue.run(), name="reconcile"),
                group.create_task(self.source.run(), name="decisions"),
            ]

            async def stop_parts() -> None:
                await end(parts)

            await self._watch(stop_parts, stop)

    async def _watch(
        self, stop_parts: Callable[[], Awaitable[None]], stop: asyncio.Event | None
    ) -> None:
        config = self._config
        port = config.liveness_port
        await kopf.operator(
            registry=build_registry(
                wake=self.queue.wake,
                login=_log_in,
                stop=stop_parts,
                probes={
                    "queue_depth": lambda: self.queue.depth,
                    "decisions_followed": lambda: self.source.synced,
                },
            ),
            settings=operator_settings(),
            standalone=True,
            # Kopf would look up the user's name, and a pod's user has none.
            identity="mocker-operator",  # type: ignore[arg-type] # its type is not exported
            clusterwide=not config.namespaces,
            namespaces=config.namespaces,
            liveness_endpoint=None if port is None else f"http://0.0.0.0:{port}/healthz",
            stop_flag=stop,
        )

    async def _pass(self, key: Key) -> float | None:
        await self.source.tried()
        began = time.perf_counter()
        result = "error"
        try:
            due_after_s = await self.controller.reconcile(key)
            result = "ok"
            return due_after_s
        finally:
            self._metrics.finished(result, time.perf_counter() - began)

    def _decided(self, key: Key) -> None:
        # The bucket is shared: other keys may be about namespaces that are not ours to read.
        if self.controller.knows(key):
            self.queue.wake(key)

    def _wake_all(self) -> None:
        for key in self.controller.keys:
            self.queue.wake(key)

    def _resync_s(self) -> float:
        return self._config.resync_s * random.uniform(1 - _RESYNC_SPREAD, 1 + _RESYNC_SPREAD)


async def run(config: OperatorConfig, stop: asyncio.Event | None = None) -> None:
    """Run an operator until a signal, or until `stop` is set."""
    # One resource with deeply nested `extraEngineArgs` must not end every watch.
    sys.setrecursionlimit(max(sys.getrecursionlimit(), DEEPEST_JSON))
    metrics = Metrics()
    stop_metrics = metrics.serve(config.metrics_port) if config.metrics_port is not None else None
    try:
        async with _gateway(metrics) as gateway:
            await Operator(config, gateway, metrics).run(stop)
    finally:
        if stop_metrics is not None:
            stop_metrics()


@contextlib.asynccontextmanager
async def _gateway(metrics: Metrics) -> AsyncIterator[Gateway]:
    gateway = Gateway(await load_configuration(), metrics)
    try:
        yield gateway
    finally:
        await gateway.close()


async def _log_in() -> kopf.ConnectionInfo:
    return await connection_info(await load_configuration())
