"""Names, types, labels and buckets, as those who scrape engines expect them."""

import math
import re
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mocker_protocol.engine_args import parse_engine_args
from mocker_worker.driver import EngineDriver
from mocker_worker.engine import EngineCore
from mocker_worker.events.outside import EventCounts, TransportCounts
from mocker_worker.server.faults import FaultPlan
from mocker_worker.server.metrics import DIALECTS, WorkerCounts, WorkerMetrics

PER_RANK = {"model_name", "engine"}
INFERENCE_PERF = Path(__file__).parents[2] / "data" / "inference_perf_vllm_families.txt"
DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
OPTIONAL_IN_VLLM = {
    "vllm:corrupted_requests": "vLLM counts it with VLLM_COMPUTE_NANS_IN_LOGITS only",
    "vllm:kv_block_idle_before_evict_seconds": "needs --kv-cache-metrics",
    "vllm:kv_block_lifetime_seconds": "needs --kv-cache-metrics",
    "vllm:kv_block_reuse_gap_seconds": "needs --kv-cache-metrics",
}

GAUGES = """num_requests_running num_requests_waiting kv_cache_usage_perc"""
COUNTERS = """prefix_cache_queries prefix_cache_hits external_prefix_cache_queries
    external_prefix_cache_hits mm_cache_queries mm_cache_hits num_preemptions prompt_tokens
    generation_tokens prompt_tokens_cached"""
SPLIT = {
    "num_requests_waiting_by_reason": ("gauge", "reason", "capacity deferred"),
    "engine_sleep_state": ("gauge", "sleep_state", "awake weights_offloaded discard_all"),
    "prompt_tokens_by_source": (
        "counter",
        "source",
        "local_compute local_cache_hit external_kv_transfer",
    ),
    "prompt_tokens_cached_by_source": (
        "counter",
        "source",
        "device host disk p2p external_unspecified",
    ),
    "request_success": ("counter", "finished_reason", "stop length abort error repetition"),
}
TTFT = """0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640
    2560"""
ITL = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
LATENCY = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
TOKENS = "1 2 5 10 20 50 100 200 500 1000 2000"
BUCKETS = {
    "time_to_first_token_seconds": TTFT,
    "inter_token_latency_seconds": ITL,
    "request_time_per_output_token_seconds": ITL,
    "e2e_request_latency_seconds": LATENCY,
    "request_queue_time_seconds": LATENCY,
    "request_inference_time_seconds": LATENCY,
    "request_prefill_time_seconds": LATENCY,
    "request_decode_time_seconds": LATENCY,
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
    "request_max_num_generation_tokens": TOKENS,
    "request_params_max_tokens": TOKENS,
    "request_prefill_kv_computed_tokens": TOKENS,
    "request_params_n": "1 2 5 10 20",
    "request_num_preemptions": "1 2 3 4 5 10 20",
    "iteration_tokens_total": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
}
LEGACY = {
    "vllm:gpu_cache_usage_perc": "gauge",
    "vllm:cpu_cache_usage_perc": "gauge",
    "vllm:num_requests_swapped": "gauge",
    "vllm:gpu_prefix_cache_hit_rate": "gauge",
    "vllm:avg_prompt_throughput_toks_per_s": "gauge",
    "vllm:avg_generation_throughput_toks_per_s": "gauge",
    "vllm:gpu_prefix_cache_queries": "counter",
    "vllm:gpu_prefix_cache_hits": "counter",
    "vllm:time_per_output_token_seconds": "histogram",
}
SGLANG_SCHEDULER = """num_running_reqs num_queue_reqs token_usage num_used_tokens kv_used_tokens
    cache_hit_rate gen_throughput max_total_num_tokens page_size num_pages context_len
    num_grammar_queue_reqs num_prefill_bootstrap_queue_reqs num_prefill_inflight_queue_reqs
    num_decode_prealloc_queue_reqs num_decode_transfer_queue_reqs cache_config_info"""


class NoSink:
    wants_passes = False

    def publish_kv_events(self, dp_rank, events):
        pass

    def publish_pass(self, dp_rank, report):
        pass

    def publish_load(self, dp_rank, load):
        pass


class StillClock:
    def now_s(self):
        return 0.0


def ranks_of(**args):
    args = parse_engine_args({"max_model_len": 4096, "block_size": 16} | args)
    return [
        EngineDriver(
            EngineCore(args, dp_rank=rank), dp_rank=rank, clock=StillClock(), sink=NoSink()
        )
        for rank in range(args.dp_size)
    ]


def text_of(*, dialects=("vllm",), counts=None, environment=(), **args):
    metrics = WorkerMetrics(
        "meta/model",
        ranks_of(**args),
        counts or WorkerCounts(),
        dialects=frozenset(dialects),
        environment=dict(environment),
    )
    return metrics.render().decode()


def families_of(**settings):
    return {family.name: family for family in text_string_to_metric_families(text_of(**settings))}


def label_values(family, label):
    return {sample.labels[label] for sample in family.samples}


@pytest.fixture(scope="module")
def families():
    return families_of()


@pytest.mark.parametrize(
    ("kind", "name"),
    [("gauge", name) for name in GAUGES.split()] + [("counter", name) for name in COUNTERS.split()],
)
def test_a_number_has_one_series_per_rank(families, kind, name):
    family = families[f"vllm:{name}"]

    assert family.type == kind
    assert [set(sample.labels) for sample in family.samples] == [PER_RANK]
    assert family.samples[0].labels == {"model_name": "meta/model", "engine": "0"}


@pytest.mark.parametrize("name", SPLIT)
def test_all_values_of_a_label_are_there_from_the_start(families, name):
    kind, label, values = SPLIT[name]
    family = families[f"vllm:{name}"]

    assert family.type == kind
    assert label_values(family, label) == set(values.split())
    assert all(set(sample.labels) == PER_RANK | {label} for sample in family.samples)


@pytest.mark.parametrize("name", BUCKETS)
def test_histograms_have_the_buckets_of_vllm(families, name):
    family = families[f"vllm:{name}"]
    bounds = [
        float(sample.labels["le"])
        for sample in family.samples
        if sample.name == f"vllm:{name}_bucket"
    ]

    assert family.type == "histogram"
    assert bounds == [*map(float, BUCKETS[name].split()), math.inf]
    assert {sample.name for sample in family.samples} == {
        f"vllm:{name}_{suffix}" for suffix in ("bucket", "count", "sum")
    }


def test_rejections_have_no_engine(families):
    family = families["vllm:admission_rejections"]

    assert [sample.labels for sample in family.samples] == [
        {"model_name": "meta/model", "reason": reason}
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens")
    ]


def test_the_cache_config_is_that_of_the_arguments():
    family = families_of(block_size=32, num_gpu_blocks=1000, kv_bytes_per_token=10)[
        "vllm:cache_config_info"
    ]
    (sample,) = family.samples

    assert sample.value == 1
    assert "model_name" not in sample.labels
    assert sample.labels | {
        "block_size": "32",
        "num_gpu_blocks": "1000",
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "kv_cache_size_tokens": "32000",
        "kv_cache_memory_bytes": "320000",
        "kv_cache_max_concurrency": "7.8125",
        "prefix_caching_hash_algo": "xxh3",
        "engine": "0",
    } == dict(sample.labels)


def test_every_rank_has_its_series():
    families = families_of(dp_size=3)

    for name in ("num_requests_running", "cache_config_info", "time_to_first_token_seconds"):
        assert label_values(families[f"vllm:{name}"], "engine") == {"0", "1", "2"}


def test_only_decode_workers_tell_of_fetched_kv(families):
    assert "vllm:num_requests_kv_fetch_by_stage" not in families
    decode = families_of(worker_type="decode")["vllm:num_requests_kv_fetch_by_stage"]

    assert label_values(decode, "stage") == {"waiting_to_start", "in_progress", "completed_waiting"}


def test_an_idle_worker_shows_zeros_and_never_nan():
    constant = ("_created", "_info", "sglang:max_total_num_tokens", "sglang:page_size")
    constant += ("sglang:num_pages", "sglang:context_len")
    families = families_of(dialects=DIALECTS, worker_type="decode")
    engine = [
        sample
        for family in families.values()
        for sample in family.samples
        if sample.name.startswith(("vllm:", "sglang:", "mocker_", "http_"))
    ]
    others = [
        sample for sample in engine if sample.value != 0 and not sample.name.endswith(constant)
    ]

    assert len(engine) > 400
    assert [sample.labels.get("sleep_state") for sample in others] == ["awake"]


def test_created_series_can_be_switched_off_as_in_the_python_client():
    assert "_created" in text_of()
    assert "_created" not in text_of(environment={"PROMETHEUS_DISABLE_CREATED_SERIES": "True"})


def test_every_family_is_documented():
    documented = set(re.findall(r"[a-z0-9_:]+", DOCUMENT.read_text()))
    for name in families_of(dialects=DIALECTS, worker_type="decode"):
        if not name.endswith("_created") and not name.startswith(("process_", "python_", "http_")):
            own = name.removeprefix("sglang:")
            assert own in documented or f"{own}_total" in documented, name


def test_no_series_is_there_twice_and_names_are_declared_once():
    lines = text_of(dialects=DIALECTS, dp_size=2).splitlines()
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    declared = [line for line in lines if line.startswith("# TYPE")]

    assert len(series) == len(set(series))
    assert len(declared) == len({line.split()[2] for line in declared})


@pytest.mark.parametrize(
    "line", [line for line in INFERENCE_PERF.read_text().splitlines() if not line.startswith("#")]
)
def test_inference_perf_finds_what_it_asks_for(families, line):
    kind, name = line.split()
    if name in OPTIONAL_IN_VLLM:
        assert name not in families
    else:
        assert families[name].type == kind


def test_llm_d_finds_what_its_scheduler_scores(families):
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        (sample,) = families[f"vllm:{name}"].samples
        assert sample.name == f"vllm:{name}"
    labels = families["vllm:cache_config_info"].samples[0].labels
    assert int(labels["block_size"]) == 16
    assert int(labels["num_gpu_blocks"]) == 16384


def test_the_variant_autoscaler_finds_its_series(families):
    names = {sample.name for family in families.values() for sample in family.samples}

    assert names >= {
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_waiting",
        "vllm:cache_config_info",
        "vllm:request_generation_tokens_sum",
        "vllm:request_generation_tokens_count",
        "vllm:request_prompt_tokens_sum",
        "vllm:request_prompt_tokens_count",
        "vllm:request_success_total",
    }


def test_old_names_come_with_their_dialect_only(families):
    assert not LEGACY.keys() & families.keys()
    with_legacy = families_of(dialects=("vllm", "vllm-legacy"))

    assert {name: with_legacy[name].type for name in LEGACY} == LEGACY
    assert families.keys() <= with_legacy.keys()


def test_sglang_names_have_the_labels_of_its_scheduler(families):
    assert not any(name.startswith("sglang:") for name in families)
    sglang = families_of(dialects=("sglang",), worker_type="prefill")
    labels = {"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"}

    for name in SGLANG_SCHEDULER.split():
        (sample,) = sglang[f"sglang:{name}"].samples
        assert sglang[f"sglang:{name}"].type == "gauge"
        assert labels <= set(sample.labels)
        assert sample.labels["engine_type"] == "prefill"
    assert not any(name.startswith("vllm:") for name in sglang)


def test_sglang_ranks_are_told_apart():
    sglang = families_of(dialects=("sglang",), dp_size=2)

    assert label_values(sglang["sglang:token_usage"], "dp_rank") == {"0", "1"}
    assert len(sglang["sglang:prompt_tokens"].samples) == 1


def test_own_counts_are_there_by_transport_and_kind():
    events = EventCounts(
        [TransportCounts("jetstream", 7, 1), TransportCounts("zmq", 8, 0)],
        resynchronizations=1,
        dropped_passes=3,
        dropped_loads=4,
    )
    plan = FaultPlan()
    plan.draw({"X-Return-Error": "rate_limit"})
    families = families_of(counts=WorkerCounts(events=lambda: events, faults=plan.counts))

    def by(name, label):
        return {
            sample.labels[label]: sample.value
            for sample in families[name].samples
            if sample.name.endswith("_total")
        }

    assert by("mocker_kv_events_published", "transport") == {"jetstream": 7, "zmq": 8}
    assert by("mocker_kv_events_dropped", "transport") == {"jetstream": 1, "zmq": 0}
    faults = by("mocker_injected_faults", "kind")
    assert faults["rate_limit"] == 1
    assert faults["disconnect"] == 0
    for name, value in (
        ("kv_events_resynchronizations", 1),
        ("forward_passes_dropped", 3),
        ("load_reports_dropped", 4),
    ):
        assert families[f"mocker_{name}"].samples[0].value == value


def test_http_requests_are_counted_by_handler_method_and_class():
    counts = WorkerCounts()
    metrics = WorkerMetrics("m", ranks_of(), counts, environment={})
    metrics.render()
    counts.http.observe("/v1/completions", "POST", 200, 0.2)
    counts.http.observe("/v1/completions", "POST", 404, 0.7)
    counts.http.observe("none", "BREW", 404, 0.0)
    counts.http.observe("/metrics", "GET", 200, 0.1)
    text = metrics.render().decode()

    ok = 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0'
    assert ok in text
    assert 'http_requests_total{handler="none",method="other",status="4xx"} 1.0' in text
    assert 'handler="/metrics"' not in text
    assert "http_request_duration_highr_seconds_count 3.0" in text
    duration = 'http_request_duration_seconds_bucket{handler="/v1/completions",le="0.5",'
    assert f'{duration}method="POST"}} 1.0' in text


def test_the_process_is_described(families):
    for name in (
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_cpu_seconds",
    ):
        assert families[name].samples[0].value > 0
    assert families["process_start_time_seconds"].samples[0].value == pytest.approx(
        time.time(), abs=3600
    )
    assert families["python_info"].samples[0].labels["implementation"]


def test_a_scrape_costs_less_than_a_millisecond():
    metrics = WorkerMetrics("m", ranks_of(), WorkerCounts(), environment={})

    def cost_s():
        began_s = time.process_time()
        for _ in range(10):
            metrics.render()
        return (time.process_time() - began_s) / 10

    assert min(cost_s() for _ in range(20)) < 0.001
