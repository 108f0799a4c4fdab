"""Whatever comes from outside, decoders raise nothing but a ValueError."""

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested_values import nested

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.decisions import parse_acknowledgement, parse_decision
from mocker_protocol.dynamo_discovery import DiscoveredWorker, DiscoveryRecord
from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.event_plane import (
    Envelope,
    decode_envelope,
    decode_router_events,
    encode_envelope,
    encode_router_events,
)
from mocker_protocol.forward_pass import (
    ForwardPassMetrics,
    QueuedRequests,
    ScheduledRequests,
    decode_forward_pass,
    encode_forward_pass,
)
from mocker_protocol.json_nesting import MAX_LEVELS
from mocker_protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    decode_router_event,
    encode_router_event,
)
from mocker_protocol.load_report import (
    ActiveLoad,
    decode_active_load,
    decode_load_event,
    encode_active_load,
)
from mocker_protocol.msgpack_nesting import check_msgpack_nesting
from mocker_protocol.names import Component
from mocker_protocol.registration import decode_registration

EVENTS = [BlockStored(5, (BlockHash(1, 2**64 - 1),)), BlockRemoved((3, 4)), AllBlocksCleared()]
METRICS = ForwardPassMetrics(
    worker_id="7",
    counter_id=1,
    wall_time=0.5,
    scheduled_requests=ScheduledRequests(),
    queued_requests=QueuedRequests(),
)
WORKER = DiscoveredWorker(
    component=Component("dynamo", "backend"),
    worker_id=7,
    model="mock",
    address="127.0.0.1:8000",
    args=EngineArgs(),
    publisher_ids=[9],
)
REGISTRATION = (
    b'{"worker_id":1,"namespace":"n","worker_type":"prefill","url":"http://h:1","model":"m",'
    b'"block_size":64,"num_gpu_blocks":1,"max_num_seqs":null,"state":"ready"}'
)
LOAD_EVENT = (
    b'{"worker_id":7,"data":{"worker_stats":{"data_parallel_rank":0,"request_active_slots":2,'
    b'"num_requests_waiting":0},"kv_stats":{"kv_active_blocks":9,"kv_total_blocks":16,'
    b'"gpu_cache_usage_perc":0.5,"gpu_prefix_cache_hit_rate":0.5},"spec_decode_stats":null}}'
)


def is_left_over(value):
    return WORKER.is_left_over(DiscoveryRecord("key", value))


JSON_DECODERS = {
    decode_router_event: encode_router_event(7, 1, EVENTS[0]),
    decode_registration: REGISTRATION,
    decode_load_event: LOAD_EVENT,
    parse_decision: b'{"decision_id": 7, "prefill": 2, "decode": 3}',
    parse_acknowledgement: b'{"scaled_decision_id": 7}',
    is_left_over: WORKER.records()[2].value,
}
MSGPACK_DECODERS = {
    decode_envelope: encode_envelope(
        Envelope(publisher_id=2**62, sequence=0, published_at=1, topic="t", payload=b"abc")
    ),
    decode_router_events: encode_router_events(7, list(enumerate(EVENTS))),
    decode_forward_pass: encode_forward_pass(METRICS),
    decode_active_load: encode_active_load(ActiveLoad(worker_id=7, dp_rank=0, kv_used_blocks=1)),
}
BY_NAME = {
    decode.__name__: (decode, good)
    for decode, good in {**JSON_DECODERS, **MSGPACK_DECODERS}.items()
}
decoders = pytest.mark.parametrize(("decode", "good"), BY_NAME.values(), ids=BY_NAME)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["cleared", "ready", "device"])
)
NAMES = st.sampled_from(
    "worker_id event event_id data stored removed blocks block_hash tokens_hash block_hashes "
    "parent_hash start_position dp_rank payload metadata worker publisher_id decision_id prefill "
    "worker_stats kv_stats".split()
)
VALUES = nested(SCALARS, NAMES)


@decoders
def test_what_is_good_is_decoded(decode, good):
    decode(good)


@decoders
@given(st.binary())
def test_noise(decode, good, payload):
    with suppress(ValueError):
        decode(payload)


@decoders
@given(st.data())
def test_a_good_message_with_broken_bytes(decode, good, data):
    broken = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    start = data.draw(st.integers(0, len(good)))
    for payload in (bytes(broken), good[:start], good[start:], good + bytes(broken)):
        with suppress(ValueError):
            decode(payload)


@pytest.mark.parametrize("decode", JSON_DECODERS, ids=lambda decode: decode.__name__)
@given(VALUES)
def test_json_of_another_shape(decode, value):
    with suppress(ValueError):
        decode(json.dumps(value).encode())


@pytest.mark.parametrize("decode", MSGPACK_DECODERS, ids=lambda decode: decode.__name__)
@given(VALUES)
def test_messagepack_of_another_shape(decode, value):
    with suppress(ValueError):
        decode(msgspec.msgpack.encode(value))


@pytest.mark.parametrize("decode", JSON_DECODERS, ids=lambda decode: decode.__name__)
@pytest.mark.parametrize("opening", [b"[", b'{"event":', b'{"a":['])
def test_json_that_is_nested_too_deep(decode, opening):
    with suppress(ValueError):
        decode(opening * 100_000)


@pytest.mark.parametrize("decode", MSGPACK_DECODERS, ids=lambda decode: decode.__name__)
@pytest.mark.parametrize(
    "opening", [b"\x91", b"\x81\xa5event", b"\xdc\x00\x01", b"\xdf\x00\x00\x00\x01\xa1a"]
)
def test_messagepack_that_is_nested_too_deep(decode, opening):
    with pytest.raises(ValueError, match=r"nested deeper"):
        decode(opening * 100_000)


def nested(value, levels):
    for _ in range(levels):
        value = [value]
    return value


@given(VALUES, st.integers(0, 2 * MAX_LEVELS))
def test_the_levels_of_messagepack_are_counted_exactly(value, levels):
    depth = levels + levels_of(value)
    payload = msgspec.msgpack.encode(nested(value, levels))
    if depth <= MAX_LEVELS:
        check_msgpack_nesting(payload)
    else:
        with pytest.raises(ValueError, match=r"nested deeper"):
            check_msgpack_nesting(payload)


def levels_of(value):
    match value:
        case list():
            return 1 + max(map(levels_of, value), default=0)
        case dict():
            return 1 + max(map(levels_of, value.values()), default=0)
    return 0


def test_bytes_within_binaries_and_strings_are_no_levels():
    payload = msgspec.msgpack.encode([b"\x91" * 500, "\x7f" * 70_000, b"\x91" * 70_000, 2.5, -200])
    check_msgpack_nesting(payload)
