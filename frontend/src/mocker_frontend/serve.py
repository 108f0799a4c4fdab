"""One frontend process: wires the parts, serves, and drains when it must go."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from mocker_frontend.config import FrontendConfig
from mocker_frontend.discovery import discover
from mocker_frontend.exposition import Exposition
from mocker_frontend.http_server import running_server
from mocker_frontend.lifecycle import Lifecycle
from mocker_frontend.orchestration import Orchestrator
from mocker_frontend.passthrough import Passthrough
from mocker_frontend.registry import Registry
from mocker_frontend.routing.selection import Selector
from mocker_frontend.server import Server
from mocker_frontend.telemetry import Telemetry
from mocker_frontend.upstream import Upstream

log = logging.getLogger(__name__)

_KEEPALIVE_S = 75.0
_SHUTDOWN_TIMEOUT_S = 0.5
_MOST_HEADERS = 256
"""As in vLLM, whose server takes long ones, too."""
_HEADER_BYTES = 2**16
_CANCEL_AGAIN_S = 3.0
"""Long enough not to cut off what a task does to clean up."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Frontend:
    """The parts of one frontend; `run` is its whole life."""

    def __init__(self, config: FrontendConfig) -> None:
        self.config = config
        self.lifecycle = Lifecycle()
        self.registry = Registry(config.static_workers)
        self.listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """URL of the server, once it listens."""
        self._telemetry = Telemetry()
        self._upstream = Upstream(
            self.registry,
            Selector(config.routing),
            self._telemetry,
            connect_timeout_s=config.connect_timeout_s,
            read_timeout_s=config.read_timeout_s,
        )
        self._stop = asyncio.Event()

    def request_stop(self) -> None:
        """Begin to drain."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until a stop is requested, drain, stop."""
        async with self._upstream, asyncio.TaskGroup() as tasks:
            discovery = self._start_discovery(tasks)
            try:
                async with self._listening():
                    await self._stop.wait()
                    await self.lifecycle.drain(
                        grace_s=self.config.drain_grace_s, timeout_s=self.config.drain_timeout_s
                    )
            finally:
                if discovery is not None:
                    await _end(discovery)
        log.info("stopped")

    def _start_discovery(self, tasks: asyncio.TaskGroup) -> asyncio.Task[None] | None:
        if self.config.nats_url is None:
            self.lifecycle.ready()
            return None
        discovery = discover(
            self.registry,
            url=self.config.nats_url,
            namespace=self.config.namespace,
            on_listed=self.lifecycle.ready,
        )
        return tasks.create_task(discovery, name="discovery")

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        async with running_server(
            self._server().application(api_keys=self.config.api_keys),
            shutdown_timeout_s=_SHUTDOWN_TIMEOUT_S,
            max_headers=_MOST_HEADERS,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            keepalive_timeout=_KEEPALIVE_S,
        ) as runner:
            await web.TCPSite(runner, self.config.host, self.config.port, backlog=4096).start()
            url = f"http://{self.config.host}:{runner.addresses[0][1]}"
            log.info(
                "listening on %s model=%s namespace=%s routing=%s",
                url,
                self.config.model_name,
                self.config.namespace,
                self.config.routing,
            )
            self.listening.set_result(url)
            yield

    def _server(self) -> Server:
        exposition = Exposition(
            self._telemetry,
            lambda: self.registry.workers,
            model=self.config.model_name,
            namespace=self.config.namespace,
        )
        return Server(
            Orchestrator(self.registry, self._upstream, self._telemetry),
            Passthrough(self._upstream),
            self.lifecycle,
            self._telemetry,
            exposition,
            model_name=self.config.model_name,
        )


async def serve(config: FrontendConfig) -> None:
    """Run a frontend until SIGTERM or SIGINT, then drain."""
    frontend = Frontend(config)
    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, frontend.request_stop)
    await frontend.run()


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it ends.

    nats-py, and `asyncio.wait_for` of Python 3.11 (bpo-37658), can swallow a cancellation.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)
