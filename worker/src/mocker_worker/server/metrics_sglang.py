"""Names of SGLang 0.5 for clients of its metrics, as far as this engine can feed them.

Scheduler metrics have the labels of SGLang's scheduler, `dp_rank` only where there is more than
one. Its tokenizer manager counts all ranks together, so its metrics have the `model_name` alone.
"""

from collections.abc import Callable, Sequence

from mocker_protocol.names import WorkerType
from mocker_worker.driver import EngineDriver
from mocker_worker.server.exposition import Families, Family, HistogramFamily, Labels
from mocker_worker.server.metrics_vllm import num_kv_fetches, num_waiting
from mocker_worker.server.rank_families import RankFamilies, Read, Row
from mocker_worker.server.throughput import Throughput
from mocker_worker.stats import Histogram

TTFT_BUCKETS_S = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0),
    *(100.0, 200.0, 400.0),
)
ITL_BUCKETS_S = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0),
)
E2E_BUCKETS_S = (*TTFT_BUCKETS_S, 600.0, 1200.0, 1800.0, 2400.0)

_ENGINE_TYPES = {
    WorkerType.AGGREGATED: "unified",
    WorkerType.PREFILL: "prefill",
    WorkerType.DECODE: "decode",
}

_GAUGES: Sequence[tuple[str, str, Read]] = (
    ("num_running_reqs", "Requests in the pass under way.", lambda rank: rank.num_running),
    ("num_queue_reqs", "Requests that wait.", num_waiting),
    ("num_grammar_queue_reqs", "Requests that wait for a grammar; none do.", lambda rank: 0),
    ("token_usage", "Share of the KV cache in use, 0 to 1.", lambda rank: rank.kv_usage_ratio),
    ("num_used_tokens", "Tokens that the blocks in use have room for.", lambda rank: _used(rank)),
    ("kv_used_tokens", "Tokens that the blocks in use have room for.", lambda rank: _used(rank)),
    (
        "cache_hit_rate",
        "Share of cached prompt tokens over the latest 1000 requests, 0 to 1.",
        lambda rank: rank.engine.prefix_cache_hit_rate,
    ),
    (
        "max_total_num_tokens",
        "Tokens that fit into the KV cache.",
        lambda rank: rank.engine.args.kv_capacity_tokens,
    ),
    ("page_size", "Tokens per block.", lambda rank: rank.engine.args.block_size),
    ("num_pages", "Blocks.", lambda rank: rank.engine.args.num_gpu_blocks),
    ("context_len", "Longest request in tokens.", lambda rank: _context_len(rank)),
    ("num_prefill_bootstrap_queue_reqs", "None wait for a peer.", lambda rank: 0),
    ("num_prefill_inflight_queue_reqs", "None wait for a decode worker.", lambda rank: 0),
    ("num_decode_prealloc_queue_reqs", "None wait for blocks alone.", lambda rank: 0),
    (
        "num_decode_transfer_queue_reqs",
        "Requests whose KV comes from a prefill worker in the pass under way.",
        num_kv_fetches,
    ),
)


def sglang_families(
    model_name: str, ranks: Sequence[EngineDriver], now_s: Callable[[], float]
) -> Families:
    """Return the families of `sglang`; `now_s` times the throughput.

    From now on the ranks' latencies are observed with SGLang's bounds as well.
    """
    families = RankFamilies([(_labels(model_name, rank, len(ranks)), rank) for rank in ranks])
    throughput = Throughput(lambda rank: rank.stats.generation_tokens, now_s)
    rows = [
        *(Row("gauge", f"sglang:{name}", text, read) for name, text, read in _GAUGES),
        Row(
            "gauge",
            "sglang:gen_throughput",
            "Tokens generated per second over the latest seconds.",
            throughput.tokens_per_s,
        ),
    ]
    return [
        *(families.values(row) for row in rows),
        _cache_config(model_name, ranks),
        *_counters(model_name, ranks),
        *_histograms(model_name, ranks),
    ]


def _used(rank: EngineDriver) -> float:
    args = rank.engine.args
    return round(rank.kv_usage_ratio * args.num_gpu_blocks) * args.block_size


def _context_len(rank: EngineDriver) -> int:
    args = rank.engine.args
    return args.max_model_len or args.kv_capacity_tokens


def _labels(model_name: str, rank: EngineDriver, num_ranks: int) -> Labels:
    engine_type = _ENGINE_TYPES[rank.engine.args.worker_type]
    labels = {"model_name": model_name, "engine_type": engine_type}
    labels |= {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
    return labels | {"dp_rank": str(rank.dp_rank)} if num_ranks > 1 else labels


def _cache_config(model_name: str, ranks: Sequence[EngineDriver]) -> Family:
    args = ranks[0].engine.args
    sizes = {"page_size": str(args.block_size), "num_pages": str(args.num_gpu_blocks)}
    series = [({**_labels(model_name, rank, len(ranks)), **sizes}, lambda: 1) for rank in ranks]
    return Family("gauge", "sglang:cache_config_info", "Configuration of the KV cache.", series)


def _counters(model_name: str, ranks: Sequence[EngineDriver]) -> Families:
    def total(count: Read) -> Callable[[], float]:
        return lambda: sum(count(rank) for rank in ranks)

    labels = {"model_name": model_name}
    counters: Sequence[tuple[str, str, Labels, Read]] = (
        ("prompt_tokens", "Prompt tokens.", labels, lambda rank: rank.stats.prompt_tokens),
        ("generation_tokens", "Tokens.", labels, lambda rank: rank.stats.generation_tokens),
        (
            "cached_tokens",
            "Prompt tokens found in the cache.",
            {**labels, "cache_source": "device"},
            lambda rank: rank.stats.local_cache_hit_tokens,
        ),
        (
            "num_requests",
            "Requests ended.",
            labels,
            lambda rank: sum(rank.stats.finished_requests.values()),
        ),
        (
            "num_aborted_requests",
            "Requests given up by their clients.",
            labels,
            lambda rank: rank.stats.finished_requests["abort"],
        ),
    )
    return [
        Family("counter", f"sglang:{name}", text, [(own, total(count))])
        for name, text, own, count in counters
    ]


def _histograms(model_name: str, ranks: Sequence[EngineDriver]) -> Families:
    ttft, itl, e2e = map(Histogram, (TTFT_BUCKETS_S, ITL_BUCKETS_S, E2E_BUCKETS_S))
    for rank in ranks:
        rank.stats.ttft.also, rank.stats.itl.also, rank.stats.e2e.also = ttft, itl, e2e
    labels = {"model_name": model_name}
    # The engine streams every answer; whether a client wanted a stream is not known to it.
    streaming = {**labels, "is_streaming": "true"}
    return [
        HistogramFamily(
            "sglang:time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            [(streaming, ttft)],
        ),
        HistogramFamily(
            "sglang:inter_token_latency_seconds",
            "Between two tokens of a request.",
            [(labels, itl)],
        ),
        HistogramFamily(
            "sglang:e2e_request_latency_seconds",
            "From a request's arrival to its last token.",
            [(streaming, e2e)],
        ),
    ]
