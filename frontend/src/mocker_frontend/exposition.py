"""Prometheus text of the frontend's telemetry: `dynamo_frontend_*` as Dynamo names them.

Labels are `model` (lower case, as Dynamo writes it) and `dynamo_namespace` (exact: planners match
on it). The hit rate has the name that Dynamo's router gives it, whose namespaces have no dashes.
What Dynamo does not have is called `mocker_frontend_*`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from mocker_frontend.registry import Worker
from mocker_frontend.telemetry import Telemetry
from mocker_protocol.names import WorkerType
from mocker_protocol.registration import WorkerState

_LABELS = ("model", "dynamo_namespace")


class Exposition:
    """Collects the telemetry of one frontend."""

    def __init__(
        self,
        telemetry: Telemetry,
        workers: Callable[[], Sequence[Worker]],
        *,
        model: str,
        namespace: str,
    ) -> None:
        self._telemetry = telemetry
        self._workers = workers
        self._labels = (model.lower(), namespace)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Return the text exposition format, version 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield all families (the interface of prometheus_client collectors)."""
        yield from self._histograms()
        yield from self._counters()
        yield from self._gauges()

    def _histograms(self) -> Iterable[Metric]:
        telemetry = self._telemetry
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Time to first token", telemetry.time_to_first_token_s),
            ("inter_token_latency_seconds", "Time per token", telemetry.inter_token_latency_s),
            ("request_duration_seconds", "Duration of requests", telemetry.request_duration_s),
            ("input_sequence_tokens", "Prompt lengths", telemetry.input_sequence_tokens),
            ("output_sequence_tokens", "Answer lengths", telemetry.output_sequence_tokens),
        ):
            family = HistogramMetricFamily(f"dynamo_frontend_{name}", text, labels=_LABELS)
            family.add_metric(self._labels, histogram.buckets, histogram.sum)
            yield family

        hit_rate = HistogramMetricFamily(
            "dynamo_component_router_kv_hit_rate",
            "Share of prompts that was cached where they were computed",
            labels=_LABELS,
        )
        model, namespace = self._labels
        labels = (model, namespace.replace("-", "_"))
        hit_rate.add_metric(labels, telemetry.kv_hit_rate.buckets, telemetry.kv_hit_rate.sum)
        yield hit_rate

    def _counters(self) -> Iterable[Metric]:
        telemetry = self._telemetry
        started = CounterMetricFamily(
            "dynamo_frontend_requests_started", "Requests received", labels=_LABELS
        )
        started.add_metric(self._labels, telemetry.requests_started)
        yield started
        finished = CounterMetricFamily(
            "dynamo_frontend_requests",
            "Requests that ended",
            labels=(*_LABELS, "endpoint", "request_type", "status"),
        )
        for series, count in telemetry.requests.items():
            finished.add_metric((*self._labels, *series), count)
        yield finished
        local = CounterMetricFamily(
            "mocker_frontend_local_prefills",
            "Requests prefilled by the decode worker because no prefill worker answered",
            labels=_LABELS,
        )
        local.add_metric(self._labels, telemetry.local_prefills)
        yield local
        retries = CounterMetricFamily(
            "mocker_frontend_failed_attempts",
            "Attempts that failed before the first byte",
            labels=(*_LABELS, "role"),
        )
        for role, count in telemetry.retries.items():
            retries.add_metric((*self._labels, role), count)
        yield retries

    def _gauges(self) -> Iterable[Metric]:
        telemetry = self._telemetry
        for name, text, value in (
            ("inflight_requests", "Requests in progress", telemetry.inflight),
            ("queued_requests", "Requests without a first token", telemetry.queued),
        ):
            gauge = GaugeMetricFamily(f"dynamo_frontend_{name}", text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        known = Counter((worker.worker_type, worker.state) for worker in self._workers())
        workers = GaugeMetricFamily(
            "mocker_frontend_workers", "Registered workers", labels=(*_LABELS, "role", "state")
        )
        for role in WorkerType:
            for state in WorkerState:
                workers.add_metric((*self._labels, role, state), known[role, state])
        yield workers
