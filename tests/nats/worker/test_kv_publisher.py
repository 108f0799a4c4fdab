import asyncio
import contextlib

import pytest
from nats.js.errors import NotFoundError

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    decode_router_event,
)
from mocker_protocol.names import Component
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.kv_publisher import KvEventPublisher

pytestmark = pytest.mark.nats

COMPONENT = Component("dynamo", "backend")
SNAPSHOT = BlockStored(None, (BlockHash(1, 2),))


@contextlib.asynccontextmanager
async def publisher_of(server, **options):
    connection = NatsConnection(server.url, name="test")
    publisher = KvEventPublisher(
        connection, COMPONENT, worker_id=5, snapshot=lambda rank: [SNAPSHOT], **options
    )
    tasks = [asyncio.create_task(connection.run())]

    def start():
        tasks.append(asyncio.create_task(publisher.run()))

    try:
        yield publisher, start
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def stored(client):
    jetstream, name = client.jetstream(), COMPONENT.kv_event_stream
    count = (await jetstream.stream_info(name)).state.messages
    return [
        decode_router_event((await jetstream.get_msg(name, index + 1)).data)
        for index in range(count)
    ]


async def test_thousands_of_events_arrive_in_order(nats_server, nats_client):
    async with publisher_of(nats_server) as (publisher, start):
        for value in range(3000):
            publisher.publish(value % 2, [BlockRemoved((value,))])
        start()
        await publisher.flush(30)

        events = await stored(nats_client)
        assert [event.event for event in events] == [BlockRemoved((v,)) for v in range(3000)]
        for rank in (0, 1):
            ids = [event.event_id for event in events if event.dp_rank == rank]
            assert ids == list(range(1500))
        assert publisher.dropped_events == 0


async def test_an_overflow_is_counted_and_made_good_by_a_snapshot(nats_server, nats_client):
    async with publisher_of(nats_server, max_queued_events=10) as (publisher, start):
        for value in range(13):
            publisher.publish(0, [BlockRemoved((value,))])
        assert publisher.dropped_events == 3

        start()
        async with asyncio.timeout(20):
            while publisher.published_events < 12:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.01)
        publisher.publish(0, [BlockRemoved((99,))])
        await publisher.flush(20)

        events = await stored(nats_client)
        assert [event.event for event in events[10:]] == [
            AllBlocksCleared(),
            SNAPSHOT,
            BlockRemoved((99,)),
        ]
        assert [event.event_id for event in events] == list(range(13))


async def publish_as_one_process(server, values):
    async with publisher_of(server) as (publisher, start):
        for value in values:
            publisher.publish(0, [BlockRemoved((value,))])
        start()
        await publisher.flush(20)


async def test_events_after_a_restart_with_the_same_worker_id_are_not_taken_for_duplicates(
    nats_server, nats_client
):
    await publish_as_one_process(nats_server, [1, 2])
    await publish_as_one_process(nats_server, [3, 4, 5])

    events = await stored(nats_client)
    assert [event.event for event in events] == [BlockRemoved((v,)) for v in (1, 2, 3, 4, 5)]
    assert [event.event_id for event in events] == [0, 1, 0, 1, 2]


async def test_an_event_that_the_stream_takes_for_another_is_made_good_by_a_snapshot(
    nats_server, nats_client, monkeypatch
):
    monkeypatch.setattr("mocker_worker.events.kv_publisher.secrets.token_hex", lambda size: "same")
    await publish_as_one_process(nats_server, [1])
    async with publisher_of(nats_server) as (publisher, start):
        publisher.publish(0, [BlockRemoved((2,))])
        start()
        async with asyncio.timeout(20):
            while publisher.published_events < 3:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.01)

    events = await stored(nats_client)
    assert [event.event for event in events] == [BlockRemoved((1,)), AllBlocksCleared(), SNAPSHOT]
    assert [event.event_id for event in events] == [0, 1, 2]


async def test_a_batch_that_is_sent_again_starts_nothing_anew(
    nats_server, nats_client, monkeypatch
):
    with monkeypatch.context() as losing_acks:
        await publish_twice(nats_server, nats_client, losing_acks)

    assert [e.event for e in await stored(nats_client)] == [BlockRemoved((1,)), BlockRemoved((2,))]


async def publish_twice(server, client, losing_acks):
    """Publish one event whose first acks get lost, then another."""
    losing_acks.setattr("mocker_worker.events.kv_publisher._is_acknowledged", lambda ack: False)
    async with publisher_of(server) as (publisher, start):
        publisher.publish(0, [BlockRemoved((1,))])
        start()
        await until_stored(client, 1)
        losing_acks.undo()
        publisher.publish(0, [BlockRemoved((2,))])
        await publisher.flush(20)


async def until_stored(client, count):
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(NotFoundError):
                if len(await stored(client)) >= count:
                    return
            await asyncio.sleep(0.01)
