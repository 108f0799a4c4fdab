"""Names that vLLM has given up, but dashboards and scalers still ask for.

Types are those they had last, labels `model_name` and `engine`; the oldest had no `engine`, but one
rank's values too.
"""

from collections.abc import Callable, Sequence

from mocker_worker.driver import EngineDriver
from mocker_worker.server.exposition import Families
from mocker_worker.server.metrics_vllm import vllm_ranks
from mocker_worker.server.rank_families import HistogramRow, Row
from mocker_worker.server.throughput import Throughput

_LEGACY: Sequence[Row] = (
    Row(
        "gauge",
        "vllm:gpu_cache_usage_perc",
        "Old name of vllm:kv_cache_usage_perc.",
        lambda rank: rank.kv_usage_ratio,
    ),
    Row(
        "gauge",
        "vllm:cpu_cache_usage_perc",
        "Share of the swap space in use; there is none.",
        lambda rank: 0,
    ),
    Row(
        "gauge",
        "vllm:num_requests_swapped",
        "Requests swapped out; there are none.",
        lambda rank: 0,
    ),
    Row(
        "gauge",
        "vllm:gpu_prefix_cache_hit_rate",
        "Share of cached prompt tokens over the latest 1000 requests, 0 to 1.",
        lambda rank: rank.engine.prefix_cache_hit_rate,
    ),
    Row(
        "counter",
        "vllm:gpu_prefix_cache_queries",
        "Old name of vllm:prefix_cache_queries.",
        lambda rank: rank.engine.prefix_cache_queries,
    ),
    Row(
        "counter",
        "vllm:gpu_prefix_cache_hits",
        "Old name of vllm:prefix_cache_hits.",
        lambda rank: rank.engine.prefix_cache_hits,
    ),
)

_TIME_PER_OUTPUT_TOKEN = HistogramRow(
    "vllm:time_per_output_token_seconds",
    "Old name of vllm:inter_token_latency_seconds.",
    lambda rank: rank.stats.itl,
)


def legacy_families(
    model_name: str, ranks: Sequence[EngineDriver], now_s: Callable[[], float]
) -> Families:
    """Return the families of `vllm-legacy`; `now_s` times the averages."""
    prompt = Throughput(lambda rank: rank.stats.prompt_tokens, now_s)
    generation = Throughput(lambda rank: rank.stats.generation_tokens, now_s)
    rows = (
        *_LEGACY,
        Row(
            "gauge",
            "vllm:avg_prompt_throughput_toks_per_s",
            "Prompt tokens per second over the latest seconds.",
            prompt.tokens_per_s,
        ),
        Row(
            "gauge",
            "vllm:avg_generation_throughput_toks_per_s",
            "Tokens generated per second over the latest seconds.",
            generation.tokens_per_s,
        ),
    )
    families = vllm_ranks(model_name, ranks)
    return [
        *(families.values(row) for row in rows),
        families.histograms(_TIME_PER_OUTPUT_TOKEN),
    ]
