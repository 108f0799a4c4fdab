"""Real time behind a protocol, so that tests drive the engine in time of their own."""

import asyncio
import time
from typing import Protocol


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

    uvloop rounds timers to the nearest millisecond, so a sleep ends up to half a millisecond
    early. The driver chains its deadlines, so that the error of one sleep is not carried into the
    next. The loop's own `time` is a cached number of whole milliseconds and too coarse to observe
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
