"""The MessagePack layout of forward-pass metrics: maps with documented names."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.forward_pass import (
    ForwardPassMetrics,
    QueuedRequests,
    ScheduledRequests,
    decode_forward_pass,
    encode_forward_pass,
)

METRICS = ForwardPassMetrics(
    worker_id="1234",
    counter_id=1,
    wall_time=0.0321,
    scheduled_requests=ScheduledRequests(num_prefill_requests=2, sum_prefill_tokens=1000),
    queued_requests=QueuedRequests(num_decode_requests=1),
)


def encode(metrics=METRICS):
    return encode_forward_pass(metrics, publisher_id=2**64 - 1, sequence=0, published_at_ms=1700)


def test_the_envelope_is_a_map_with_a_binary_payload():
    envelope = msgspec.msgpack.decode(encode())
    assert list(envelope) == ["publisher_id", "sequence", "published_at", "topic", "payload"]
    assert envelope["publisher_id"] == 2**64 - 1
    assert envelope["sequence"] == 0
    assert envelope["published_at"] == 1700
    assert envelope["topic"] == "forward-pass-metrics"
    assert type(envelope["payload"]) is bytes


def test_the_payload_is_nested_maps_with_all_fields():
    payload = msgspec.msgpack.decode(msgspec.msgpack.decode(encode())["payload"])
    assert payload == {
        "version": 1,
        "worker_id": "1234",
        "dp_rank": 0,
        "counter_id": 1,
        "wall_time": 0.0321,
        "scheduled_requests": {
            "num_prefill_requests": 2,
            "sum_prefill_tokens": 1000,
            "var_prefill_length": 0.0,
            "sum_prefill_kv_tokens": 0,
            "num_decode_requests": 0,
            "sum_decode_kv_tokens": 0,
            "var_decode_kv_tokens": 0.0,
        },
        "queued_requests": {
            "num_prefill_requests": 0,
            "sum_prefill_tokens": 0,
            "var_prefill_length": 0.0,
            "num_decode_requests": 1,
            "sum_decode_kv_tokens": 0,
            "var_decode_kv_tokens": 0.0,
        },
    }


def test_the_message_starts_with_the_documented_bytes():
    assert encode().startswith(b"\x85\xacpublisher_id\xcf" + b"\xff" * 8 + b"\xa8sequence\x00")


def test_metrics_survive_the_wire():
    assert decode_forward_pass(encode()) == METRICS


@given(st.binary())
def test_rubbish_is_a_value_error(message):
    with pytest.raises(ValueError, match=r".*"):
        decode_forward_pass(message)
