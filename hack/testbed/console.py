"""What the user sees while things are built: which, and for how long so far.

On a terminal one line is rewritten every second; elsewhere (a CI log) a line appears every 15 s.
"""

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

_TTY_PERIOD_S = 1.0
_LOG_PERIOD_S = 15.0


def clock_text(elapsed_s: float) -> str:
    """A duration for people: `7 s`, `3:05`."""
    whole = int(elapsed_s)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d}"


def status_line(running: Mapping[str, float], now_s: float) -> str:
    """One line that names all running steps, the oldest first, with their age."""
    parts = (f"{name} ({clock_text(now_s - since)})" for name, since in running.items())
    return "... " + ", ".join(parts)


class Console:
    """Prints steps and their durations; safe to use from several threads."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._tty = stream.isatty()
        self._running: dict[str, float] = {}
        self._guard = threading.Lock()
        self._ticker: threading.Thread | None = None

    def say(self, text: str) -> None:
        """Print a line of its own."""
        with self._guard:
            self._print(text)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show `name` as running for the length of the block, then how long it took."""
        began = time.monotonic()
        with self._guard:
            self._running[name] = began
            if not self._tty:
                self._print(f"{name} ...")
            self._start_ticker()
        verdict = "failed after"
        try:
            yield
            verdict = "done in"
        finally:
            with self._guard:
                self._running.pop(name, None)
                self._print(f"{name}: {verdict} {time.monotonic() - began:.1f} s")

    def _print(self, text: str) -> None:
        erase = "\r\x1b[K" if self._tty else ""
        self._stream.write(f"{erase}{text}\n")
        self._stream.flush()

    def _start_ticker(self) -> None:
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, name="console", daemon=True)
            self._ticker.start()

    def _tick(self) -> None:
        while True:
            time.sleep(_TTY_PERIOD_S if self._tty else _LOG_PERIOD_S)
            with self._guard:
                if self._running:
                    line = status_line(self._running, time.monotonic())
                    if self._tty:
                        self._stream.write(f"\r\x1b[K{line[:110]}")
                        self._stream.flush()
                    else:
                        self._print(line)
