"""Load reports as Dynamo's routers read them."""

import msgspec
from msgspec.structs import replace

from mocker_protocol.load_report import (
    ActiveLoad,
    KvStats,
    LoadEvent,
    LoadMetrics,
    WorkerStats,
    decode_active_load,
    decode_load_event,
    encode_active_load,
    encode_load_event,
)

EVENT = LoadEvent(
    worker_id=7,
    data=LoadMetrics(
        worker_stats=WorkerStats(
            data_parallel_rank=0, request_active_slots=2, num_requests_waiting=0
        ),
        kv_stats=KvStats(
            kv_active_blocks=9,
            kv_total_blocks=16384,
            gpu_cache_usage_perc=9 / 16384,
            gpu_prefix_cache_hit_rate=0.5,
        ),
    ),
)


def test_a_load_event_is_the_documented_bytes():
    message = encode_load_event(EVENT)
    assert message == (
        b'{"worker_id":7,"data":{"worker_stats":{"data_parallel_rank":0,"request_active_slots":2,'
        b'"request_total_slots":1024,"num_requests_waiting":0},"kv_stats":{"kv_active_blocks":9,'
        b'"kv_total_blocks":16384,"gpu_cache_usage_perc":0.00054931640625,'
        b'"gpu_prefix_cache_hit_rate":0.5},"spec_decode_stats":null}}'
    )
    assert decode_load_event(message) == EVENT


def test_an_active_load_is_a_map_with_all_fields():
    payload = encode_active_load(ActiveLoad(worker_id=7, dp_rank=1, kv_used_blocks=9))
    assert list(msgspec.msgpack.decode(payload).items()) == [
        ("worker_id", 7),
        ("dp_rank", 1),
        ("active_decode_blocks", None),
        ("active_prefill_tokens", None),
        ("kv_used_blocks", 9),
    ]
    assert decode_active_load(payload).kv_used_blocks == 9


def test_an_active_load_is_what_dynamo_itself_sends():
    """Captured from WorkerMetricsPublisher of ai-dynamo-runtime 1.6.1."""
    captured = (
        b"\x85\xa9worker_id\xcf @\xa24\x0e0\xed\x05\xa7dp_rank\x01\xb4active_decode_blocks\xc0"
        b"\xb5active_prefill_tokens\xc0\xaekv_used_blocks\t"
    )
    load = ActiveLoad(worker_id=0x2040A2340E30ED05, dp_rank=1, kv_used_blocks=9)
    assert encode_active_load(load) == captured


def test_a_load_event_is_what_dynamo_itself_sends():
    """Captured from WorkerMetricsPublisher of ai-dynamo-runtime 0.7.0, which has short floats."""
    captured = (
        b'{"worker_id":2324035752183262472,"data":{"worker_stats":{"data_parallel_rank":0,'
        b'"request_active_slots":2,"request_total_slots":1024,"num_requests_waiting":0},'
        b'"kv_stats":{"kv_active_blocks":9,"kv_total_blocks":16384,'
        b'"gpu_cache_usage_perc":0.0005493164,"gpu_prefix_cache_hit_rate":0.5},'
        b'"spec_decode_stats":null}}'
    )
    event = decode_load_event(captured)
    assert encode_load_event(event) == captured
    assert event.data == replace(
        EVENT.data, kv_stats=replace(EVENT.data.kv_stats, gpu_cache_usage_perc=0.0005493164)
    )
