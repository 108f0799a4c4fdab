"""One worker process: wires engine, HTTP and NATS together and runs it to its end."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from mocker_protocol.kv_events import KvCacheEvent
from mocker_worker.clock import Clock, LoopClock
from mocker_worker.config import WorkerConfig
from mocker_worker.driver import EngineDriver
from mocker_worker.engine import EngineCore
from mocker_worker.events.link import Link, NoLink
from mocker_worker.lifecycle import Lifecycle, LifeState
from mocker_worker.server.app import build_app
from mocker_worker.server.generation import Generator
from mocker_worker.server.openai import OpenAiApi

log = logging.getLogger(__name__)

_SHUTDOWN_TIMEOUT_S = 2.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """The parts of one worker; `run` is its whole life."""

    def __init__(self, config: WorkerConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self.lifecycle = Lifecycle()
        self.listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """URL of the server, once it listens."""
        self._clock = clock or LoopClock()
        self._engines = [EngineCore(config.args, dp_rank=r) for r in range(config.args.dp_size)]
        self._link = self._make_link()
        self._ranks = [
            EngineDriver(engine, dp_rank=rank, clock=self._clock, sink=self._link.sink)
            for rank, engine in enumerate(self._engines)
        ]

    async def run(self) -> None:
        """Start, serve until a stop is requested, drain, stop."""
        async with self._server() as port, asyncio.TaskGroup() as tasks:
            self._link.start(tasks)
            engines = [
                tasks.create_task(rank.run(), name=f"engine-{rank.dp_rank}") for rank in self._ranks
            ]
            try:
                if await self._started(port):
                    await self._serve_and_drain()
                self.lifecycle.enter(LifeState.STOPPED)
                for rank in self._ranks:
                    rank.stop()
            finally:
                # The one cancellation that a failing group gives each task may be lost.
                await self._link.close()
            for engine in engines:
                engine.cancel()

    async def _started(self, port: int) -> bool:
        """Become ready; return False if a stop was requested before."""
        starting = asyncio.create_task(self._start(port), name="starting")
        stopping = asyncio.create_task(self.lifecycle.wait_for_stop(), name="stopping")
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            starting.cancel()
        if not starting.done() or starting.cancelled():
            return False
        starting.result()
        return True

    async def _start(self, port: int) -> None:
        await asyncio.sleep(self.config.args.startup_time or 0.0)
        await self._link.register(_url(self.config.advertised_host, port))
        self.lifecycle.enter(LifeState.READY)

    async def _serve_and_drain(self) -> None:
        await self.lifecycle.wait_for_stop()
        self.lifecycle.enter(LifeState.DRAINING)
        self._link.drain()
        await self.lifecycle.wait_until_drained(
            timeout_s=self.config.drain_timeout_s, grace_s=self.config.drain_grace_s
        )

    @contextlib.asynccontextmanager
    async def _server(self) -> AsyncIterator[int]:
        """Serve HTTP; gives the port."""
        runner = web.AppRunner(
            self._app(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self.config.host, self.config.port).start()
            port = int(runner.addresses[0][1])
            url = _url(self.config.host, port)
            log.info("listening on %s", url)
            self.listening.set_result(url)
            yield port
        finally:
            await runner.cleanup()

    def _app(self) -> web.Application:
        config, args = self.config, self.config.args
        generator = Generator(
            self._ranks,
            args=args,
            model_name=config.model_name,
            host=config.advertised_host,
        )
        api = OpenAiApi(
            generator,
            self.lifecycle,
            model_name=config.model_name,
            max_model_len=args.max_model_len,
            pod_name=config.pod_name,
        )
        return build_app(api, self.lifecycle, self._render_metrics)

    def _render_metrics(self) -> bytes:
        # Only a worker that is scraped pays for the Prometheus client.
        from mocker_worker.server.metrics import WorkerCollector, render

        dropped = self._link.dropped_kv_events
        return render(WorkerCollector(self.config.model_name, self._ranks, dropped=dropped))

    def _make_link(self) -> Link:
        if self.config.nats_url is None:
            return NoLink()
        # A worker without NATS does not pay for its client's memory and start-up time.
        from mocker_worker.events.nats_link import NatsLink

        return NatsLink(self.config, self.config.nats_url, snapshot=self._snapshot)

    def _snapshot(self, dp_rank: int) -> Sequence[KvCacheEvent]:
        """Return what a rank has cached; what it would publish next is part of it."""
        engine = self._engines[dp_rank]
        engine.take_events()
        return engine.cached_blocks()


async def serve(config: WorkerConfig) -> None:
    """Run a worker until SIGTERM or SIGINT; a second signal ends the drain."""
    worker = Worker(config)
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, worker.lifecycle.request_stop)
    log.info(
        "serving model %s as %s worker %d (%s) in namespace %s, pid %d",
        config.model_name,
        config.args.worker_type,
        config.worker_id,
        "Prefill" if config.args.worker_type == "prefill" else "Chat, Completions",
        config.namespace,
        os.getpid(),
    )
    try:
        await worker.run()
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
