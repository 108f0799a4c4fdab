"""Logging of the worker: one line per event, text or JSON by `MOCKER_LOG_FORMAT`."""

import json
import logging
import sys
import time
from collections.abc import Mapping

from aiohttp import web
from aiohttp.http import HttpProcessingError

_MOST_OF_A_REASON = 200
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time (RFC 3339, UTC), level, logger, message, exception."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:  # noqa: D102 - the formatter's contract
        entry = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure(environment: Mapping[str, str]) -> None:
    """Set up the root logger on stderr.

    Raises:
        ValueError: if `MOCKER_LOG_LEVEL` or `MOCKER_LOG_FORMAT` is no known word.
    """
    level = environment.get("MOCKER_LOG_LEVEL", "info").upper()
    if level not in logging.getLevelNamesMapping():
        raise ValueError(f"MOCKER_LOG_LEVEL: {level.lower()!r} is not a level; use debug or info")
    form = environment.get("MOCKER_LOG_FORMAT", "text")
    if form not in ("json", "text"):
        raise ValueError(f"MOCKER_LOG_FORMAT: must be json or text, not {form!r}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    logging.getLogger("aiohttp.server").addFilter(brief_about_requests)


def brief_about_requests(record: logging.LogRecord) -> bool:
    """Say in one line what the HTTP server cannot read; a traceback is for our own mistakes."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError | web.RequestPayloadError):
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        reason = " ".join(str(error).split())[:_MOST_OF_A_REASON]
        record.msg, record.args = "cannot read a request: %s", (reason,)
        record.exc_info = None
    return True
