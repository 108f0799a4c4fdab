"""How tests wait for what nothing announces, with one patience for all of them.

No test asks how soon something comes: a wait that runs out means that it would never have come.
So the patience is far longer than the slowest machine needs, and shorter than a test's timeout.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0


async def until(
    condition: Callable[[], T | Awaitable[T]], saying: str = "", *, every_s: float = 0.02
) -> T:
    """Ask a condition, plain or a coroutine, until it gives something true, and return that.

    An AssertionError of it means not yet.

    Raises:
        AssertionError: the last one, or one with `saying` and what was seen, after PATIENCE_S.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + PATIENCE_S
    while True:
        try:
            given = condition()
            seen = await given if isinstance(given, Awaitable) else given
            if seen:
                return seen
            failure = AssertionError(f"not seen: {saying or condition}; but {seen!r}")
        except AssertionError as error:
            failure = error
        if loop.time() > deadline_s:
            raise failure
        await asyncio.sleep(every_s)
