"""Ends tasks that may lose a cancellation."""

import asyncio

_CANCEL_AGAIN_S = 3.0
"""Long enough not to cut off what a task does to clean up."""


async def end(task: "asyncio.Task[None]") -> None:
    """Cancel a task until it ends.

    nats-py, and `asyncio.wait_for` of Python 3.11 (bpo-37658), can swallow a cancellation.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)
