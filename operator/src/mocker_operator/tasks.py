"""Ending tasks that may not hear the first cancellation."""

import asyncio
from collections.abc import Iterable
from typing import Any

_PATIENCE_S = 3.0
"""Long enough for the clean-up of a task that did hear: a second cancellation would cut it off."""


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended; whoever wants their errors asks them.

    A wait with a time limit (`asyncio.wait_for` before Python 3.12, which NATS's client uses
    throughout) can lose a cancellation that arrives just as it ends. A task group cancels its
    tasks once and would then wait for ever.
    """
    tasks = set(tasks)
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_PATIENCE_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # or asyncio would log it as never looked at
