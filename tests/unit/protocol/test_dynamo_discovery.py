"""The records of a worker in Dynamo's etcd, as its router and planner were seen to take them."""

import json

import pytest

from mocker_protocol.dynamo_discovery import DiscoveredWorker, DiscoveryRecord
from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.names import Component, WorkerType


def worker(worker_type=WorkerType.AGGREGATED, **changes):
    args = EngineArgs(
        worker_type=worker_type, block_size=16, num_gpu_blocks=256, max_model_len=4096, dp_size=2
    )
    values = {
        "component": Component("dynamo", worker_type.component),
        "worker_id": 0xABC,
        "model": "mock",
        "address": "10.0.0.1:8000",
        "args": args,
        "publisher_ids": [0xF, 0x10],
    }
    return DiscoveredWorker(**{**values, **changes})


def documents(worker):
    return {record.key: json.loads(record.value) for record in worker.records()}


def test_the_keys_name_the_endpoint_and_the_ids_in_hex():
    assert [record.key for record in worker().records()] == [
        "v1/instances/dynamo/backend/generate/abc",
        "v1/mdc/dynamo/backend/generate/abc",
        "v1/event_sources/namespace/dynamo/component/backend/endpoint/generate/topic/kv-events/f",
        "v1/event_sources/namespace/dynamo/component/backend/endpoint/generate/topic/kv-events/10",
    ]


def test_the_instance_says_where_the_worker_is():
    assert documents(worker())["v1/instances/dynamo/backend/generate/abc"] == {
        "type": "Endpoint",
        "namespace": "dynamo",
        "component": "backend",
        "endpoint": "generate",
        "instance_id": 0xABC,
        "transport": {"tcp": "10.0.0.1:8000/abc/dynamo/backend/generate"},
        "device_type": "cpu",
        "request_plane_codec": "msgpack",
    }


@pytest.mark.parametrize(
    ("worker_type", "model_type", "needs"),
    [
        (WorkerType.AGGREGATED, "Chat | Completions", []),
        (WorkerType.PREFILL, "", [["decode"]]),
        (WorkerType.DECODE, "Chat | Completions", [["prefill"]]),
    ],
)
def test_the_card_says_what_the_worker_is_for(worker_type, model_type, needs):
    records = worker(worker_type).records()
    card = json.loads(records[1].value)["card_json"]
    assert (card["worker_type"], card["model_type"], card["needs"]) == (
        str(worker_type),
        model_type,
        needs,
    )
    assert card["kv_cache_block_size"] == 16
    assert card["runtime_config"]["total_kv_blocks"] == 256
    assert card["runtime_config"]["data_parallel_size"] == 2
    assert card["context_length"] == 4096


def test_without_a_limit_the_context_is_as_long_as_the_cache():
    unlimited = worker(args=EngineArgs(block_size=16, num_gpu_blocks=256))
    card = json.loads(unlimited.records()[1].value)["card_json"]
    assert card["context_length"] == 4096


def test_each_rank_has_an_event_source():
    endpoint = {"namespace": "dynamo", "component": "backend", "name": "generate"}
    sources = [json.loads(record.value) for record in worker().records()[2:]]
    assert sources == [
        {
            "type": "EventSource",
            "scope": {"kind": "endpoint", "endpoint": endpoint},
            "topic": "kv-events",
            "publisher_id": publisher_id,
            "metadata": {
                "kv_state_endpoint": endpoint,
                "worker": {"worker_id": 0xABC, "dp_rank": dp_rank},
                "publisher_id": publisher_id,
                "recovery_target": None,
            },
        }
        for dp_rank, publisher_id in enumerate([0xF, 0x10])
    ]


def test_where_recovery_is_served_each_source_names_an_endpoint_of_its_own():
    recoverable = worker(recovery_address="10.0.0.1:7000")
    by_key = documents(recoverable)
    for publisher in ("f", "10"):
        endpoint = f"worker_kv_query_source_{publisher}"
        instance = {
            "namespace": "dynamo",
            "component": "backend",
            "endpoint": endpoint,
            "instance_id": 0xABC,
            "transport": {"tcp": f"10.0.0.1:7000/abc/dynamo/backend/{endpoint}"},
            "device_type": "cpu",
            "request_plane_codec": "msgpack",
        }
        key = f"v1/instances/dynamo/backend/{endpoint}/abc"
        assert by_key[key] == {"type": "Endpoint", **instance}
        source = f"{recoverable.sources_prefix}{publisher}"
        assert by_key[source]["metadata"]["recovery_target"] == instance
        assert list(by_key).index(key) < list(by_key).index(source)
    config = by_key["v1/mdc/dynamo/backend/generate/abc"]["card_json"]["runtime_config"]
    assert config["enable_local_indexer"] is True


def test_without_publishers_there_are_no_sources():
    silent = worker(publisher_ids=[])
    records = silent.records()
    assert len(records) == 2
    config = json.loads(records[1].value)["card_json"]["runtime_config"]
    assert config["kv_event_publishing_enabled"] is False


def test_sources_of_an_earlier_process_are_left_over():
    now, before = worker(), worker(publisher_ids=[1, 2])
    other = worker(worker_id=5, publisher_ids=[3, 4])
    for record in before.records()[2:]:
        assert now.is_left_over(record)
        assert record.key.startswith(now.sources_prefix)
    for record in [*now.records()[2:], *other.records()[2:], DiscoveryRecord("k", b"rubbish")]:
        assert not now.is_left_over(record)
