"""Logging of the process: text or JSON lines on standard error, by environment or flag."""

import json
import logging

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
