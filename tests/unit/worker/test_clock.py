import asyncio
import contextlib
import sys
import time

import pytest
import uvloop
from waiting import PATIENCE_S

from mocker_worker.clock import LoopClock, TimerClock

CLOCKS = [
    LoopClock,
    pytest.param(
        TimerClock, marks=pytest.mark.skipif(sys.platform != "linux", reason="needs timerfd")
    ),
]
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def run(main, new_loop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main())


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def new_loop(request):
    return request.param


@pytest.mark.skipif(sys.platform != "linux", reason="needs timerfd")
def test_the_timer_never_fires_early(new_loop):
    async def main():
        with contextlib.closing(TimerClock()) as clock:
            for step in range(40):
                deadline_s = clock.now_s() + 0.0003 + step * 0.00013
                await clock.sleep_until(deadline_s)
                assert time.monotonic() >= deadline_s

    run(main, new_loop)


@pytest.mark.parametrize("make", CLOCKS)
def test_sleepers_wake_in_the_order_of_their_deadlines(make, new_loop):
    async def main():
        woken = []
        with contextlib.closing(make()) as clock:
            now_s = clock.now_s()

            async def sleep(delay_s):
                await clock.sleep_until(now_s + delay_s)
                woken.append(delay_s)

            delays = [0.03, 0.01, 0.05, 0.01, 0.02, 0.04]
            await asyncio.gather(*map(sleep, delays))
            assert woken == sorted(delays)

    run(main, new_loop)


@pytest.mark.parametrize("make", CLOCKS)
def test_a_cancelled_sleeper_does_not_keep_the_others_asleep(make, new_loop):
    async def main():
        with contextlib.closing(make()) as clock:
            now_s = clock.now_s()
            first = asyncio.create_task(clock.sleep_until(now_s + 0.01))
            second = asyncio.create_task(clock.sleep_until(now_s + 0.02))
            await asyncio.sleep(0)
            first.cancel()
            async with asyncio.timeout(PATIENCE_S):
                await second
            assert first.cancelled()

    run(main, new_loop)


@pytest.mark.parametrize("make", CLOCKS)
def test_a_deadline_that_has_passed_still_lets_others_run(make, new_loop):
    async def main():
        with contextlib.closing(make()) as clock:
            others = []
            asyncio.get_running_loop().call_soon(others.append, "ran")
            await clock.sleep_until(clock.now_s() - 1)
            assert others

    run(main, new_loop)


@pytest.mark.parametrize("make", CLOCKS)
def test_waiting_ends_with_the_event_or_at_the_deadline(make, new_loop):
    async def main():
        with contextlib.closing(make()) as clock:
            event = asyncio.Event()
            assert not await clock.wait(event, clock.now_s() + 0.001)
            asyncio.get_running_loop().call_soon(event.set)
            assert await clock.wait(event, clock.now_s() + 60)

    run(main, new_loop)
