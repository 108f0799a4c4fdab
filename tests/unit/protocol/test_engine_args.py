"""Engine arguments: each documented field works or is refused by its name, never ignored."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.engine_args import (
    UNSUPPORTED,
    EngineArgs,
    FixedTiming,
    InvalidEngineArgs,
    KvTransferTiming,
    PreemptionMode,
    PrefixCachingHashAlgo,
    SchedulingPolicy,
    load_engine_args,
    parse_engine_args,
)
from mocker_protocol.names import WorkerType

DOCUMENTED = set(
    # Up to 1.0.
    "num_gpu_blocks block_size max_num_seqs max_num_batched_tokens enable_prefix_caching "
    "enable_chunked_prefill watermark speedup_ratio dp_size startup_time is_prefill is_decode "
    "publish_kv_events planner_profile_data enable_local_indexer bootstrap_port kv_bytes_per_token "
    "kv_transfer_bandwidth reasoning zmq_kv_events_port "
    # 1.1 to 1.3.
    "engine_type decode_speedup_ratio worker_type preemption_mode router_queue_policy "
    "zmq_replay_port sglang trtllm aic_backend aic_system aic_backend_version aic_tp_size "
    "aic_model_path aic_moe_tp_size aic_moe_ep_size aic_attention_dp_size aic_gemm_dtype "
    "aic_moe_dtype aic_fmha_dtype aic_kv_cache_dtype aic_comm_dtype aic_nextn "
    "aic_nextn_accept_rates aic_mtp_seed gpu_memory_utilization mem_fraction_static "
    "free_gpu_memory_fraction handoff_session_timeout_ms kv_transfer_timing_mode num_g2_blocks "
    "num_g3_blocks enable_g4_storage offload_batch_size bandwidth_g1_to_g2_gbps "
    "bandwidth_g2_to_g1_gbps bandwidth_g2_to_g3_gbps bandwidth_g3_to_g2_gbps "
    "bandwidth_g2_to_g4_gbps bandwidth_g4_to_g2_gbps response_replay_trace_path "
    "has_perf_model".split()
)

WORKING = [
    ("engine_type", "vllm", "vllm"),
    ("num_gpu_blocks", 100, 100),
    ("num_gpu_blocks", 100.0, 100),
    ("num_gpu_blocks", 2**63 - 1, 2**63 - 1),
    ("block_size", 16, 16),
    ("block_size", 0, 64),
    ("max_model_len", 4096, 4096),
    ("max_model_len", None, None),
    ("max_num_seqs", 8, 8),
    ("max_num_seqs", None, None),
    ("max_num_batched_tokens", 2048, 2048),
    ("max_num_batched_tokens", None, None),
    ("enable_prefix_caching", False, False),
    ("enable_chunked_prefill", False, False),
    ("preemption_mode", "fifo", PreemptionMode.FIFO),
    ("scheduling_policy", "priority", SchedulingPolicy.PRIORITY),
    ("prefix_caching_hash_algo", "sha256_cbor", PrefixCachingHashAlgo.SHA256_CBOR),
    ("zmq_kv_events_port", 5557, 5557),
    ("zmq_kv_events_port", None, None),
    ("zmq_replay_port", 65535, 65535),
    ("speedup_ratio", 0, 0.0),
    ("speedup_ratio", 10, 10.0),
    ("decode_speedup_ratio", 2.5, 2.5),
    ("startup_time", 1.5, 1.5),
    ("startup_time", None, None),
    ("dp_size", 4, 4),
    ("worker_type", "prefill", WorkerType.PREFILL),
    ("worker_type", "decode", WorkerType.DECODE),
    ("publish_kv_events", False, False),
    ("seed", 7, 7),
    ("kv_transfer_bandwidth", 64, 64.0),
    ("kv_transfer_bandwidth", None, None),
    ("kv_bytes_per_token", 131072, 131072),
    ("kv_bytes_per_token", None, None),
    ("kv_transfer_timing_mode", "destination_missing", KvTransferTiming.DESTINATION_MISSING),
]

WRONG = [
    ("scheduling_policy", "lifo"),
    ("prefix_caching_hash_algo", "sha256"),
    ("zmq_kv_events_port", 0),
    ("zmq_kv_events_port", 65536),
    ("zmq_kv_events_port", "5557"),
    ("zmq_replay_port", 1.5),
    ("engine_type", "sglang"),
    ("num_gpu_blocks", 0),
    ("num_gpu_blocks", None),
    ("num_gpu_blocks", "100"),
    ("num_gpu_blocks", True),
    ("num_gpu_blocks", 1.5),
    ("num_gpu_blocks", 2**63),
    ("block_size", 1),
    ("block_size", False),
    ("block_size", "64"),
    ("max_model_len", 0),
    ("max_num_seqs", 0),
    ("max_num_seqs", "many"),
    ("max_num_batched_tokens", -1),
    ("enable_prefix_caching", 1),
    ("enable_prefix_caching", "true"),
    ("enable_chunked_prefill", None),
    ("preemption_mode", "random"),
    ("preemption_mode", 1),
    ("speedup_ratio", -1),
    ("speedup_ratio", "fast"),
    ("speedup_ratio", float("inf")),
    ("speedup_ratio", float("nan")),
    ("decode_speedup_ratio", 0),
    ("startup_time", -0.1),
    ("dp_size", 0),
    ("worker_type", "both"),
    ("worker_type", None),
    ("publish_kv_events", "yes"),
    ("timing_model", {"type": "external"}),
    ("timing_model", "polynomial"),
    ("seed", -1),
    ("kv_transfer_bandwidth", "64"),
    ("kv_bytes_per_token", -1),
    ("kv_transfer_timing_mode", "never"),
    ("timing_model", {"type": "step", "base_ms": -1}),
    ("is_prefill", 1),
    ("is_decode", "true"),
    ("num_gpu_block", 1),
    ("numGpuBlocks", 1),
]


def test_every_documented_field_is_known():
    known = EngineArgs.model_fields.keys() | UNSUPPORTED | {"is_prefill", "is_decode"}
    assert known >= DOCUMENTED


def test_no_field_both_works_and_is_refused():
    assert not EngineArgs.model_fields.keys() & UNSUPPORTED


@pytest.mark.parametrize(("field", "value", "expected"), WORKING)
def test_a_field_that_works_takes_effect(field, value, expected):
    assert getattr(parse_engine_args({field: value}), field) == expected


def test_every_working_field_is_in_the_table():
    tested = {field for field, _, _ in WORKING}
    assert tested | {"timing_model"} == EngineArgs.model_fields.keys()


@pytest.mark.parametrize("field", sorted(UNSUPPORTED))
@pytest.mark.parametrize("value", [None, 1, False])
def test_a_field_that_is_not_supported_is_refused_by_name(field, value):
    with pytest.raises(InvalidEngineArgs, match=rf"{field}: not supported"):
        parse_engine_args({field: value})


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_an_error_that_names_the_field(field, value):
    with pytest.raises(InvalidEngineArgs, match=field):
        parse_engine_args({field: value})


def test_an_unknown_field_is_told_from_a_wrong_one():
    with pytest.raises(InvalidEngineArgs, match="blok_size: unknown engine argument"):
        parse_engine_args({"blok_size": 64})


def test_all_wrong_fields_are_named_at_once():
    with pytest.raises(InvalidEngineArgs) as caught:
        parse_engine_args({"num_gpu_blocks": 0, "seed": -1})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "num_gpu_blocks",
        "seed",
    ]


@pytest.mark.parametrize("data", [None, 1, "x", [], [("a", 1)]])
def test_arguments_must_be_an_object(data):
    with pytest.raises(InvalidEngineArgs):
        parse_engine_args(data)


def test_the_defaults_are_dynamos():
    args = parse_engine_args({})
    assert (args.num_gpu_blocks, args.block_size, args.max_num_seqs) == (16384, 64, 256)
    assert (args.max_num_batched_tokens, args.dp_size, args.speedup_ratio) == (8192, 1, 1.0)
    assert args.worker_type is WorkerType.AGGREGATED
    assert args.kv_capacity_tokens == 16384 * 64


def test_fixed_timing_needs_both_durations():
    timing = {"type": "fixed", "prefill_ms": 10, "decode_ms": 2}
    args = parse_engine_args({"timing_model": timing})
    assert args.timing_model == FixedTiming(type="fixed", prefill_ms=10.0, decode_ms=2.0)
    with pytest.raises(InvalidEngineArgs, match="decode_ms"):
        parse_engine_args({"timing_model": {"type": "fixed", "prefill_ms": 10}})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"is_prefill": True}, WorkerType.PREFILL),
        ({"is_decode": True}, WorkerType.DECODE),
        ({"is_prefill": False, "is_decode": False}, WorkerType.AGGREGATED),
        ({"is_prefill": True, "worker_type": "prefill"}, WorkerType.PREFILL),
        ({"is_prefill": False, "worker_type": "decode"}, WorkerType.DECODE),
    ],
)
def test_the_legacy_flags_choose_the_worker_type(data, expected):
    assert parse_engine_args(data).worker_type is expected


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"is_prefill": True, "is_decode": True}, ("is_prefill", "is_decode")),
        ({"is_prefill": True, "worker_type": "decode"}, ("is_prefill", "worker_type")),
        ({"is_decode": True, "worker_type": "aggregated"}, ("is_decode", "worker_type")),
        (
            {"enable_chunked_prefill": False, "max_model_len": 9000},
            ("max_num_batched_tokens", "max_model_len", "enable_chunked_prefill"),
        ),
    ],
)
def test_a_contradiction_names_both_sides(data, named):
    with pytest.raises(InvalidEngineArgs) as caught:
        parse_engine_args(data)
    assert all(name in str(caught.value) for name in named)


@pytest.mark.parametrize(
    ("data", "publishes"),
    [
        ({}, True),
        ({"worker_type": "prefill"}, True),
        ({"worker_type": "decode"}, False),
        ({"publish_kv_events": False}, False),
        ({"enable_prefix_caching": False}, False),
    ],
)
def test_kv_events_need_prefix_caching_and_no_decode_worker(data, publishes):
    assert parse_engine_args(data).publishes_kv_events is publishes


def test_flags_are_merged_with_a_file():
    args = load_engine_args('{"block_size": 16}', {"speedup_ratio": 10.0})
    assert (args.block_size, args.speedup_ratio) == (16, 10.0)


def test_a_flag_that_repeats_the_file_is_no_contradiction():
    args = load_engine_args('{"is_prefill": true}', {"worker_type": "prefill"})
    assert args.worker_type is WorkerType.PREFILL


@pytest.mark.parametrize(
    ("text", "overrides", "named"),
    [
        ('{"block_size": 16}', {"block_size": 32}, ("block_size", "16", "32")),
        ('{"is_decode": true}', {"worker_type": "prefill"}, ("worker_type", "decode", "prefill")),
        ('{"is_prefill": 1}', {}, ("is_prefill",)),
        ("{", {}, ("not JSON",)),
        ("[]", {}, ("JSON object",)),
    ],
)
def test_a_file_that_cannot_be_used_says_why(text, overrides, named):
    with pytest.raises(InvalidEngineArgs) as caught:
        load_engine_args(text, overrides)
    assert all(name in str(caught.value) for name in named)


@given(
    st.dictionaries(
        st.sampled_from(sorted(DOCUMENTED | EngineArgs.model_fields.keys())),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.lists(st.integers())
        | st.dictionaries(st.text(), st.integers()),
    )
)
def test_parsing_raises_only_invalid_engine_args(data):
    with suppress(InvalidEngineArgs):
        load_engine_args(json.dumps(data), {})


@pytest.mark.parametrize("field", ["prefill_ms", "decode_ms"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_fixed_times_must_be_finite(field, value):
    timing = {"type": "fixed", "prefill_ms": 1.0, "decode_ms": 1.0, field: value}
    with pytest.raises(InvalidEngineArgs, match=field):
        parse_engine_args({"timing_model": timing})


def test_profile_data_in_a_file_is_refused_with_the_flag_that_reads_it():
    with pytest.raises(InvalidEngineArgs, match="--planner-profile-data"):
        load_engine_args('{"planner_profile_data": "profile.npz"}', {})


def test_priorities_leave_no_choice_of_victims() -> None:
    with pytest.raises(InvalidEngineArgs, match="preemption_mode: must be lifo"):
        parse_engine_args({"scheduling_policy": "priority", "preemption_mode": "fifo"})
    parse_engine_args({"scheduling_policy": "priority", "preemption_mode": "lifo"})
