"""Whatever happens to NATS, consumers end with what the engine has cached, and no request waits."""

import asyncio
import contextlib
import random

import aiohttp
import nats
import pytest
from kv_consumers import RouterCache, StrictCache, blocks_of
from nats.js.errors import NotFoundError, ServiceUnavailableError
from ranks_config import ranks_config
from waiting import PATIENCE_S, until

from mocker_protocol.event_plane import KV_EVENTS_TOPIC, decode_envelope, decode_router_events
from mocker_protocol.kv_events import decode_router_event
from mocker_worker.config import EventOptions, NatsFormat
from mocker_worker.lifecycle import LifeState
from mocker_worker.serve import Worker

pytestmark = pytest.mark.nats

RANKS = 2


class Rig:
    """A worker in this loop with a small cache, and clients that keep it busy."""

    def __init__(self, server, nats_format):
        self.worker = Worker(
            ranks_config(
                server.url,
                EventOptions(nats_format=nats_format),
                dp_size=RANKS,
                num_gpu_blocks=48,
            )
        )
        self._random = random.Random(3)

    @property
    def counts(self):
        (counts,) = self.worker._outside.counts().transports
        return counts

    @property
    def connection(self):
        return self.worker._outside._nats._connection

    def cached(self, dp_rank):
        return blocks_of(self.worker._engines[dp_rank].cached_blocks())

    async def ask(self, count):
        """Ask `count` questions, of which some share a beginning, four at a time."""
        url = await self.worker.listening

        async def ask_some(session, share):
            for _ in range(share):
                start = self._random.randrange(6) * 100
                prompt = list(range(start, start + self._random.randrange(4, 60)))
                body = {"model": "mock", "prompt": prompt, "max_tokens": 8}
                async with session.post(f"{url}/v1/completions", json=body) as response:
                    assert response.status == 200

        async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(ask_some(session, count // 4) for _ in range(4)))

    async def until_down(self):
        await until(lambda: not self.connection.is_up)


@contextlib.asynccontextmanager
async def rig_of(server, nats_format):
    rig = Rig(server, nats_format)
    run = asyncio.create_task(rig.worker.run())
    try:
        await until(lambda: rig.worker.lifecycle.state is LifeState.READY)
        yield rig
    finally:
        rig.worker.lifecycle.request_stop()
        async with asyncio.timeout(PATIENCE_S):
            await run


async def replayed(client, rig):
    """Read the stream as a strict consumer; return whether it ends with the engine's cache."""
    name = rig.worker.config.component.kv_event_stream
    caches = [StrictCache() for _ in range(RANKS)]
    jetstream = client.jetstream(timeout=1)
    try:
        state = (await jetstream.stream_info(name)).state
        if not state.messages:
            return False
        for sequence in range(state.first_seq, state.last_seq + 1):
            item = decode_router_event((await jetstream.get_msg(name, sequence)).data)
            caches[item.dp_rank].apply(item.event_id, item.event)
    except (NotFoundError, ServiceUnavailableError, TimeoutError):
        return False
    return [cache.blocks for cache in caches] == [rig.cached(rank) for rank in range(RANKS)]


async def test_a_stream_that_is_restarted_and_hangs_ends_with_the_cache(nats_server, nats_client):
    async with rig_of(nats_server, NatsFormat.JETSTREAM) as rig:
        await rig.ask(40)
        nats_server.stop()
        await rig.until_down()
        await rig.ask(40)
        nats_server.start()
        await rig.ask(40)
        with nats_server.hanging():
            await rig.ask(40)

        await until(lambda: replayed(nats_client, rig))
        assert rig.counts.dropped_events == 0
        assert rig.worker._outside.counts().resynchronizations == 0


async def test_a_stream_that_was_lost_ends_with_the_cache(nats_server, nats_client):
    async with rig_of(nats_server, NatsFormat.JETSTREAM) as rig:
        await rig.ask(40)
        nats_server.stop()
        await rig.until_down()
        nats_server.lose_storage()
        await rig.ask(40)
        nats_server.start()
        await rig.ask(40)

        await until(lambda: replayed(nats_client, rig))
        assert rig.worker._outside.counts().resynchronizations == RANKS


async def test_a_long_outage_ends_with_the_cache(nats_server, nats_client):
    async with rig_of(nats_server, NatsFormat.JETSTREAM) as rig:
        rig.worker._outside._nats.transport._outbox._max_places = 20
        await rig.ask(8)
        nats_server.stop()
        await rig.until_down()
        await rig.ask(120)
        assert rig.counts.dropped_events > 20
        nats_server.start()

        await until(lambda: replayed(nats_client, rig))
        await rig.ask(8)
        await until(lambda: replayed(nats_client, rig))


class Router:
    """Subscribes to the event plane, and connects again as often as needed."""

    def __init__(self):
        self.caches = [RouterCache() for _ in range(RANKS)]

    async def take(self, message):
        for item in decode_router_events(decode_envelope(message.data).payload):
            self.caches[item.dp_rank].apply(item.event_id, item.event)

    def agrees(self, rig):
        return [cache.blocks for cache in self.caches] == [rig.cached(r) for r in range(RANKS)]


@pytest.fixture
async def router(nats_server):
    router = Router()
    client = await nats.connect(
        nats_server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_ignore
    )
    subject = f"namespace.default-demo.component.backend.endpoint.generate.{KV_EVENTS_TOPIC}"
    await client.subscribe(subject, cb=router.take)
    await client.flush()
    yield router
    await client.close()


async def _ignore(error):
    """A server that is away is what these tests are about."""


async def test_an_event_plane_that_is_restarted_and_hangs_ends_with_the_cache(nats_server, router):
    async with rig_of(nats_server, NatsFormat.EVENT_PLANE) as rig:
        await rig.ask(40)
        await until(lambda: router.agrees(rig))
        nats_server.stop()
        await rig.until_down()
        nats_server.lose_storage()
        await rig.ask(40)
        nats_server.start()
        await rig.ask(40)
        await until(lambda: router.agrees(rig))
        with nats_server.hanging():
            await rig.ask(80)
        await until(lambda: router.agrees(rig))

    await until(lambda: all(not cache.blocks for cache in router.caches))
