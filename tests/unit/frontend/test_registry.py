"""What the frontend believes about workers, as records come, stop coming and go."""

import pytest

from mocker_frontend.registry import Registry, Worker
from mocker_protocol.names import WorkerType
from mocker_protocol.registration import WorkerRegistration, WorkerState


def record(
    worker_id=1,
    *,
    worker_type=WorkerType.DECODE,
    state=WorkerState.READY,
    port=8000,
    max_model_len=None,
):
    return WorkerRegistration(
        worker_id=worker_id,
        namespace="default-chat",
        worker_type=worker_type,
        url=f"http://10.0.0.{worker_id}:{port}",
        model="mock",
        block_size=64,
        num_gpu_blocks=100,
        max_num_seqs=8,
        state=state,
        max_model_len=max_model_len,
    )


@pytest.fixture
def registry():
    registry = Registry(expiry_s=10.0)
    registry.connected(0.0)
    return registry


def put(registry, registration, *, revision, now):
    return registry.put(registration.key, registration, revision=revision, now=now)


def test_a_registered_worker_is_known(registry):
    assert put(registry, record(), revision=1, now=0.0)
    [worker] = registry.workers
    assert worker.url == "http://10.0.0.1:8000"
    assert worker.worker_type is WorkerType.DECODE
    assert worker.state is WorkerState.READY


def test_a_heartbeat_is_no_change(registry):
    put(registry, record(), revision=1, now=0.0)
    assert not put(registry, record(), revision=2, now=2.0)


def test_draining_is_a_change(registry):
    put(registry, record(), revision=1, now=0.0)
    assert put(registry, record(state=WorkerState.DRAINING), revision=2, now=2.0)
    assert registry.workers[0].state is WorkerState.DRAINING


def test_a_deleted_worker_is_gone(registry):
    put(registry, record(), revision=1, now=0.0)
    assert registry.delete(record().key)
    assert registry.workers == []
    assert not registry.delete(record().key)


def test_a_silent_worker_expires_and_its_peers_stay(registry):
    put(registry, record(1), revision=1, now=0.0)
    put(registry, record(2), revision=2, now=0.0)
    put(registry, record(2), revision=3, now=8.0)
    assert registry.expire(9.9) == []
    assert registry.expire(10.0) == [record(1).key]
    assert [worker.key for worker in registry.workers] == [record(2).key]


def test_nothing_expires_while_nats_is_away(registry):
    put(registry, record(), revision=1, now=0.0)
    registry.disconnected()
    assert registry.expire(1000.0) == []


def test_nothing_expires_for_one_expiry_after_a_reconnection(registry):
    put(registry, record(), revision=1, now=0.0)
    registry.disconnected()
    registry.connected(1000.0)
    assert registry.expire(1009.9) == []
    assert registry.expire(1010.0) == [record().key]


def test_a_replayed_record_is_no_sign_of_life(registry):
    put(registry, record(), revision=7, now=0.0)
    assert not put(registry, record(), revision=7, now=9.0)
    assert registry.expire(10.0) == [record().key]
    assert not put(registry, record(), revision=7, now=11.0)
    assert registry.workers == []


def test_an_expired_worker_that_speaks_again_is_back(registry):
    put(registry, record(), revision=7, now=0.0)
    registry.expire(10.0)
    assert put(registry, record(), revision=8, now=11.0)
    assert len(registry.workers) == 1


def test_a_bucket_that_was_made_again_counts_from_one(registry):
    put(registry, record(), revision=700, now=0.0)
    put(registry, record(), revision=1, now=9.0)
    assert registry.expire(12.0) == []


def test_the_longest_request_is_what_every_worker_takes(registry):
    assert registry.max_model_len is None
    for worker_id, longest in ((1, None), (2, 8192), (3, 4096)):
        told = record(worker_id, max_model_len=longest)
        assert put(registry, told, revision=worker_id, now=0.0)
    assert registry.max_model_len == 4096
    registry.delete(record(3).key)
    assert registry.max_model_len == 8192


def test_static_workers_neither_expire_nor_leave():
    static = Worker("static.decode.0000", WorkerType.DECODE, "http://127.0.0.1:1")
    registry = Registry([static])
    registry.connected(0.0)
    assert registry.expire(1000.0) == []
    assert registry.workers == [static]


def test_a_suspect_worker_is_trusted_again_when_it_renews(registry):
    put(registry, record(), revision=1, now=0.0)
    registry.suspect(record().key, 5.0)
    assert registry.workers[0].suspect_until_s > 5.0
    assert not put(registry, record(), revision=2, now=6.0)
    assert registry.workers[0].suspect_until_s == 0.0


def test_a_static_worker_is_suspect_for_a_while():
    static = Worker("static.decode.0000", WorkerType.DECODE, "http://127.0.0.1:1")
    registry = Registry([static])
    registry.suspect(static.key, 5.0)
    assert 5.0 < registry.workers[0].suspect_until_s < 10.0


def test_suspecting_a_worker_that_left_does_nothing(registry):
    registry.suspect("default-chat.backend.1", 5.0)
    assert registry.workers == []


def test_a_prefill_worker_is_remembered_after_it_left(registry):
    assert not registry.prefill_seen
    prefill = record(3, worker_type=WorkerType.PREFILL)
    put(registry, prefill, revision=1, now=0.0)
    registry.delete(prefill.key)
    assert registry.prefill_seen
