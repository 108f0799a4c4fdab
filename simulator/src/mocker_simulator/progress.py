"""A progress bar for people; nothing where nobody looks."""

import sys
from collections.abc import Callable
from typing import TextIO

_WIDTH = 40


def progress_bar(total: int, stream: TextIO | None = None) -> Callable[[int], None] | None:
    """Return a function that draws how many of `total` are done; None if not on a terminal."""
    out = stream or sys.stderr
    if total < 1 or not out.isatty():
        return None
    drawn = -1

    def draw(done: int) -> None:
        nonlocal drawn
        filled = done * _WIDTH // total
        if filled != drawn or done == total:
            drawn = filled
            bar = "#" * filled + "." * (_WIDTH - filled)
            out.write(f"\r[{bar}] {done}/{total} requests" + ("\n" if done == total else ""))
            out.flush()

    return draw
