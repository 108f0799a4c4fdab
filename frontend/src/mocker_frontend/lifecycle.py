"""The life of the process: STARTING -> READY -> DRAINING -> STOPPED.

Readiness flips first when the process must go, but requests are still accepted: endpoints and
proxies learn late. It leaves when it has been idle and some grace has passed, or at the time-out.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

log = logging.getLogger(__name__)


class State(StrEnum):
    """Where in its life the process is."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


class Lifecycle:
    """State and running requests."""

    def __init__(self) -> None:
        self.state = State.STARTING
        self.running = 0
        """Requests being answered."""
        self._idle = asyncio.Event()
        self._idle.set()

    def ready(self) -> None:
        """Note that requests can be answered."""
        if self.state is State.STARTING:
            self.state = State.READY

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as running."""
        self.running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def drain(self, *, grace_s: float, timeout_s: float) -> None:
        """Turn unready and wait until the last request is finished."""
        self.state = State.DRAINING
        log.info("draining running=%d timeout_s=%g", self.running, timeout_s)
        try:
            async with asyncio.timeout(max(timeout_s, grace_s)):
                await asyncio.sleep(grace_s)
                await self._idle.wait()
        except TimeoutError:
            log.warning("drain timed out, cutting off running=%d", self.running)
        self.state = State.STOPPED
