"""The record by which frontends find workers."""

import json

import msgspec
import pytest

from mocker_protocol.names import WorkerType
from mocker_protocol.registration import (
    WorkerRegistration,
    WorkerState,
    decode_registration,
    watch_filter,
)


def registration(**changes):
    values = {
        "worker_id": 2**64 - 1,
        "namespace": "default-chat",
        "worker_type": WorkerType.PREFILL,
        "url": "http://10.244.0.7:8000",
        "model": "mock",
        "block_size": 64,
        "num_gpu_blocks": 16384,
        "max_num_seqs": None,
    }
    return WorkerRegistration(**{**values, **changes})


@pytest.mark.parametrize("worker_type", list(WorkerType))
@pytest.mark.parametrize("state", list(WorkerState))
def test_a_record_survives_the_wire(worker_type, state):
    record = registration(worker_type=worker_type, state=state)
    assert decode_registration(record.encode()) == record


def test_the_record_is_json_with_plain_words():
    assert json.loads(registration().encode()) == {
        "worker_id": 2**64 - 1,
        "namespace": "default-chat",
        "worker_type": "prefill",
        "url": "http://10.244.0.7:8000",
        "model": "mock",
        "block_size": 64,
        "num_gpu_blocks": 16384,
        "max_num_seqs": None,
        "dp_size": 1,
        "state": "ready",
        "endpoint": "generate",
        "max_model_len": None,
    }


def test_a_record_of_before_says_nothing_of_the_longest_request():
    record = json.loads(registration(max_model_len=4096).encode())
    assert record.pop("max_model_len") == 4096
    assert decode_registration(json.dumps(record).encode()).max_model_len is None


def test_the_key_is_under_the_watched_namespace():
    assert registration().key == "default-chat.prefill.ffffffffffffffff"
    assert registration(worker_type=WorkerType.DECODE, worker_id=255).key == (
        "default-chat.backend.ff"
    )
    assert watch_filter("default-chat") == "default-chat.>"


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b"null", b'{"worker_id": 1}', b"\xff\xfe"])
def test_rubbish_is_a_value_error(payload):
    with pytest.raises(ValueError, match=r".+"):
        decode_registration(payload)


def test_an_unknown_state_is_refused():
    payload = registration().encode().replace(b'"ready"', b'"sleeping"')
    with pytest.raises(msgspec.DecodeError, match="state"):
        decode_registration(payload)
