"""The event-plane transport against a real server, seen by a subscriber."""

import asyncio
import contextlib

import nats
import pytest
from kv_consumers import RouterCache, StrictCache, blocks_of
from waiting import PATIENCE_S

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.event_plane import (
    KV_EVENTS_TOPIC,
    MAX_EVENTS,
    decode_envelope,
    decode_router_events,
)
from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from mocker_protocol.names import Component
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.envelopes import Envelopes
from mocker_worker.events.event_plane_publisher import EventPlanePublisher
from mocker_worker.events.hub import KvEventHub

pytestmark = pytest.mark.nats

COMPONENT = Component("default-demo", "backend")
SUBJECT = "namespace.default-demo.component.backend.endpoint.generate.kv-events"
CLEARED = AllBlocksCleared()


def stored(value, parent=None, count=1):
    blocks = tuple(BlockHash(item, item) for item in range(value, value + count))
    return BlockStored(parent, blocks)


SNAPSHOT = [stored(7), stored(8, 7)]


class Router:
    """A subscriber that keeps every message and a view of each rank."""

    def __init__(self, cache=StrictCache):
        self.envelopes = []
        self.events = []
        self.caches = {}
        self._make_cache = cache

    async def listen(self, server):
        self.client = await nats.connect(
            server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_ignore
        )
        await self.client.subscribe(SUBJECT, cb=self._take)
        await self.client.flush()

    async def _take(self, message):
        envelope = decode_envelope(message.data)
        self.envelopes.append(envelope)
        for item in decode_router_events(envelope.payload):
            self.events.append(item)
            cache = self.caches.setdefault(item.dp_rank, self._make_cache())
            cache.apply(item.event_id, item.event)

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.01)


async def _ignore(error):
    """A server that is away is what some tests are about."""


@pytest.fixture
async def router(nats_server):
    router = Router()
    await router.listen(nats_server)
    yield router
    await router.client.close()


class Rig:
    def __init__(self, server, *, snapshot=SNAPSHOT, num_ranks=1, **options):
        self.connection = NatsConnection(server.url, name="test")
        self.hub = KvEventHub(lambda rank: snapshot, num_ranks)
        self.envelopes = Envelopes(num_ranks)
        self.publisher = EventPlanePublisher(
            self.connection,
            COMPONENT,
            worker_id=5,
            envelopes=self.envelopes,
            resynchronize=self.hub.resynchronize,
            **options,
        )
        self.hub.attach(self.publisher)
        self.tasks = []

    def start(self):
        self.tasks.append(asyncio.create_task(self.publisher.run()))

    async def until_down(self):
        async with asyncio.timeout(PATIENCE_S):
            while self.connection.is_up:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def rig_of(server, **options):
    rig = Rig(server, **options)
    rig.tasks.append(asyncio.create_task(rig.connection.run()))
    try:
        yield rig
    finally:
        for task in rig.tasks:
            task.cancel()
        await asyncio.wait(rig.tasks)


async def test_events_before_the_first_connection_are_kept(nats_server, router):
    async with rig_of(nats_server) as rig:
        rig.hub.start()
        rig.hub.publish(0, [stored(1)])
        rig.start()
        await router.until(lambda: len(router.events) >= 2)

    assert [(e.event_id, e.event) for e in router.events] == [(0, CLEARED), (1, stored(1))]
    assert rig.hub.resynchronizations == 0
    assert rig.publisher.dropped_events == 0


async def test_each_rank_has_a_publisher_whose_sequence_begins_at_0(nats_server, router):
    async with rig_of(nats_server, num_ranks=2) as rig:
        rig.hub.start()
        rig.start()
        for value in range(20):
            rig.hub.publish(value % 2, [stored(value)])
            await rig.publisher.flush(10)
        await router.until(lambda: len(router.events) >= 22)

    for rank, publisher_id in enumerate(rig.envelopes.publisher_ids):
        own = [item for item in router.envelopes if item.publisher_id == publisher_id]
        assert [item.sequence for item in own] == list(range(len(own)))
        ranks = {e.dp_rank for item in own for e in decode_router_events(item.payload)}
        assert ranks == {rank}
    assert len(set(rig.envelopes.publisher_ids)) == 2
    assert {item.topic for item in router.envelopes} == {KV_EVENTS_TOPIC}


async def test_messages_keep_to_the_limits_and_the_order(nats_server, router):
    long = [stored(100_000 * value, count=1000) for value in range(1, 20)]
    short = [stored(value) for value in range(1000)]
    async with rig_of(nats_server) as rig:
        rig.hub.publish(0, [*short, *long])
        rig.start()
        await router.until(lambda: len(router.events) >= 1019)

    assert [item.event for item in router.events] == [*short, *long]
    for envelope in router.envelopes:
        events = decode_router_events(envelope.payload)
        assert len(events) <= MAX_EVENTS
        assert sum(len(item.event.blocks) for item in events) <= 8192
    assert len(router.envelopes) < 20


async def test_a_connection_made_again_begins_with_cleared_and_a_snapshot(
    nats_server, router, monkeypatch
):
    monkeypatch.setattr("mocker_worker.events.event_plane_publisher._LATE_ROUTERS_S", 0.5)
    router._make_cache = RouterCache
    async with rig_of(nats_server) as rig:
        rig.hub.start()
        rig.start()
        await router.until(lambda: router.events)
        nats_server.stop()
        await rig.until_down()
        rig.hub.publish(0, [stored(5)])
        nats_server.start()
        await router.until(lambda: router.caches[0].blocks == {7, 8})
        await router.until(lambda: rig.hub.resynchronizations == 2)
        rig.hub.publish(0, [stored(9, 8)])
        await router.until(lambda: router.caches[0].blocks == {7, 8, 9})

    assert [item.event for item in router.events[-4:]] == [CLEARED, *SNAPSHOT, stored(9, 8)]
    assert rig.publisher.dropped_events > 0


async def test_a_server_that_hangs_is_told_anew_if_the_queue_overflows(nats_server, router):
    snapshot = [stored(value) for value in range(100)]
    async with rig_of(nats_server, max_queued_events=20, snapshot=snapshot) as rig:
        rig.hub.start()
        rig.start()
        await router.until(lambda: router.events)
        with nats_server.hanging():
            rig.hub.publish(0, [stored(1000)])
            await router.until(lambda: rig.connection._num_asked > rig.connection._num_echoed)
            for value in range(1001, 1100):
                rig.hub.publish(0, [stored(value)])
            assert rig.publisher.dropped_events > 0
        await router.until(lambda: router.caches[0].blocks == blocks_of(snapshot))
        rig.hub.publish(0, [BlockRemoved((3,))])
        await router.until(lambda: router.caches[0].blocks == blocks_of(snapshot) - {3})

    assert rig.hub.resynchronizations == 1


async def test_the_withdrawal_is_flushed(nats_server, router):
    async with rig_of(nats_server, num_ranks=2) as rig:
        rig.hub.publish(0, [stored(1)])
        rig.hub.publish(1, [stored(1)])
        rig.start()
        await rig.connection.wait_until_up()
        rig.hub.withdraw()
        await rig.publisher.flush(10)
        await router.until(lambda: len(router.events) >= 4)

    assert [cache.blocks for cache in router.caches.values()] == [set(), set()]
    assert rig.publisher.published_events == 4
