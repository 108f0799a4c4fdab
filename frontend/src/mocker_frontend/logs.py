"""Logging of the process: text or JSON lines on standard error, by environment or flag."""

import json
import logging

from aiohttp import web
from aiohttp.http import HttpProcessingError

_MOST_OF_A_REASON = 200
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


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


def configure(*, level: str, style: str) -> None:
    """Set up the root logger; `style` is `text` or `json`."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if style == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # its errors come to our callbacks too
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
