"""One worker process: wires engine, HTTP and NATS together and runs it to its end."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from mocker_protocol.kv_events import KvCacheEvent
from mocker_worker.clock import Clock, best_clock
from mocker_worker.config import WorkerConfig, authority
from mocker_worker.driver import EngineDriver
from mocker_worker.engine import EngineCore
from mocker_worker.events.outside import OutsideWorld
from mocker_worker.hf_tokenizer import load_tokenizer
from mocker_worker.jitter import Jitter
from mocker_worker.lifecycle import Lifecycle, LifeState
from mocker_worker.server.access import Access
from mocker_worker.server.admin import AdminApi
from mocker_worker.server.app import build_app
from mocker_worker.server.control import EngineControl
from mocker_worker.server.faults import FaultPlan
from mocker_worker.server.fingerprint import system_fingerprint
from mocker_worker.server.generation import Generator
from mocker_worker.server.http_server import running_server
from mocker_worker.server.metrics import WorkerCounts, WorkerMetrics
from mocker_worker.server.metrics_vllm import num_waiting
from mocker_worker.server.openai import OpenAiApi
from mocker_worker.server.orca import orca_header
from mocker_worker.server.probes import Probes
from mocker_worker.server.response_headers import ResponseHeaders
from mocker_worker.server.tokenization import TokenizationApi
from mocker_worker.stats import HttpStats

log = logging.getLogger(__name__)

_SHUTDOWN_TIMEOUT_S = 2.0
_BACKLOG = 4096
"""Connections that may come while the loop is busy; others wait a second for their next SYN."""
_MOST_HEADERS = 256
"""As in vLLM, whose server takes long ones, too."""
_HEADER_BYTES = 2**16
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """The parts of one worker; `run` is its whole life."""

    def __init__(self, config: WorkerConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self.lifecycle = Lifecycle()
        self.listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """URL of the server, once it listens."""
        self._resources = contextlib.ExitStack()
        self._clock = clock or self._resources.enter_context(contextlib.closing(best_clock()))
        self._outside = OutsideWorld(config, snapshot=self._snapshot, settle=self._settle)
        args = config.args
        if not self._outside.wants_kv_events:
            args = args.model_copy(update={"publish_kv_events": False})
        self._engines = [EngineCore(args, dp_rank=rank) for rank in range(args.dp_size)]
        options = config.server
        self._jitters = [
            Jitter(options.latency_jitter, seed=config.args.seed + rank)
            for rank in range(config.args.dp_size)
        ]
        self._faults = FaultPlan(
            options.failure_rate_percent, options.failure_types, seed=config.args.seed
        )
        self._http_stats = HttpStats()
        self._headers = ResponseHeaders(
            pod_name=config.pod_name,
            pod_namespace=config.pod_namespace,
            has_request_id=options.request_id_headers,
            load_report=self._load_report,
        )
        self._ranks = [
            EngineDriver(
                engine,
                dp_rank=rank,
                clock=self._clock,
                sink=self._outside,
                jitter=self._jitters[rank],
            )
            for rank, engine in enumerate(self._engines)
        ]

    async def run(self) -> None:
        """Start, serve until a stop is requested, drain, stop."""
        with self._resources:
            await self._run()

    async def _run(self) -> None:
        async with self._server() as port, asyncio.TaskGroup() as tasks:
            self._outside.start(tasks)
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
                await self._outside.close()
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
        await self._outside.register(_url(self.config.advertised_host, port))
        self.lifecycle.enter(LifeState.READY)

    async def _serve_and_drain(self) -> None:
        await self.lifecycle.wait_for_stop()
        self.lifecycle.enter(LifeState.DRAINING)
        self._outside.drain()
        await self.lifecycle.wait_until_drained(
            timeout_s=self.config.drain_timeout_s, grace_s=self.config.drain_grace_s
        )

    @contextlib.asynccontextmanager
    async def _server(self) -> AsyncIterator[int]:
        """Serve HTTP; gives the port."""
        async with running_server(
            self._app(),
            shutdown_timeout_s=_SHUTDOWN_TIMEOUT_S,
            max_headers=_MOST_HEADERS,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        ) as runner:
            await self._listen(runner)
            port = int(runner.addresses[0][1])
            url = _url(self.config.host, port)
            log.info("listening on %s", url)
            self._headers.listens_on(port)
            self.listening.set_result(url)
            yield port

    async def _listen(self, runner: web.BaseRunner) -> None:
        host, port = self.config.host, self.config.port
        try:
            await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
        except OSError as error:
            raise OSError(f"--host {host} --port {port}: cannot listen: {error}") from error

    def _app(self) -> web.Application:
        config, args = self.config, self.config.args
        tokenizer = load_tokenizer(config.server.tokenizer_path)
        generator = Generator(
            self._ranks,
            args=args,
            options=config.server,
            model_name=config.model_name,
            host=config.advertised_host,
            tokenizer=tokenizer,
        )
        api = OpenAiApi(
            generator,
            self.lifecycle,
            model_name=config.model_name,
            max_model_len=args.max_model_len or args.kv_capacity_tokens,
            faults=self._faults,
            fingerprint=system_fingerprint(config.server, args, config.model_name),
        )
        parts = (
            api,
            Probes(self.lifecycle, self._metrics(generator).render),
            TokenizationApi(
                tokenizer,
                max_model_len=args.max_model_len or args.kv_capacity_tokens,
                check_model=generator.check_model,
            ),
            AdminApi(self._faults, self._jitters),
            EngineControl(config, self._ranks, self._outside.zmq_sources),
        )
        return build_app(
            parts,
            access=Access(config.server.api_keys),
            http_stats=self._http_stats,
            headers=self._headers,
        )

    def _load_report(self, form: str) -> str | None:
        return orca_header(
            form,
            kv_cache_usage_ratio=max(rank.kv_usage_ratio for rank in self._ranks),
            num_requests_waiting=sum(num_waiting(rank) for rank in self._ranks),
        )

    def _metrics(self, generator: Generator) -> WorkerMetrics:
        counts = WorkerCounts(
            api=generator.stats,
            http=self._http_stats,
            events=self._outside.counts,
            faults=self._faults.counts,
        )
        return WorkerMetrics(
            self.config.model_name,
            self._ranks,
            counts,
            dialects=self.config.server.metrics_dialects,
            environment=os.environ,
        )

    def _settle(self, dp_rank: int) -> None:
        """Publish what a rank went through since its last pass began."""
        if events := self._engines[dp_rank].take_events():
            self._outside.publish_kv_events(dp_rank, events)

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
    return f"http://{authority(host, port)}"
