"""The ZMQ publisher on real sockets: frames, replay, failures, its end."""

import asyncio
import contextlib
import random

import pytest
import uvloop
import zmq
import zmq.asyncio
from waiting import PATIENCE_S
from zmq_consumers import END, consumer_context, running

from mocker_protocol.block_hash import hash_blocks
from mocker_protocol.kv_events import AllBlocksCleared, BlockStored
from mocker_protocol.zmq_events import decode_batch
from mocker_worker.events.hub import NumberedEvent
from mocker_worker.events.zmq_options import ZmqOptions
from mocker_worker.events.zmq_publisher import ZmqKvPublisher
from mocker_worker.events.zmq_replay import MAX_KEPT_BYTES

TOKENS = list(range(1, 9))
STORED = BlockStored(None, tuple(hash_blocks(TOKENS, 4)), TOKENS)
FREE = ZmqOptions(endpoint="tcp://*:0", replay_endpoint="tcp://*:0")


def publisher_of(options=FREE, **settings):
    return ZmqKvPublisher(options, **{"dp_size": 1, "model_name": "mock"} | settings)


@contextlib.asynccontextmanager
async def running_publisher(options=FREE, **settings):
    publisher = publisher_of(options, **settings)
    async with running(publisher):
        yield publisher


def numbered(*events, dp_rank=0, first_id=0):
    return [NumberedEvent(dp_rank, number, event) for number, event in enumerate(events, first_id)]


def request_of(start):
    return [b"", start.to_bytes(8, "big")]


@pytest.fixture
def context():
    with consumer_context() as context:
        yield context


@pytest.fixture
def connect(context):
    """Open a socket that is closed in the end."""
    with contextlib.ExitStack() as sockets:

        def connect(kind, endpoint, **options):
            socket = sockets.enter_context(context.socket(kind))
            for name, value in options.items():
                setattr(socket, name, value)
            if kind == zmq.SUB:
                socket.subscribe("")
            socket.connect(endpoint)
            return socket

        yield connect


async def replayed(socket, start):
    """Ask for a replay; return its messages without the end marker."""
    await socket.send_multipart(request_of(start))
    messages = []
    async with asyncio.timeout(PATIENCE_S):
        while (frames := await socket.recv_multipart())[2] != END:
            messages.append(frames)
    assert frames == [b"", b"", END, b""]
    return messages


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_events_are_numbered_messages_on_either_event_loop(loop_factory):
    async def scenario():
        options = ZmqOptions(endpoint="tcp://*:0", replay_endpoint="tcp://*:0", topic="kv@{model}")
        with consumer_context() as context:
            async with running_publisher(options) as publisher:
                [source] = publisher.sources()
                with context.socket(zmq.SUB) as live, context.socket(zmq.DEALER) as dealer:
                    live.subscribe("")
                    live.connect(source["endpoint"])
                    dealer.connect(source["replay_endpoint"])
                    heard = asyncio.ensure_future(live.recv_multipart())
                    next_id = 0
                    while not heard.done():
                        publisher.publish(numbered(STORED, first_id=next_id))
                        next_id += 1
                        await asyncio.sleep(0.01)
                    topic, sequence, payload = heard.result()
                    messages = await replayed(dealer, 0)
        assert topic == b"kv@mock"
        assert decode_batch(payload).events[0].token_ids == tuple(TOKENS)
        assert len(messages) == publisher.published_events == next_id
        number = int.from_bytes(sequence, "big")
        assert messages[number] == [b"", topic, sequence, payload]

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


async def test_a_replay_begins_where_it_is_asked_to_and_knows_the_latest_steps_only(connect):
    options = ZmqOptions(endpoint="tcp://*:0", replay_endpoint="tcp://*:0", buffer_steps=5)
    async with running_publisher(options) as publisher:
        publisher.publish(numbered(*[STORED] * 8))
        dealer = connect(zmq.DEALER, publisher.sources()[0]["replay_endpoint"])
        for start, first in [(0, 3), (3, 3), (6, 6), (7, 7), (8, 8), (2**64 - 1, 8)]:
            numbers = [int.from_bytes(m[2], "big") for m in await replayed(dealer, start)]
            assert numbers == list(range(first, 8))


async def test_what_is_kept_for_replays_is_bounded_in_bytes(connect):
    async with running_publisher() as publisher:
        tokens = range(100_000, 104_096)
        large = BlockStored(None, tuple(hash_blocks(tokens, 64)), tokens)
        publisher.publish(numbered(*[large] * 2000))
        dealer = connect(zmq.DEALER, publisher.sources()[0]["replay_endpoint"])
        messages = await replayed(dealer, 0)
        kept_bytes = sum(len(payload) for *_, payload in messages)
        assert MAX_KEPT_BYTES - 50_000 < kept_bytes <= MAX_KEPT_BYTES
        assert int.from_bytes(messages[-1][2], "big") == 1999


async def test_a_request_socket_gets_an_answer_as_from_vllm(connect):
    async with running_publisher() as publisher:
        client = connect(zmq.REQ, publisher.sources()[0]["replay_endpoint"])
        await client.send((0).to_bytes(8, "big"))
        async with asyncio.timeout(PATIENCE_S):
            assert await client.recv_multipart() == [b"", END, b""]


async def test_malformed_requests_are_ignored(connect):
    rng = random.Random(7)
    async with running_publisher() as publisher:
        publisher.publish(numbered(STORED))
        dealer = connect(zmq.DEALER, publisher.sources()[0]["replay_endpoint"])
        for _ in range(200):
            frames = [rng.randbytes(rng.randrange(0, 30)) for _ in range(rng.randrange(1, 6))]
            if len(frames) != 2 or frames[0]:
                await dealer.send_multipart(frames)
        await dealer.send_multipart([b"", b""])
        await dealer.send_multipart([b"", b"123456789"])
        assert len(await replayed(dealer, 0)) == 1


async def test_a_request_that_is_far_too_long_ends_only_its_connection(connect):
    async with running_publisher() as publisher:
        endpoint = publisher.sources()[0]["replay_endpoint"]
        await connect(zmq.DEALER, endpoint).send_multipart([b"", b"x" * 1_000_000])
        assert await replayed(connect(zmq.DEALER, endpoint), 0) == []


async def test_a_whole_replay_reaches_a_client_that_begins_to_read_late(connect):
    async with running_publisher() as publisher:
        long = BlockStored(None, tuple(hash_blocks(range(512), 4)), range(512))
        publisher.publish(numbered(*[long] * 2000))
        dealer = connect(zmq.DEALER, publisher.sources()[0]["replay_endpoint"], rcvhwm=1, rcvbuf=1)
        await dealer.send_multipart(request_of(0))
        other = connect(zmq.DEALER, publisher.sources()[0]["replay_endpoint"])
        assert len(await replayed(other, 1990)) == 10
        count = 0
        async with asyncio.timeout(PATIENCE_S):
            while (await dealer.recv_multipart())[2] != END:
                count += 1
        assert count == 2000


async def test_a_subscriber_that_does_not_read_holds_nobody_up(connect):
    options = ZmqOptions(endpoint="tcp://*:0", hwm=10)
    async with running_publisher(options) as publisher:
        subscriber = connect(zmq.SUB, publisher.sources()[0]["endpoint"], rcvhwm=1, rcvbuf=4096)
        next_id = 0
        while not await subscriber.poll(10):
            publisher.publish(numbered(AllBlocksCleared(), first_id=next_id))
            next_id += 1
        tokens = range(4000)
        large = BlockStored(None, tuple(hash_blocks(tokens, 4)), tokens)
        publisher.publish(numbered(*[large] * 2000, first_id=next_id))
        assert publisher.published_events == next_id + 2000


def test_sources_say_where_each_rank_can_be_reached():
    options = ZmqOptions(
        endpoint="tcp://*:0", replay_endpoint="tcp://0.0.0.0:0", topic="kv@{pod_ip}@{model}"
    )
    publisher = publisher_of(options, dp_size=2, pod_ip="10.0.0.7")
    publisher.close()
    for rank, source in enumerate(publisher.sources()):
        assert source.pop("endpoint").startswith("tcp://10.0.0.7:")
        assert source.pop("replay_endpoint").startswith("tcp://10.0.0.7:")
        assert source == {
            "data_parallel_rank": rank,
            "publisher": "zmq",
            "topic": "kv@10.0.0.7@mock",
            "buffer_steps": 10_000,
            "hwm": 100_000,
        }


def test_sources_of_a_publisher_that_connects_name_the_subscriber():
    publisher = publisher_of(ZmqOptions(endpoint="tcp://127.0.0.1:5557"), dp_size=2)
    publisher.close()
    endpoints = [source["endpoint"] for source in publisher.sources()]
    assert endpoints == ["tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"]
    assert publisher.sources()[0]["replay_endpoint"] is None


async def test_ipv6_works_if_the_endpoint_asks_for_it(connect):
    options = ZmqOptions(endpoint="tcp://[::]:0", replay_endpoint="tcp://[::]:0")
    try:
        publisher = publisher_of(options, pod_ip="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    async with running(publisher):
        publisher.publish(numbered(STORED))
        [source] = publisher.sources()
        assert source["endpoint"].startswith("tcp://[::1]:")
        dealer = connect(zmq.DEALER, source["replay_endpoint"], ipv6=True)
        assert len(await replayed(dealer, 0)) == 1


def test_an_address_in_use_is_an_error_that_says_so_and_leaves_nothing_open():
    first = publisher_of()
    taken = first.sources()[0]["endpoint"].replace("127.0.0.1", "*")
    try:
        with pytest.raises(
            OSError, match=r"KV events: cannot use tcp://\*:.*Address already in use"
        ):
            publisher_of(ZmqOptions(endpoint=taken, replay_endpoint="tcp://*:0"))
    finally:
        first.close()


def test_a_topic_that_cannot_be_filled_in_is_an_error():
    with pytest.raises(ValueError, match=r"topic: \{pod_name\} is not known here"):
        publisher_of(ZmqOptions(topic="kv@{pod_name}"))


async def test_flush_hands_over_what_a_subscriber_has_not_taken_yet(connect):
    publisher = publisher_of()
    run = asyncio.create_task(publisher.run())
    subscriber = connect(zmq.SUB, publisher.sources()[0]["endpoint"])
    next_id = 0
    while not await subscriber.poll(10):
        publisher.publish(numbered(AllBlocksCleared(), first_id=next_id))
        next_id += 1
    publisher.publish(numbered(*[STORED] * 500, first_id=next_id))
    await publisher.flush(5.0)
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()
    last = b""
    async with asyncio.timeout(PATIENCE_S):
        while last != (next_id + 499).to_bytes(8, "big"):
            _, last, _ = await subscriber.recv_multipart()


async def test_events_after_the_end_are_counted_as_lost():
    publisher = publisher_of()
    await publisher.flush(1.0)
    publisher.publish(numbered(STORED))
    assert (publisher.published_events, publisher.dropped_events) == (0, 1)


async def test_an_end_in_the_middle_of_a_replay_is_clean(connect):
    publisher = publisher_of()
    run = asyncio.create_task(publisher.run())
    publisher.publish(numbered(*[STORED] * 10_000))
    dealer = connect(zmq.DEALER, publisher.sources()[0]["replay_endpoint"], rcvhwm=1, rcvbuf=1)
    await dealer.send_multipart(request_of(0))
    await dealer.recv_multipart()
    await publisher.flush(1.0)
    run.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([run])
    assert run.cancelled()
