"""Containers that outlived their daemon: found by what their shims were started with."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GONE_S = 10.0


def kill_started_below(folder: Path) -> None:
    """Kill the processes that name a path below `folder` as an argument, and their children.

    A shim's child is the first process of a container, whose death ends all others in it.
    """
    word = f"{folder}/".encode()
    shims = [pid for pid, arguments in _processes() if any(word in a for a in arguments)]
    for pid in [*(child for shim in shims for child in _children(shim)), *shims]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _GONE_S
    while time.monotonic() < deadline and any(_alive(pid) for pid in shims):
        time.sleep(0.1)


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return found


def _alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected by its parent does not."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
