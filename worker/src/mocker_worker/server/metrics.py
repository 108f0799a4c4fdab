"""Prometheus metrics under vLLM's names, made from the ranks' plain numbers at scrape time.

Every series exists from the start with 0. Labels are `model_name` and `engine`, the data-parallel
rank (vLLM 0.33); `vllm:cache_config_info` has no `model_name`, as there.
"""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from mocker_worker.driver import EngineDriver
from mocker_worker.stats import Latencies

_LABELS = ("model_name", "engine")

_GAUGES: Sequence[tuple[str, str, Callable[[EngineDriver], float]]] = (
    (
        "vllm:num_requests_running",
        "Requests in the forward pass under way.",
        lambda rank: rank.num_running,
    ),
    (
        "vllm:num_requests_waiting",
        "Requests that wait for a place in a forward pass.",
        lambda rank: rank.engine.num_waiting,
    ),
    (
        "vllm:kv_cache_usage_perc",
        "Share of the KV cache that requests hold, 0 to 1.",
        lambda rank: rank.kv_usage_ratio,
    ),
)
_COUNTERS: Sequence[tuple[str, str, Callable[[EngineDriver], float]]] = (
    (
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda rank: rank.engine.prefix_cache_queries,
    ),
    (
        "vllm:prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda rank: rank.engine.prefix_cache_hits,
    ),
    (
        "vllm:num_preemptions",
        "Requests that lost their KV to others.",
        lambda rank: rank.engine.num_preemptions,
    ),
    ("vllm:prompt_tokens", "Prompt tokens processed.", lambda rank: rank.stats.prompt_tokens),
    ("vllm:generation_tokens", "Tokens generated.", lambda rank: rank.stats.generation_tokens),
)
_HISTOGRAMS: Sequence[tuple[str, str, Callable[[EngineDriver], Latencies]]] = (
    (
        "vllm:time_to_first_token_seconds",
        "From a request's arrival to its first token.",
        lambda rank: rank.stats.ttft,
    ),
    (
        "vllm:inter_token_latency_seconds",
        "Between two tokens of a request.",
        lambda rank: rank.stats.itl,
    ),
    (
        "vllm:e2e_request_latency_seconds",
        "From a request's arrival to its last token.",
        lambda rank: rank.stats.e2e,
    ),
)


def _bound(bound_s: float) -> str:
    return "+Inf" if bound_s == float("inf") else str(bound_s)


class WorkerCollector:
    """Reads the ranks of one worker."""

    def __init__(self, model_name: str, ranks: Sequence[EngineDriver], *, dropped: int) -> None:
        self._model_name = model_name
        self._ranks = ranks
        self._dropped = dropped

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family."""
        for name, text, value in _GAUGES:
            yield self._fill(GaugeMetricFamily(name, text, labels=_LABELS), value)
        for name, text, value in _COUNTERS:
            yield self._fill(CounterMetricFamily(name, text, labels=_LABELS), value)
        yield self._finished()
        for name, text, latencies in _HISTOGRAMS:
            yield self._histogram(HistogramMetricFamily(name, text, labels=_LABELS), latencies)
        yield self._cache_config()
        dropped = CounterMetricFamily(
            "mocker:kv_events_dropped",
            "KV events that found no place in the queue to NATS.",
            labels=("model_name",),
        )
        dropped.add_metric((self._model_name,), self._dropped)
        yield dropped

    def _labels(self, rank: EngineDriver) -> tuple[str, str]:
        return self._model_name, str(rank.dp_rank)

    def _fill(
        self,
        family: GaugeMetricFamily | CounterMetricFamily,
        value: Callable[[EngineDriver], float],
    ) -> Metric:
        for rank in self._ranks:
            family.add_metric(self._labels(rank), value(rank))
        return family

    def _finished(self) -> Metric:
        family = CounterMetricFamily(
            "vllm:request_success", "Requests ended.", labels=(*_LABELS, "finished_reason")
        )
        for rank in self._ranks:
            for reason, count in rank.stats.finished.items():
                family.add_metric((*self._labels(rank), reason), count)
        return family

    def _histogram(
        self, family: HistogramMetricFamily, latencies: Callable[[EngineDriver], Latencies]
    ) -> Metric:
        for rank in self._ranks:
            observed = latencies(rank)
            total = 0
            buckets: list[tuple[str, float]] = []
            bounds = (*observed.bounds_s, float("inf"))
            for bound_s, count in zip(bounds, observed.counts, strict=True):
                total += count
                buckets.append((_bound(bound_s), total))
            family.add_metric(self._labels(rank), buckets, observed.sum_s)
        return family

    def _cache_config(self) -> Metric:
        names = ("block_size", "num_gpu_blocks", "enable_prefix_caching", "engine")
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Configuration of the KV cache.", labels=names
        )
        for rank in self._ranks:
            args = rank.engine.args
            caching = str(args.enable_prefix_caching)
            values = (str(args.block_size), str(args.num_gpu_blocks), caching, str(rank.dp_rank))
            family.add_metric(values, 1)
        return family


def render(collector: WorkerCollector) -> bytes:
    """Return the Prometheus text format, from a registry of its own."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)
