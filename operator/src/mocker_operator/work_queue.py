"""A keyed, level-triggered queue: waking a key means that it is due for a pass, no matter why.

One pass per key runs at a time. A wake-up during a pass causes one more pass, so none is lost, and
any number of wake-ups before a pass cause one. A key whose pass fails waits for its back-off, which
no wake-up cuts short. Keys that are at rest are not remembered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)
KeyT = TypeVar("KeyT")


@dataclass(frozen=True, slots=True)
class BackOff:
    """Waiting time after failures in a row: doubled with each, up to a ceiling."""

    first_s: float = 0.2
    most_s: float = 30.0

    def delay_s(self, failures: int) -> float:
        """Return the wait after so many failures (at least 1)."""
        doublings = min(failures - 1, 30)
        return float(min(self.most_s, self.first_s * 2**doublings))


@dataclass(slots=True)
class _State:
    waiting: bool = False
    busy: bool = False
    dirty: bool = False
    failures: int = 0
    not_before: float = 0.0
    timer: asyncio.TimerHandle | None = None


class WorkQueue(Generic[KeyT]):
    """Runs passes for the keys that were woken.

    Args:
        work: One pass; returns after how many seconds the key is due again, or None. What it
            raises counts as a failure of the key; an attribute `retry_after_s` of that exception
            sets the least wait.
        concurrency: Passes at a time, of different keys.
        back_off: Waits of failing keys.
    """

    def __init__(
        self,
        work: Callable[[KeyT], Awaitable[float | None]],
        *,
        concurrency: int = 8,
        back_off: BackOff | None = None,
    ) -> None:
        self._work = work
        self._concurrency = concurrency
        self._back_off = back_off or BackOff()
        self._states: dict[KeyT, _State] = {}
        self._ready: asyncio.Queue[KeyT] = asyncio.Queue()

    @property
    def depth(self) -> int:
        """Keys that could run now but wait for a worker."""
        return self._ready.qsize()

    @property
    def remembered(self) -> int:
        """Keys that are not at rest."""
        return len(self._states)

    def wake(self, key: KeyT) -> None:
        """Make the key due: at once, after the pass that runs, or at the end of its back-off."""
        state = self._states.setdefault(key, _State())
        if state.busy:
            state.dirty = True
        elif state.waiting:
            return
        elif state.not_before > asyncio.get_running_loop().time():
            self._arm(key, state, state.not_before)
        else:
            self._put(key, state)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._concurrency):
                group.create_task(self._worker(), name=f"reconcile-{number}")

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            state = self._states[key]
            state.waiting, state.busy, state.dirty = False, True, False
            try:
                await self._pass(key, state)
            finally:
                state.busy = False

    async def _pass(self, key: KeyT, state: _State) -> None:
        loop = asyncio.get_running_loop()
        due_after_s: float | None
        try:
            due_after_s = await self._work(key)
            state.failures, state.not_before = 0, 0.0
        except Exception as error:  # the root of a pass: no resource may stop the others
            state.failures += 1
            due_after_s = self._failed(key, state, error)
            state.not_before = loop.time() + due_after_s
        if state.dirty and not state.failures:
            self._put(key, state)
        elif due_after_s is not None:
            self._arm(key, state, loop.time() + due_after_s)
        else:
            self._cancel_timer(state)
            del self._states[key]

    def _failed(self, key: KeyT, state: _State, error: Exception) -> float:
        asked_s: float | None = getattr(error, "retry_after_s", None)
        delay_s = max(self._back_off.delay_s(state.failures), asked_s or 0.0)
        expected = hasattr(error, "retry_after_s")
        _log.warning(
            "pass of %s failed, next in %.1f s: %s",
            key,
            delay_s,
            str(error) or type(error).__name__,
            exc_info=None if expected else error,
        )
        return delay_s

    def _put(self, key: KeyT, state: _State) -> None:
        self._cancel_timer(state)
        state.waiting = True
        self._ready.put_nowait(key)

    def _arm(self, key: KeyT, state: _State, when: float) -> None:
        if state.timer is not None and state.timer.when() <= when:
            return
        self._cancel_timer(state)
        state.timer = asyncio.get_running_loop().call_at(when, self._due, key)

    def _due(self, key: KeyT) -> None:
        state = self._states[key]
        state.timer = None
        # A timer may fire a clock tick early; by now the back-off is over by definition.
        state.not_before = 0.0
        self.wake(key)

    @staticmethod
    def _cancel_timer(state: _State) -> None:
        if state.timer is not None:
            state.timer.cancel()
            state.timer = None
