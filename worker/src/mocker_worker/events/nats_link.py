"""A worker's link to NATS: connection, KV events, reports of passes, registration."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from mocker_protocol.dynamo_discovery import DiscoveredWorker
from mocker_protocol.registration import WorkerRegistration
from mocker_worker.config import NatsFormat, WorkerConfig, authority
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.dynamo_registrar import DynamoRegistrar
from mocker_worker.events.ending import end
from mocker_worker.events.envelopes import Envelopes
from mocker_worker.events.event_plane_publisher import EventPlanePublisher
from mocker_worker.events.hub import KvEventHub, KvTransport
from mocker_worker.events.jetstream_publisher import JetStreamPublisher
from mocker_worker.events.registrar import Registrar
from mocker_worker.events.reports import PassReporter, load_format

log = logging.getLogger(__name__)

RunTask: TypeAlias = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
"""Runs something in the background until the worker ends; the second argument names it."""


class NatsLink:
    """Owns everything of one worker that talks to NATS, and its records in Dynamo's etcd."""

    def __init__(self, config: WorkerConfig, url: str, *, hub: KvEventHub) -> None:
        self._config = config
        self._hub = hub
        self._connection = NatsConnection(url, name=f"mocker-worker-{config.worker_id:x}")
        self._envelopes = Envelopes(config.args.dp_size)
        self.transport = self._make_transport()
        """None if this worker publishes no KV events on NATS."""
        if self.transport is not None:
            # Routers of Dynamo 0.7 forget the whole worker when one rank is cleared.
            is_jetstream = isinstance(self.transport, JetStreamPublisher)
            hub.attach(self.transport, cleared_takes_all_ranks=is_jetstream)
        self.reports = PassReporter(
            self._connection,
            config.component,
            worker_id=config.worker_id,
            envelopes=self._envelopes,
            load=load_format(
                config.events.nats_format,
                config.component,
                worker_id=config.worker_id,
                envelopes=self._envelopes,
            ),
        )
        self._registrar: Registrar | None = None
        self._registering: asyncio.Task[None] | None = None
        self._dynamo: DynamoRegistrar | None = None

    def start(self, run: RunTask) -> None:
        """Connect and publish in the background."""
        run(self._connection.run(), "nats-connection")
        run(self.reports.run(), "pass-reports")
        if self.transport is not None:
            run(self.transport.run(), f"kv-events-{self.transport.name}")

    async def register(self, url: str, run: RunTask) -> None:
        """Register as ready; waits for NATS without a limit, since readiness needs it."""
        self._registrar = Registrar(self._connection, self._record(url))
        self._registering = run(self._registrar.run(), "registration")
        await self._registrar.registered.wait()
        if self._config.events.etcd_endpoints:
            recovery_address = await self._start_recovery(run)
            self._dynamo = self._make_dynamo_registrar(url, recovery_address)
            run(self._dynamo.run(), "dynamo-discovery")

    def drain(self) -> None:
        """Register as draining; Dynamo is told that the worker is gone."""
        if self._registrar is not None:
            self._registrar.drain()
        if self._dynamo is not None:
            self._dynamo.leave()

    async def leave(self, timeout_s: float) -> None:
        """Delete the registrations."""
        if self._registrar is not None and self._registering is not None:
            self._registrar.leave()
            await end(self._registering)
            if self._registrar.registered.is_set():
                await self._registrar.remove(timeout_s)
        if self._dynamo is not None:
            self._dynamo.leave()
            await self._dynamo.wait_until_gone(timeout_s)

    def _make_transport(self) -> KvTransport | None:
        config = self._config
        if not config.args.publishes_kv_events:
            return None
        match config.events.nats_format:
            case NatsFormat.JETSTREAM:
                return JetStreamPublisher(
                    self._connection,
                    config.component,
                    worker_id=config.worker_id,
                    resynchronize=self._hub.resynchronize,
                )
            case NatsFormat.EVENT_PLANE:
                return EventPlanePublisher(
                    self._connection,
                    config.component,
                    worker_id=config.worker_id,
                    envelopes=self._envelopes,
                    resynchronize=self._hub.resynchronize,
                )
            case NatsFormat.NONE:
                return None

    async def _start_recovery(self, run: RunTask) -> str | None:
        """Serve what late routers ask for; returns `host:port`, or None if nobody has to ask."""
        if not isinstance(self.transport, EventPlanePublisher):
            return None
        # Only workers that Dynamo's routers find pay for it.
        from mocker_worker.events.kv_recovery import KvRecoveryServer

        config = self._config
        server = KvRecoveryServer(
            self._hub.dump,
            worker_id=config.worker_id,
            publisher_ids=self._envelopes.publisher_ids,
        )
        wanted = config.events.recovery_port
        try:
            port = await server.listen(config.host, wanted)
        except OSError as error:
            log.warning(
                "--kv-recovery-port %d: cannot listen, so routers that start late learn only of "
                "new blocks: %s",
                *(wanted, error),
            )
            return None
        run(server.run(), "kv-recovery")
        return authority(config.advertised_host, port)

    def _make_dynamo_registrar(self, url: str, recovery_address: str | None) -> DynamoRegistrar:
        config = self._config
        is_source = isinstance(self.transport, EventPlanePublisher)
        worker = DiscoveredWorker(
            component=config.component,
            worker_id=config.worker_id,
            model=config.model_name,
            address=url.removeprefix("http://"),
            args=config.args,
            publisher_ids=self._envelopes.publisher_ids if is_source else (),
            recovery_address=recovery_address,
        )
        return DynamoRegistrar(config.events.etcd_endpoints, worker, on_registered=self._tell_anew)

    def _tell_anew(self) -> None:
        """Repeat what routers ignored before they knew of the publishers."""
        if isinstance(self.transport, EventPlanePublisher):
            for dp_rank in range(self._hub.num_ranks):
                self._hub.resynchronize(dp_rank)

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
            max_model_len=args.max_model_len or args.kv_capacity_tokens,
        )
