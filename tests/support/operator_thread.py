"""An operator in this process, in a thread and an event loop of its own.

At its end Kopf takes every task of its loop for its own and cancels it, so it cannot share a
test's loop. The thread is a daemon: a test that failed does not wait for an operator that hangs.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from mocker_operator.config import OperatorConfig
from mocker_operator.program import run


@dataclass(frozen=True, slots=True)
class OperatorThread:
    """An operator that has begun to run."""

    stop: Callable[[], object]
    ended: asyncio.Future[None]
    """Done when the operator has ended, with its error if it had one."""


async def start_operator(config: OperatorConfig) -> OperatorThread:
    """Start an operator; return when its loop runs."""
    outer, started = asyncio.get_running_loop(), asyncio.Event()
    ended: Future[None] = Future()
    stops: list[Callable[[], object]] = []

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        stops.append(lambda: loop.is_closed() or loop.call_soon_threadsafe(stop.set))
        outer.call_soon_threadsafe(started.set)
        await run(config, stop)
        # Connections that were closed say goodbye in the next rounds of the loop.
        await asyncio.sleep(0.05)

    def thread() -> None:
        try:
            ended.set_result(asyncio.run(main()))
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=thread, name="operator-under-test", daemon=True).start()
    await started.wait()
    return OperatorThread(stops[0], asyncio.wrap_future(ended))
