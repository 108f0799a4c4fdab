"""Recovery queries on Dynamo's request plane, as its router was seen to send and to take them."""

import json
import struct

import msgspec
import pytest
from request_plane_client import body_of, info_of, request_of

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.event_plane import decode_router_events, encode_single_router_event
from mocker_protocol.kv_events import BlockStored
from mocker_protocol.request_plane import (
    MAX_REQUEST_BYTES,
    RecoveryQuery,
    RequestCutter,
    RequestError,
    decode_query,
    encode_answer,
    encode_error,
    encode_too_new,
    encode_tree_dump,
    publisher_of,
)

PATH = b"abc/dynamo/backend/worker_kv_query_source_1f"


def frames_of(stream):
    """Cut what goes to a router into (control, data)."""
    frames = []
    while stream:
        control, data, checksum = struct.unpack_from(">QQQ", stream)
        assert checksum == 0
        frames.append((stream[24 : 24 + control], stream[24 + control : 24 + control + data]))
        stream = stream[24 + control + data :]
    return frames


@pytest.mark.parametrize("step", [1, 2, 7, 100, 10_000])
def test_requests_are_cut_however_the_bytes_arrive(step):
    stream = request_of(PATH, b"one") + request_of(PATH, b"") + request_of(b"", b"three")
    cutter, requests = RequestCutter(), []
    for start in range(0, len(stream), step):
        requests += cutter.feed(stream[start : start + step])

    assert requests == [(PATH, b"one"), (PATH, b""), (b"", b"three")]
    assert not cutter.is_within_request


def test_a_request_that_has_begun_is_not_over():
    cutter = RequestCutter()
    assert cutter.feed(request_of(PATH, b"body")[:-1]) == []
    assert cutter.is_within_request


def test_a_request_that_says_it_is_too_long_is_not_waited_for():
    head = request_of(PATH, b"")[:-4]
    with pytest.raises(RequestError, match=r"a request of 65537 bytes: 65536 is the most"):
        RequestCutter().feed(head + struct.pack(">I", MAX_REQUEST_BYTES + 1))


def test_the_publisher_is_the_end_of_the_path():
    assert publisher_of(PATH) == 0x1F


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"abc/dynamo/backend/generate",
        b"abc/dynamo/backend/worker_kv_query_source_",
        b"abc/dynamo/backend/worker_kv_query_source_xyz",
        b"abc/dynamo/backend/worker_kv_query_source_-1",
        b"abc/dynamo/backend/worker_kv_query_source_" + b"f" * 17,
        b"abc/dynamo/backend/not_worker_kv_query_source_1",
        b"\xff\xfe",
    ],
)
def test_other_endpoints_are_refused(path):
    with pytest.raises(RequestError):
        publisher_of(path)


def test_a_query_says_what_is_wanted_and_where():
    body = body_of({"worker_id": 2**64 - 1, "dp_rank": 1, "start_event_id": 7, "end_event_id": 9})
    query, address = decode_query(body)

    assert query == RecoveryQuery(2**64 - 1, 1, 7, 9)
    assert query.is_recovery
    assert address == ("127.0.0.1", 4711, "subject-1")


def test_an_address_may_be_one_of_ipv6():
    _, address = decode_query(body_of(connection=info_of("[fe80::1]:80")))
    assert address[:2] == ("fe80::1", 80)


@pytest.mark.parametrize("kind", ["status", {"status": {"expected": {}}}, None, 7])
def test_other_kinds_of_queries_are_told_apart(kind):
    query, _ = decode_query(body_of({"worker_id": 1, "dp_rank": 0, "kind": kind}))
    assert not query.is_recovery


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(23),
        body_of() + b"x",
        body_of()[:-1],
        struct.pack(">QQQ", 2**64 - 1, 25, 0),
        body_of(payload_codec="json"),
        body_of(connection={"transport": "nats", "info": "{}"}),
        body_of(connection={"transport": "tcp_server", "info": "no JSON"}),
        body_of(connection=info_of("router.example:80")),
        body_of(connection=info_of("127.0.0.1")),
        body_of(connection=info_of("127.0.0.1:0")),
        body_of(connection=info_of("127.0.0.1:65536")),
        body_of(connection=info_of("127.0.0.1:-1")),
        body_of(connection=info_of("127.0.0.1:²")),
        body_of(connection=info_of(":80")),
        body_of({}),
        body_of({"worker_id": "1", "dp_rank": 0}),
        body_of([1, 2]),
        body_of(control=b"\xff" * 40),
        body_of(control=b"[" * 1000),
        body_of(data=b"\x91" * 1000),
    ],
)
def test_what_is_no_query_is_refused(body):
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the parsers say
        decode_query(body)


def test_an_answer_is_framed_as_routers_expect_it():
    frames = frames_of(b"".join(encode_answer("subject-1", encode_error("no"))))

    hello, ready, answer, end, sentinel = frames
    assert (json.loads(hello[0]), hello[1]) == (
        {"subject": "subject-1", "stream_type": "response"},
        b"",
    )
    assert ready == (b'{"error":null}', b"")
    assert answer[0] == b""
    assert msgspec.msgpack.decode(answer[1]) == {"data": {"Error": "no"}, "complete_final": False}
    assert (end[0], msgspec.msgpack.decode(end[1])) == (b"", {"complete_final": True})
    assert sentinel == (b'"sentinel"', b"")


def test_a_dump_carries_events_as_the_event_plane_does():
    event = BlockStored(5, (BlockHash(1, 2**64 - 1),))
    answer = encode_tree_dump([encode_single_router_event(7, 0, event, dp_rank=2)], 41)

    dump = msgspec.msgpack.decode(answer)["data"]["TreeDump"]
    assert (dump["last_event_id"], dump["reset_scope"]) == (41, "all")
    (decoded,) = decode_router_events(msgspec.msgpack.encode(dump["events"]))
    assert (decoded.worker_id, decoded.event_id, decoded.event, decoded.dp_rank) == (7, 0, event, 2)


def test_who_asks_for_the_future_is_told_so():
    answer = msgspec.msgpack.decode(encode_too_new(RecoveryQuery(7, 0, 9, None), 3))
    assert answer["data"] == {
        "TooNew": {"requested_start": 9, "requested_end": None, "newest_available": 3}
    }
