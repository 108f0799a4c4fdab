"""Counts and times of HTTP requests, named as in vLLM (prometheus-fastapi-instrumentator).

A series comes into being with the first request of its kind.
"""

from collections.abc import Callable

from mocker_worker.server.exposition import Families, Family, HistogramFamily
from mocker_worker.stats import HttpStats


def http_families(stats: HttpStats) -> Families:
    """Return the families with the series known at this moment."""

    def read(key: tuple[str, str, str]) -> Callable[[], float]:
        return lambda: stats.requests[key]

    return [
        Family(
            "counter",
            "http_requests",
            "Requests answered, by handler, method and class of status.",
            [
                ({"handler": key[0], "method": key[1], "status": key[2]}, read(key))
                for key in sorted(stats.requests)
            ],
        ),
        HistogramFamily(
            "http_request_duration_highr_seconds",
            "Time to answer a request, of all handlers, in fine steps.",
            [({}, stats.all_durations)],
        ),
        HistogramFamily(
            "http_request_duration_seconds",
            "Time to answer a request, in coarse steps.",
            [
                ({"handler": handler, "method": method}, durations)
                for (handler, method), durations in sorted(stats.durations.items())
            ],
        ),
    ]
