"""The operator's Prometheus metrics and log lines.

Metrics live in a registry of their own, so that several operators can run in one process. Log lines
are text or JSON; Kopf's line per handled event is left out.
"""

import json
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_WRITES = {"PATCH", "POST", "PUT", "DELETE"}


class Metrics:
    """What the operator counts; every series is there from the start, or appears with its label."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._passes = Counter(
            "mocker_operator_passes_total",
            "Reconcile passes by result.",
            ["result"],
            registry=self.registry,
        )
        for result in ("ok", "error"):
            self._passes.labels(result)
        self._requests = Counter(
            "mocker_operator_api_requests_total",
            "Requests to the API server; code is 0 when there was no answer.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self._writes = Counter(
            "mocker_operator_api_writes_total",
            "Requests that change something; none in the steady state.",
            registry=self.registry,
        )
        self._seconds = Histogram(
            "mocker_operator_pass_seconds", "Duration of a reconcile pass.", registry=self.registry
        )
        self._depth = Gauge(
            "mocker_operator_queue_depth", "Keys that wait for a pass.", registry=self.registry
        )

    def watch_depth(self, depth: Callable[[], float]) -> None:
        """Read the queue's depth from here whenever the metrics are scraped."""
        self._depth.set_function(depth)

    def finished(self, result: str, seconds: float) -> None:
        """Count a pass: `ok` or `error`."""
        self._passes.labels(result).inc()
        self._seconds.observe(seconds)

    def request(self, verb: str, resource: str, code: int | None) -> None:
        """Count a request to the API server."""
        self._requests.labels(verb, resource, str(code or 0)).inc()
        if verb in _WRITES:
            self._writes.inc()

    def serve(self, port: int) -> Callable[[], None]:
        """Serve the metrics on all addresses; return what stops that."""
        server, thread = start_http_server(port, registry=self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join(timeout=5)

        return stop


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(level: str, log_format: str) -> None:
    """Send log lines to standard error; `log_format` is `text` or `json`."""
    handler = logging.StreamHandler()
    text = logging.Formatter(_TEXT_FORMAT)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    logging.getLogger("kopf.activities.probe").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
