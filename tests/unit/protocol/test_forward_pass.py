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


def test_the_payload_is_nested_maps_with_all_fields():
    payload = msgspec.msgpack.decode(encode_forward_pass(METRICS))
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


def test_metrics_survive_the_wire():
    assert decode_forward_pass(encode_forward_pass(METRICS)) == METRICS


@given(st.binary())
def test_rubbish_is_a_value_error(message):
    with pytest.raises(ValueError, match=r".*"):
        decode_forward_pass(message)
