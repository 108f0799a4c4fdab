import asyncio
import json

import msgspec
import pytest
from nats.js.errors import KeyNotFoundError, NotFoundError, ServiceUnavailableError
from waiting import until

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.event_plane import (
    KV_EVENTS_TOPIC,
    Envelope,
    decode_envelope,
    encode_envelope,
)
from mocker_protocol.forward_pass import TOPIC, decode_forward_pass
from mocker_protocol.kv_events import AllBlocksCleared, BlockStored, decode_router_event
from mocker_protocol.load_report import LOAD_TOPIC, decode_active_load, decode_load_event
from mocker_protocol.names import Component, worker_id_from_uid
from mocker_protocol.registration import BUCKET, WorkerState, decode_registration
from mocker_worker.engine import EngineCore, Request

pytestmark = pytest.mark.nats

BACKEND = Component("default-demo", "backend")
PREFILL = Component("default-demo", "prefill")
WORKER_ID = worker_id_from_uid("uid-1")
KEY = f"default-demo.backend.{WORKER_ID:x}"
READY = "STARTING -> READY"


async def stored_events(client, component):
    """Everything in the component's stream, decoded; nothing while NATS is away."""
    name = component.kv_event_stream
    jetstream = client.jetstream(timeout=1)
    try:
        state = (await jetstream.stream_info(name)).state
    except (NotFoundError, ServiceUnavailableError, TimeoutError):
        return []
    if state.messages == 0:
        return []
    messages = [
        await jetstream.get_msg(name, sequence)
        for sequence in range(state.first_seq, state.last_seq + 1)
    ]
    return [decode_router_event(message.data) for message in messages]


async def registration(client, key=KEY):
    """The worker's record, None if there is none or NATS is away."""
    try:
        entry = await (await client.jetstream(timeout=1).key_value(BUCKET)).get(key)
    except (KeyNotFoundError, NotFoundError, ServiceUnavailableError, TimeoutError):
        return None
    return decode_registration(entry.value)


async def complete(worker, prompt, max_tokens=5):
    client = await worker.client()
    async with client:
        return await client.completions.create(model="mock", prompt=prompt, max_tokens=max_tokens)


async def test_kv_events_are_those_of_the_engine_numbered_without_gaps(
    nats_server, nats_client, start_worker
):
    small = {"num_gpu_blocks": 8, "seed": 7}
    worker = await start_worker("--nats-url", nats_server.url, engine=small)
    await worker.logged(READY)
    engine = EngineCore(EngineArgs(block_size=4, **small))
    expected = [AllBlocksCleared()]
    client = await worker.client()
    for index in range(4):
        prompt = list(range(1000 * index, 1000 * index + 20))
        await client.completions.create(
            model="mock", prompt=prompt, max_tokens=6, extra_headers={"X-Request-Id": f"r{index}"}
        )
        engine.add_request(Request(f"r{index}", prompt, 6))
        while (output := engine.step()) is not None:
            expected += output.kv_events
    await client.close()

    async def all_stored():
        events = await stored_events(nats_client, BACKEND)
        return events if len(events) >= len(expected) else None

    events = await until(all_stored)
    assert [event.event for event in events] == expected
    assert [event.event_id for event in events] == list(range(len(expected)))
    assert {(event.worker_id, event.dp_rank) for event in events} == {(WORKER_ID, 0)}
    config = (await nats_client.jetstream().stream_info(BACKEND.kv_event_stream)).config
    assert config.subjects == [f"{BACKEND.kv_event_stream}.*"]
    assert config.max_age == 3600


async def test_blocks_are_withdrawn_when_the_worker_ends(nats_server, nats_client, start_worker):
    worker = await start_worker("--nats-url", nats_server.url, "--data-parallel-size", "2")
    await worker.logged(READY)
    await complete(worker, list(range(20)))
    worker.terminate()

    assert await worker.exit_code() == 0
    events = await stored_events(nats_client, BACKEND)
    for rank in (0, 1):
        told = [event for event in events if event.dp_rank == rank]
        assert [event.event_id for event in told] == list(range(len(told)))
        assert told[0].event == told[-1].event == AllBlocksCleared()
    assert len(events) > 4


async def test_decode_workers_publish_no_kv_events(nats_server, nats_client, start_worker):
    worker = await start_worker("--nats-url", nats_server.url, "--is-decode-worker")
    await worker.logged(READY)
    await complete(worker, list(range(20)))
    worker.terminate()

    assert await worker.exit_code() == 0
    assert await stored_events(nats_client, BACKEND) == []


async def test_a_registration_is_put_drained_and_deleted(nats_server, nats_client, start_worker):
    slow = {"timing_model": {"type": "fixed", "prefill_ms": 1.0, "decode_ms": 10.0}}
    worker = await start_worker("--nats-url", nats_server.url, engine=slow)
    await worker.logged(READY)
    record = await registration(nats_client)
    url = await worker.listening()
    client = await worker.client()
    stream = await client.completions.create(model="mock", prompt="Hi", max_tokens=100, stream=True)
    chunks = [await anext(aiter(stream))]
    worker.terminate()

    async def draining():
        return (await registration(nats_client)).state is WorkerState.DRAINING

    await until(draining)
    chunks += [chunk async for chunk in stream]
    await client.close()

    assert (record.state, record.url, record.worker_id) == (WorkerState.READY, url, WORKER_ID)
    assert len(chunks) == 100
    assert chunks[-1].choices[0].finish_reason == "length"
    assert await worker.exit_code() == 0
    assert await registration(nats_client) is None


async def test_a_worker_waits_for_a_nats_that_is_not_there_yet(nats_server, start_worker):
    nats_server.stop()
    worker = await start_worker("--nats-url", nats_server.url)
    await worker.logged("cannot reach NATS")
    await worker.listening()
    assert not any(READY in line for line in worker.lines)

    nats_server.start()
    await worker.logged(READY)
    assert len([line for line in worker.lines if "cannot reach NATS" in line]) == 1


async def test_a_worker_stops_while_it_waits_for_nats(nats_server, start_worker):
    nats_server.stop()
    worker = await start_worker("--nats-url", nats_server.url)
    await worker.logged("cannot reach NATS")
    worker.terminate()

    assert await worker.exit_code() == 0


async def test_events_of_an_outage_arrive_when_nats_is_back(nats_server, nats_client, start_worker):
    worker = await start_worker("--nats-url", nats_server.url)
    await worker.logged(READY)
    await complete(worker, list(range(20)))
    nats_server.stop()
    for index in range(1, 6):
        await complete(worker, list(range(1000 * index, 1000 * index + 20)))
    nats_server.start()
    await complete(worker, list(range(9000, 9020)))

    def has_block_of_last(events):
        return len([e for e in events if getattr(e.event, "parent_hash", 0) is None]) >= 7

    async def caught_up():
        events = await stored_events(nats_client, BACKEND)
        return events if has_block_of_last(events) else None

    events = await until(caught_up)
    assert [event.event_id for event in events] == list(range(len(events)))

    async def registered():
        return await registration(nats_client)

    assert (await until(registered)).state is WorkerState.READY


async def test_a_nats_that_lost_its_storage_is_told_everything_anew(
    nats_server, nats_client, start_worker
):
    worker = await start_worker("--nats-url", nats_server.url)
    await worker.logged(READY)
    await complete(worker, list(range(20)))

    async def some():
        return len(await stored_events(nats_client, BACKEND)) >= 3

    await until(some)
    nats_server.stop()
    nats_server.lose_storage()
    nats_server.start()

    async def resynchronized():
        events = await stored_events(nats_client, BACKEND)
        cleared = [i for i, e in enumerate(events) if e.event == AllBlocksCleared()]
        return (events, cleared[-1]) if cleared and len(events) > cleared[-1] + 1 else None

    events, start = await until(resynchronized)
    roots = [e.event.parent_hash for e in events[start + 1 :] if isinstance(e.event, BlockStored)]
    assert roots == [None]
    ids = [event.event_id for event in events]
    assert ids == list(range(ids[0], ids[0] + len(ids)))

    async def registered():
        return await registration(nats_client)

    assert await until(registered)


async def test_each_pass_is_published_once(nats_server, nats_client, start_worker):
    subscription = await nats_client.subscribe(BACKEND.endpoint_subject(TOPIC))
    await nats_client.flush()
    worker = await start_worker("--nats-url", nats_server.url)
    await worker.logged(READY)
    await complete(worker, list(range(20)), max_tokens=6)

    passes = []
    while sum(1 for item in passes if item.wall_time > 0) < 6:
        message = await subscription.next_msg(timeout=10)
        passes.append(decode_forward_pass(decode_envelope(message.data).payload))
    message = await subscription.next_msg(timeout=10)
    heartbeat = decode_forward_pass(decode_envelope(message.data).payload)

    real = [item for item in passes if item.wall_time > 0]
    assert [item.scheduled_requests.sum_prefill_tokens for item in real] == [20, 0, 0, 0, 0, 0]
    assert [item.scheduled_requests.num_decode_requests for item in real] == [0, 1, 1, 1, 1, 1]
    assert real[0].worker_id == str(WORKER_ID)
    assert heartbeat.wall_time == 0
    assert heartbeat.counter_id == passes[-1].counter_id + 1


async def test_events_are_printed_as_lines(nats_server, start_worker, run_events):
    worker = await start_worker("--nats-url", nats_server.url, "--is-prefill-worker")
    await worker.logged(READY)
    await complete(worker, list(range(20)))
    flags = ("--nats-url", nats_server.url, "--from-start")

    code, lines = await run_events(*flags, "--count", "2")
    assert code == 0
    assert lines[0] == f"prefill worker={WORKER_ID:016x} rank=0 id=0 cleared"
    assert lines[1].startswith(f"prefill worker={WORKER_ID:016x} rank=0 id=1 stored blocks=5")

    code, lines = await run_events(*flags, "--no-follow", "--output", "json")
    assert code == 0
    events = [json.loads(line) for line in lines]
    assert [event["router_event"]["event"]["event_id"] for event in events] == [0, 1]
    assert events[0]["component"] == "prefill"


async def test_events_of_the_event_plane_are_printed_as_they_come(
    nats_server, start_worker, run_events
):
    flags = ("--nats-url", nats_server.url)
    worker = await start_worker(*flags, "--kv-events-nats-format", "dynamo-event-plane")
    await worker.logged(READY)
    event_plane = (*flags, "--format", "dynamo-event-plane", "--component", "backend")
    as_text = asyncio.create_task(run_events(*event_plane, "--count", "2"))
    as_json = asyncio.create_task(run_events(*event_plane, "--count", "2", "--output", "json"))
    start = 0
    while not (as_text.done() and as_json.done()):
        start += 100
        await complete(worker, list(range(start, start + 20)))

    code, lines = await as_text
    assert code == 0
    assert all(line.startswith(f"backend worker={WORKER_ID:016x} rank=0 id=") for line in lines)
    code, lines = await as_json
    assert code == 0
    events = [json.loads(line)["router_event"] for line in lines]
    first = events[0]["event"]["event_id"]
    assert [event["event"]["event_id"] for event in events] == [first, first + 1]
    assert {event["storage_tier"] for event in events} == {"device"}


async def test_the_event_plane_has_no_events_of_before(nats_server, run_events):
    flags = ("--nats-url", nats_server.url, "--format", "dynamo-event-plane")
    assert await run_events(*flags, "--from-start") == (2, [])
    assert await run_events(*flags, "--no-follow") == (2, [])


@pytest.mark.parametrize(
    ("nats_format", "subject"),
    [
        ("dynamo-jetstream", BACKEND.namespace_subject(LOAD_TOPIC)),
        ("dynamo-event-plane", BACKEND.endpoint_subject(LOAD_TOPIC)),
    ],
)
async def test_the_load_is_told_when_it_changes(
    nats_server, nats_client, start_worker, nats_format, subject
):
    subscription = await nats_client.subscribe(subject)
    await nats_client.flush()
    worker = await start_worker(
        "--nats-url", nats_server.url, "--kv-events-nats-format", nats_format
    )
    await worker.logged(READY)
    await complete(worker, list(range(20)), max_tokens=6)

    used_blocks = []
    while not used_blocks or used_blocks[-1] != 0 or max(used_blocks) == 0:
        message = await subscription.next_msg(timeout=10)
        if nats_format == "dynamo-jetstream":
            data = decode_load_event(message.data).data
            assert data.kv_stats.kv_total_blocks == 16384
            assert data.worker_stats.request_active_slots == (data.kv_stats.kv_active_blocks > 0)
            used_blocks.append(data.kv_stats.kv_active_blocks)
        else:
            load = decode_active_load(decode_envelope(message.data).payload)
            used_blocks.append(load.kv_used_blocks)
    assert max(used_blocks) == 7


async def test_events_of_nobody_are_no_lines(nats_server, run_events):
    assert await run_events("--nats-url", nats_server.url, "--no-follow") == (0, [])


async def test_events_without_nats_fail(nats_server, run_events):
    nats_server.stop()

    assert await run_events("--nats-url", nats_server.url, "--no-follow") == (1, [])


async def test_events_without_jetstream_fail(nats_server, run_events):
    nats_server.stop()
    nats_server.start(jetstream=False)

    for flag in ("--no-follow", "--from-start"):
        assert await run_events("--nats-url", nats_server.url, flag) == (1, [])


async def test_event_plane_events_that_json_cannot_say_are_printed(
    nats_server, nats_client, run_events
):
    event = {
        "worker_id": 1,
        "storage_tier": "device",
        "event": {"event_id": 0, "data": "cleared", "dp_rank": 0},
        "extra": {b"key": b"\xff", "time": msgspec.msgpack.Ext(5, b"x")},
    }
    message = encode_envelope(
        Envelope(
            publisher_id=1,
            sequence=0,
            published_at=0,
            topic=KV_EVENTS_TOPIC,
            payload=msgspec.msgpack.encode([event]),
        )
    )
    flags = ("--format", "dynamo-event-plane", "--component", "backend", "--output", "json")
    run = run_events("--nats-url", nats_server.url, *flags, "--count", "1")
    printing = asyncio.create_task(run)
    while not printing.done():
        await nats_client.publish(BACKEND.endpoint_subject(KV_EVENTS_TOPIC), message)
        await asyncio.wait([printing], timeout=0.05)

    code, lines = await printing
    assert code == 0
    assert json.loads(lines[0])["router_event"]["event"] == event["event"]
