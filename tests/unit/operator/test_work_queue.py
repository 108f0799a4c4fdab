"""The queue in virtual time: waiting costs nothing and every delay is exact."""

import asyncio
import selectors
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import pytest

from mocker_operator.work_queue import BackOff, WorkQueue


class Hiccup(Exception):
    retry_after_s: float | None = None


class _SkippingSelector(selectors.DefaultSelector):
    """Answers at once and moves the loop's clock by the time it was to wait."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if found := super().select(0):
            return found
        assert timeout is not None, "the loop would wait for ever"
        self.skipped_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s


class Passes:
    """Records when passes begin; each takes a second and does what the script says."""

    def __init__(self, outcomes: Iterable[Exception | float | None] = ()) -> None:
        self.began: dict[str, list[float]] = defaultdict(list)
        self.running: dict[str, int] = defaultdict(int)
        self.most_at_once = 0
        self._outcomes = iter(outcomes)

    async def __call__(self, key: str) -> float | None:
        assert not self.running[key], "two passes of one key at a time"
        self.began[key].append(asyncio.get_running_loop().time())
        self.running[key] += 1
        self.most_at_once = max(self.most_at_once, sum(self.running.values()))
        try:
            await asyncio.sleep(1)
        finally:
            self.running[key] -= 1
        outcome = next(self._outcomes, None)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


Script = Callable[[WorkQueue[str]], Awaitable[None]]


def play(passes: Passes, script: Script, *, for_s: float = 60, concurrency: int = 8) -> int:
    """Run a script beside the queue; return how many keys the queue remembers in the end."""

    async def main() -> int:
        queue = WorkQueue[str](
            passes, concurrency=concurrency, back_off=BackOff(first_s=2, most_s=10)
        )
        async with asyncio.TaskGroup() as group:
            worker = group.create_task(queue.run())
            await script(queue)
            await asyncio.sleep(for_s)
            worker.cancel()
        return queue.remembered

    return _run(main())


def _run(main: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


async def wake_at(queue: WorkQueue[str], *times_s: float, key: str = "a") -> None:
    for time_s in times_s:
        await asyncio.sleep(time_s - asyncio.get_running_loop().time())
        queue.wake(key)


def test_wake_ups_before_a_pass_cause_one_pass() -> None:
    passes = Passes()

    async def wake_thrice(queue: WorkQueue[str]) -> None:
        for _ in range(3):
            queue.wake("a")

    play(passes, wake_thrice)
    assert passes.began == {"a": [0]}


def test_wake_ups_during_a_pass_cause_exactly_one_more() -> None:
    passes = Passes()
    play(passes, lambda queue: wake_at(queue, 0, 0.3, 0.6, 0.9))
    assert passes.began == {"a": [0, 1]}


def test_keys_run_side_by_side_up_to_the_limit() -> None:
    passes = Passes()

    async def wake_many(queue: WorkQueue[str]) -> None:
        for key in "abcdef":
            queue.wake(key)

    play(passes, wake_many, concurrency=2)
    assert passes.most_at_once == 2
    assert sorted(passes.began) == list("abcdef")


def test_a_failing_key_waits_twice_as_long_each_time_up_to_a_ceiling() -> None:
    passes = Passes([Hiccup()] * 5)
    play(passes, lambda queue: wake_at(queue, 0))
    waits = [2, 4, 8, 10, 10]
    expected = [0.0]
    for wait in waits:
        expected.append(expected[-1] + 1 + wait)
    assert passes.began["a"] == expected


def test_wake_ups_do_not_cut_a_back_off_short() -> None:
    passes = Passes([Hiccup()])
    play(passes, lambda queue: wake_at(queue, 0, 0.5, 1.5, 2, 2.5))
    assert passes.began == {"a": [0, 3]}


def test_a_pass_that_succeeds_ends_the_back_off() -> None:
    passes = Passes([Hiccup(), None, Hiccup()])
    play(passes, lambda queue: wake_at(queue, 0, 10))
    assert passes.began == {"a": [0, 3, 10, 13]}


def test_a_server_that_asks_for_a_longer_wait_gets_it() -> None:
    error = Hiccup()
    error.retry_after_s = 7
    passes = Passes([error])
    play(passes, lambda queue: wake_at(queue, 0))
    assert passes.began == {"a": [0, 8]}


def test_a_bug_in_one_pass_stops_no_other_key(caplog: pytest.LogCaptureFixture) -> None:
    passes = Passes([ZeroDivisionError("a bug")])

    async def wake_two(queue: WorkQueue[str]) -> None:
        queue.wake("a")
        await asyncio.sleep(0.5)
        queue.wake("b")

    play(passes, wake_two)
    assert passes.began == {"a": [0, 3], "b": [0.5]}
    assert "ZeroDivisionError" in caplog.text


def test_a_key_that_asks_to_be_due_again_is() -> None:
    passes = Passes([5.0, None])
    play(passes, lambda queue: wake_at(queue, 0))
    assert passes.began == {"a": [0, 6]}


def test_a_wake_up_comes_before_the_time_a_key_asked_for() -> None:
    passes = Passes([30.0])
    remembered = play(passes, lambda queue: wake_at(queue, 0, 4), for_s=120)
    assert passes.began == {"a": [0, 4]}
    assert remembered == 0


def test_keys_at_rest_are_forgotten() -> None:
    async def wake_many(queue: WorkQueue[str]) -> None:
        for number in range(100):
            queue.wake(f"key-{number}")

    assert play(Passes([Hiccup()]), wake_many) == 0
