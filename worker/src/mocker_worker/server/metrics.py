"""What `/metrics` answers: the families of the dialects asked for, of HTTP, and of this project.

The text is made from the ranks' plain numbers at scrape time. What only this project counts is
named `mocker_*`; the colon of the engines' names is meant for recording rules.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mocker_worker.driver import EngineDriver
from mocker_worker.events.outside import EventCounts
from mocker_worker.server.exposition import Families, Family, Page
from mocker_worker.server.faults import FaultKind
from mocker_worker.server.metrics_http import http_families
from mocker_worker.server.metrics_legacy import legacy_families
from mocker_worker.server.metrics_process import process_families, process_start_s
from mocker_worker.server.metrics_sglang import sglang_families
from mocker_worker.server.metrics_vllm import vllm_families
from mocker_worker.stats import HttpStats, WorkerStats

VLLM, VLLM_LEGACY, SGLANG = "vllm", "vllm-legacy", "sglang"
DIALECTS = (VLLM, VLLM_LEGACY, SGLANG)
NO_CREATED_SERIES = "PROMETHEUS_DISABLE_CREATED_SERIES"
"""Environment variable of Prometheus' Python client, and so of vLLM."""


def _no_events() -> EventCounts:
    return EventCounts((), resynchronizations=0, dropped_passes=0, dropped_loads=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCounts:
    """What the parts of a worker count beside its engines; read at every scrape."""

    api: WorkerStats = field(default_factory=WorkerStats)
    http: HttpStats = field(default_factory=HttpStats)
    events: Callable[[], EventCounts] = _no_events
    """What left the worker; always with the same transports."""
    faults: Mapping[FaultKind, int] = field(default_factory=dict)
    """Injected faults by kind."""


class WorkerMetrics:
    """The metrics of one worker; make it before the first request."""

    def __init__(
        self,
        model_name: str,
        ranks: Sequence[EngineDriver],
        counts: WorkerCounts,
        *,
        dialects: frozenset[str] = frozenset({VLLM}),
        environment: Mapping[str, str],
    ) -> None:
        """Prepare the text.

        Args:
            model_name: Label of the engines' metrics.
            ranks: All ranks.
            counts: What the other parts count.
            dialects: Out of `DIALECTS`.
            environment: May hold `NO_CREATED_SERIES`.
        """
        started_s = process_start_s()
        self._created_s = started_s if _with_created_series(environment) else None
        self._http = counts.http
        self._engine_page = self._page(_engine_families(model_name, ranks, counts.api, dialects))
        self._own_page = self._page([*_own_families(counts), *process_families(started_s)])
        self._http_page = self._page(http_families(self._http))
        self._num_http_series = len(self._http.requests)

    def render(self) -> bytes:
        """Return the text of this moment."""
        if len(self._http.requests) != self._num_http_series:
            self._http_page = self._page(http_families(self._http))
            self._num_http_series = len(self._http.requests)
        pages = (self._engine_page, self._own_page, self._http_page)
        return "".join(page.render() for page in pages).encode()

    def _page(self, families: Families) -> Page:
        return Page(families, created_s=self._created_s)


def _with_created_series(environment: Mapping[str, str]) -> bool:
    return environment.get(NO_CREATED_SERIES, "").lower() not in ("1", "t", "true")


def _engine_families(
    model_name: str, ranks: Sequence[EngineDriver], api: WorkerStats, dialects: frozenset[str]
) -> Families:
    families: list[Families] = []
    if VLLM in dialects:
        families.append(vllm_families(model_name, ranks, api))
    if VLLM_LEGACY in dialects:
        families.append(legacy_families(model_name, ranks, time.monotonic))
    if SGLANG in dialects:
        families.append(sglang_families(model_name, ranks, time.monotonic))
    return [family for dialect in families for family in dialect]


def _own_families(counts: WorkerCounts) -> Families:
    return [*_event_families(counts.events), _faults_family(counts.faults)]


def _event_families(counts: Callable[[], EventCounts]) -> Families:
    def published(index: int) -> Callable[[], float]:
        return lambda: counts().transports[index].published_events

    def dropped(index: int) -> Callable[[], float]:
        return lambda: counts().transports[index].dropped_events

    names = [{"transport": item.transport} for item in counts().transports]
    return [
        Family(
            "counter",
            "mocker_kv_events_published",
            "KV events handed over, by transport.",
            [(name, published(index)) for index, name in enumerate(names)],
        ),
        Family(
            "counter",
            "mocker_kv_events_dropped",
            "KV events that a transport had no room or no taker for.",
            [(name, dropped(index)) for index, name in enumerate(names)],
        ),
        Family(
            "counter",
            "mocker_kv_events_resynchronizations",
            "How often a rank's cache was told anew, after a loss or for who came late.",
            [({}, lambda: counts().resynchronizations)],
        ),
        Family(
            "counter",
            "mocker_forward_passes_dropped",
            "Forward-pass metrics that were not sent.",
            [({}, lambda: counts().dropped_passes)],
        ),
        Family(
            "counter",
            "mocker_load_reports_dropped",
            "Load reports that were not sent.",
            [({}, lambda: counts().dropped_loads)],
        ),
    ]


def _faults_family(faults: Mapping[FaultKind, int]) -> Family:
    def read(kind: FaultKind) -> Callable[[], float]:
        return lambda: faults[kind]

    return Family(
        "counter",
        "mocker_injected_faults",
        "Faults injected on purpose, by kind.",
        [({"kind": str(kind)}, read(kind)) for kind in faults],
    )
