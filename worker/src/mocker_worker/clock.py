"""Real time behind a protocol, so that tests drive the engine in time of their own.

An event loop's timers are as fine as a millisecond, and uvloop rounds them to the nearest one: a
token would come up to half a millisecond early or late, and each gap be off by twice that. Linux
wakes a reader of a timer's file descriptor at the nanosecond asked for, give or take what the
machine is busy with (ADR 0007).
"""

import asyncio
import ctypes
import heapq
import logging
import os
import sys
import time
from typing import Protocol

log = logging.getLogger(__name__)

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1


class Clock(Protocol):
    """Monotonic time in seconds."""

    def now_s(self) -> float:
        """Return the time."""
        ...

    async def sleep_until(self, deadline_s: float) -> None:
        """Return at `deadline_s`, or at once when it has passed; always yield to the loop."""
        ...

    async def wait(self, event: asyncio.Event, deadline_s: float) -> bool:
        """Wait for `event` until `deadline_s`; return whether it is set."""
        ...


class LoopClock:
    """The machine's monotonic clock, waited for with timers of the running loop.

    The driver chains its deadlines, so that the error of one sleep is not carried into the next.
    The loop's own `time` is a cached number of whole milliseconds and too coarse to observe
    latencies with.
    """

    def now_s(self) -> float:
        """Return the machine's monotonic time."""
        return time.monotonic()

    async def sleep_until(self, deadline_s: float) -> None:
        """Sleep by one timer of the loop."""
        delay_s = deadline_s - time.monotonic()
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        timer = loop.call_later(delay_s, woken.set_result, None)
        try:
            await woken
        finally:
            timer.cancel()

    async def wait(self, event: asyncio.Event, deadline_s: float) -> bool:
        """Wait with a timer of the loop."""
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                return await event.wait()
        except TimeoutError:
            return event.is_set()

    def close(self) -> None:
        """Nothing is held."""


class TimerClock(LoopClock):
    """Sleeps by one timer of Linux (timerfd) for all who wait."""

    def __init__(self) -> None:
        """Take a file descriptor for the running loop.

        Raises:
            OSError: if the machine has no such timers.
        """
        self._timer = _Timer()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._timer.fd, self._fire)
        self._sleeping: list[tuple[float, int, asyncio.Future[None]]] = []
        """A heap, with numbers against comparing futures."""
        self._serial = 0

    async def sleep_until(self, deadline_s: float) -> None:
        """Sleep until the timer fires."""
        if deadline_s <= time.monotonic():
            await asyncio.sleep(0)
            return
        woken = self._loop.create_future()
        self._serial += 1
        heapq.heappush(self._sleeping, (deadline_s, self._serial, woken))
        if self._sleeping[0][2] is woken:
            self._timer.set(deadline_s)
        await woken

    def close(self) -> None:
        """Give the file descriptor back; nobody may be asleep."""
        self._loop.remove_reader(self._timer.fd)
        self._timer.close()

    def _fire(self) -> None:
        self._timer.acknowledge()
        now_s = time.monotonic()
        sleeping = self._sleeping
        while sleeping and (sleeping[0][0] <= now_s or sleeping[0][2].done()):
            woken = heapq.heappop(sleeping)[2]
            if not woken.done():
                woken.set_result(None)
        if sleeping:
            self._timer.set(sleeping[0][0])


def best_clock() -> TimerClock | LoopClock:
    """Return the finest clock that this machine has, for the running loop."""
    if sys.platform == "linux":
        try:
            return TimerClock()
        except OSError as error:
            log.warning("passes are timed to the millisecond only: no timerfd: %s", error)
    return LoopClock()


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class _Timer:
    """A timerfd; Python has them from 3.13 on."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._spec = _Itimerspec()
        self.fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def set(self, deadline_s: float) -> None:
        """Fire at a time of the monotonic clock, and at no other."""
        value = self._spec.value
        value.seconds = int(deadline_s)
        value.nanoseconds = int((deadline_s - value.seconds) * 1e9)
        self._settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)

    def acknowledge(self) -> None:
        """Make the descriptor unreadable again."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:  # it was set anew after it had fired
            return

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)
