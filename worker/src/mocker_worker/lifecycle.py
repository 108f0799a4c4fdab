"""The worker's life: STARTING -> READY -> DRAINING -> STOPPED.

Readiness flips first. While draining, requests are still taken and finished, since a Service may
go on to route here for a moment; the drain ends when nothing has been left after the grace period,
or at its timeout.
"""

import asyncio
import logging
from enum import StrEnum

log = logging.getLogger(__name__)


class LifeState(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


class Lifecycle:
    """State of the worker, and the wish that it stop."""

    def __init__(self) -> None:
        self.state = LifeState.STARTING
        self.in_flight = 0
        """HTTP requests for tokens that are being answered."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def takes_requests(self) -> bool:
        """Whether requests for tokens are answered."""
        return self.state in (LifeState.READY, LifeState.DRAINING)

    def enter(self, state: LifeState) -> None:
        """Go on to a state."""
        log.info("%s -> %s", self.state.upper(), state.upper())
        self.state = state

    def begin_request(self) -> None:
        """Count a request that is being answered."""
        self.in_flight += 1
        self._idle.clear()

    def end_request(self) -> None:
        """Count it out."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()

    def request_stop(self) -> None:
        """Begin to stop; called again, stop without waiting for requests."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def wait_for_stop(self) -> None:
        """Wait until somebody wants the worker to stop: a signal ends this wait."""
        await self._stop.wait()

    async def wait_until_drained(self, *, timeout_s: float, grace_s: float) -> bool:
        """Wait for at least `grace_s`, then until idle; return False if requests remain."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._hurried_sleep(grace_s)
                await self._idle_or_hurry()
        except TimeoutError:
            pass
        if self.in_flight:
            log.warning("%d requests are cut off", self.in_flight)
        return not self.in_flight

    async def _hurried_sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            return

    async def _idle_or_hurry(self) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._idle, self._hurry)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
