"""The JetStream transport against a real server: order, numbers, and what makes losses good."""

import asyncio
import contextlib

import nats
import pytest
from nats.js.errors import NotFoundError
from waiting import PATIENCE_S

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    decode_router_event,
)
from mocker_protocol.names import Component
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.hub import KvEventHub
from mocker_worker.events.jetstream_publisher import JetStreamPublisher

pytestmark = pytest.mark.nats

COMPONENT = Component("dynamo", "backend")
CLEARED = AllBlocksCleared()


def stored(value, parent=None, count=1):
    blocks = tuple(BlockHash(item, item) for item in range(value, value + count))
    return BlockStored(parent, blocks)


SNAPSHOT = [stored(7), stored(8, 7)]


class Rig:
    """A hub with one transport, and the tasks that run it."""

    def __init__(self, server, *, snapshot=SNAPSHOT, num_ranks=1, **options):
        self.connection = NatsConnection(server.url, name="test")
        self.hub = KvEventHub(lambda rank: snapshot, num_ranks)
        self.publisher = JetStreamPublisher(
            self.connection,
            COMPONENT,
            worker_id=5,
            resynchronize=self.hub.resynchronize,
            **options,
        )
        self.hub.attach(self.publisher)
        self.tasks = []

    def start(self):
        self.tasks.append(asyncio.create_task(self.publisher.run()))

    async def pause(self):
        """Stop publishing until the next `start`."""
        task = self.tasks.pop()
        task.cancel()
        await asyncio.wait([task])

    async def until_down(self):
        async with asyncio.timeout(PATIENCE_S):
            while self.connection.is_up:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.01)

    async def until_published(self, count):
        async with asyncio.timeout(PATIENCE_S):
            while self.publisher.published_events < count:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def rig_of(server, **options):
    rig = Rig(server, **options)
    rig.tasks.append(asyncio.create_task(rig.connection.run()))
    await rig.connection.wait_until_up()
    try:
        yield rig
    finally:
        for task in rig.tasks:
            task.cancel()
        await asyncio.wait(rig.tasks)


async def stored_events(client):
    jetstream, name = client.jetstream(), COMPONENT.kv_event_stream
    count = (await jetstream.stream_info(name)).state.messages
    return [
        decode_router_event((await jetstream.get_msg(name, index + 1)).data)
        for index in range(count)
    ]


async def until_stored(client, count):
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(NotFoundError, TimeoutError):
                if len(await stored_events(client)) >= count:
                    return
            await asyncio.sleep(0.01)


def contents(events):
    return [event.event for event in events]


async def test_thousands_of_events_arrive_in_order(nats_server, nats_client):
    async with rig_of(nats_server, num_ranks=2) as rig:
        for value in range(3000):
            rig.hub.publish(value % 2, [BlockRemoved((value,))])
        rig.start()
        await rig.publisher.flush(30)

        events = await stored_events(nats_client)
        assert contents(events) == [BlockRemoved((v,)) for v in range(3000)]
        for rank in (0, 1):
            ids = [event.event_id for event in events if event.dp_rank == rank]
            assert ids == list(range(1500))
        assert rig.publisher.dropped_events == 0
        assert rig.publisher.published_events == 3000


async def test_an_overflow_is_counted_and_made_good_by_a_snapshot(nats_server, nats_client):
    async with rig_of(nats_server, max_queued_events=10) as rig:
        for value in range(13):
            rig.hub.publish(0, [BlockRemoved((value,))])
        assert rig.publisher.dropped_events == 13

        rig.start()
        await rig.until_published(3)
        rig.hub.publish(0, [BlockRemoved((99,))])
        await rig.publisher.flush(20)

        events = await stored_events(nats_client)
        assert contents(events) == [CLEARED, *SNAPSHOT, BlockRemoved((99,))]
        assert [event.event_id for event in events] == [13, 14, 15, 16]
        assert rig.hub.resynchronizations == 1


async def test_an_overflow_of_one_rank_leaves_the_other_alone(nats_server, nats_client):
    async with rig_of(nats_server, max_queued_events=10, num_ranks=2) as rig:
        rig.hub.publish(1, [BlockRemoved((1,)), BlockRemoved((2,))])
        for value in range(13):
            rig.hub.publish(0, [BlockRemoved((value,))])
        rig.start()
        await rig.publisher.flush(20)

        events = await stored_events(nats_client)
        assert [(event.dp_rank, event.event_id) for event in events[:2]] == [(1, 0), (1, 1)]
        assert {event.dp_rank for event in events[2:]} == {0}


async def test_a_snapshot_larger_than_the_queue_is_published_whole(nats_server, nats_client):
    snapshot = [stored(value) for value in range(300)]
    async with rig_of(nats_server, max_queued_events=10, snapshot=snapshot) as rig:
        rig.hub.publish(0, [BlockRemoved((value,)) for value in range(11)])
        rig.start()
        await rig.until_published(1)
        for value in range(5):
            rig.hub.publish(0, [BlockRemoved((value,))])
        await rig.publisher.flush(20)

        events = await stored_events(nats_client)
        assert contents(events) == [
            CLEARED,
            *snapshot,
            *[BlockRemoved((value,)) for value in range(5)],
        ]
        assert rig.hub.resynchronizations == 1


async def publish_as_one_process(server, values):
    async with rig_of(server) as rig:
        rig.hub.start()
        for value in values:
            rig.hub.publish(0, [BlockRemoved((value,))])
        rig.start()
        await rig.publisher.flush(20)
        return rig.hub.resynchronizations


async def test_events_after_a_restart_with_the_same_worker_id_are_not_taken_for_duplicates(
    nats_server, nats_client
):
    assert await publish_as_one_process(nats_server, [1, 2]) == 0
    assert await publish_as_one_process(nats_server, [3, 4, 5]) == 0

    events = await stored_events(nats_client)
    first, second = ([BlockRemoved((v,)) for v in values] for values in ((1, 2), (3, 4, 5)))
    assert contents(events) == [CLEARED, *first, CLEARED, *second]
    assert [event.event_id for event in events] == [0, 1, 2, 0, 1, 2, 3]


async def test_an_event_that_the_stream_takes_for_another_is_made_good_by_a_snapshot(
    nats_server, nats_client, monkeypatch
):
    monkeypatch.setattr(
        "mocker_worker.events.jetstream_publisher.secrets.token_hex", lambda size: "same"
    )
    await publish_as_one_process(nats_server, [])
    async with rig_of(nats_server) as rig:
        rig.hub.publish(0, [BlockRemoved((2,))])
        rig.start()
        await rig.until_published(4)

    events = await stored_events(nats_client)
    assert contents(events) == [CLEARED, CLEARED, *SNAPSHOT]
    assert [event.event_id for event in events] == [0, 1, 2, 3]


async def test_a_batch_that_is_sent_again_starts_nothing_anew(
    nats_server, nats_client, monkeypatch
):
    with monkeypatch.context() as losing_acks:
        losing_acks.setattr(
            "mocker_worker.events.jetstream_publisher._is_acknowledged", lambda ack: False
        )
        async with rig_of(nats_server) as rig:
            rig.hub.publish(0, [BlockRemoved((1,))])
            rig.start()
            await until_stored(nats_client, 1)
            losing_acks.undo()
            rig.hub.publish(0, [BlockRemoved((2,))])
            await rig.publisher.flush(20)

    assert contents(await stored_events(nats_client)) == [BlockRemoved((1,)), BlockRemoved((2,))]


async def test_a_stream_made_anew_by_somebody_else_is_told_everything(nats_server):
    async with rig_of(nats_server) as rig:
        rig.hub.start()
        rig.start()
        await rig.publisher.flush(20)
        await rig.pause()
        nats_server.stop()
        await rig.until_down()
        nats_server.lose_storage()
        nats_server.start()
        await rig.connection.wait_until_up()
        client = await nats.connect(nats_server.url)
        await fill_new_stream(client, 5)
        rig.start()
        await rig.until_published(4)

        events = await stored_events(client)
        await client.close()
        assert contents(events[5:]) == [CLEARED, *SNAPSHOT]


async def fill_new_stream(client, count):
    """Let another worker be the first in the new stream, and further ahead than ours was."""
    jetstream, name = client.jetstream(), COMPONENT.kv_event_stream
    await jetstream.add_stream(name=name, subjects=[f"{name}.*"], max_age=3600.0)
    for _ in range(count):
        await jetstream.publish(
            COMPONENT.kv_event_subject, b'{"worker_id":9,"event":{"event_id":0,"data":"cleared"}}'
        )


async def test_a_server_that_hangs_gets_nothing_twice_and_everything_in_the_end(
    nats_server, nats_client, monkeypatch
):
    monkeypatch.setattr("mocker_worker.events.jetstream_publisher._ACK_TIMEOUT_S", 0.1)
    monkeypatch.setattr("mocker_worker.events.jetstream_publisher._RETRY_S", 0.01)
    async with rig_of(nats_server) as rig:
        rig.hub.start()
        rig.start()
        await rig.publisher.flush(20)
        sent_before = rig.connection._client.stats["out_msgs"]
        with nats_server.hanging():
            rig.hub.publish(0, [stored(value) for value in range(500)])
            await until_asked(rig.connection)
            rig.hub.publish(0, [BlockRemoved((0,))])
            assert rig.connection._client.stats["out_msgs"] - sent_before < 300
        await rig.publisher.flush(20)

        events = await stored_events(nats_client)
        assert contents(events) == [
            CLEARED,
            *[stored(value) for value in range(500)],
            BlockRemoved((0,)),
        ]
        assert rig.publisher.dropped_events == 0


async def until_asked(connection):
    """Wait until the publisher waits for the server rather than to send again."""
    async with asyncio.timeout(PATIENCE_S):
        while connection._num_asked == connection._num_echoed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_is_withdrawn_at_the_end_of_an_overflow_reaches_the_stream(
    nats_server, nats_client
):
    async with rig_of(nats_server, max_queued_events=10) as rig:
        rig.hub.publish(0, [BlockRemoved((value,)) for value in range(11)])
        rig.hub.withdraw()
        rig.hub.publish(0, [stored(3)])
        rig.start()
        await rig.publisher.flush(20)

        events = await stored_events(nats_client)
        assert [(event.event_id, event.event) for event in events] == [(11, CLEARED)]


async def test_a_withdrawal_that_a_new_stream_lost_is_told_again(nats_server):
    async with rig_of(nats_server) as rig:
        rig.hub.start()
        rig.hub.publish(0, [stored(1)])
        rig.start()
        await rig.publisher.flush(20)
        nats_server.stop()
        await rig.until_down()
        nats_server.lose_storage()
        rig.hub.withdraw()
        nats_server.start()
        await rig.connection.wait_until_up()
        await rig.publisher.flush(20)

        client = await nats.connect(nats_server.url)
        events = await stored_events(client)
        await client.close()
        assert [(event.event_id, event.event) for event in events] == [(3, CLEARED)]


async def test_long_prompts_of_an_outage_are_bounded_in_memory_and_made_good(
    nats_server, nats_client
):
    long = [stored(100_000 * value, count=1024) for value in range(1, 200)]
    async with rig_of(nats_server) as rig:
        for event in long:
            rig.hub.publish(0, [event])
            assert len(rig.publisher._outbox) <= 128
        assert rig.publisher.dropped_events > 0
        rig.start()
        await rig.publisher.flush(20)

        events = await stored_events(nats_client)
        assert contents(events)[-3:] == [CLEARED, *SNAPSHOT]


async def test_a_stream_that_takes_no_more_is_said_once_and_gets_everything_in_the_end(
    nats_server, nats_client, monkeypatch, caplog
):
    monkeypatch.setattr("mocker_worker.events.jetstream_publisher._RETRY_S", 0.01)
    jetstream, name = nats_client.jetstream(), COMPONENT.kv_event_stream
    limits = {"name": name, "subjects": [f"{name}.*"], "discard": "new"}
    await jetstream.add_stream(**limits, max_msgs=2)
    async with rig_of(nats_server) as rig:
        rig.hub.publish(0, [BlockRemoved((value,)) for value in range(5)])
        rig.start()
        await rig.until_published(2)
        asked = rig.connection._num_asked
        async with asyncio.timeout(PATIENCE_S):
            while rig.connection._num_asked < asked + 3:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.01)
        assert rig.publisher.published_events == 2
        warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert warnings == ["KV events wait: maximum messages exceeded"]

        await jetstream.update_stream(**limits, max_msgs=-1)
        await rig.publisher.flush(20)
        assert contents(await stored_events(nats_client)) == [
            BlockRemoved((value,)) for value in range(5)
        ]
        assert rig.hub.resynchronizations == 0
