"""The process, as every program with Prometheus' Python client describes it, vLLM included.

What the system does not tell (there is no /proc) is left out.
"""

import gc
import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path

from mocker_worker.server.exposition import Families, Family

_PROC = Path("/proc/self")
_STATM = str(_PROC / "statm")
_FDS = str(_PROC / "fd")


def process_start_s() -> float:
    """Return when this process was started, in Unix time; the present where nobody knows."""
    try:
        system = Path("/proc/stat").read_text(encoding="ascii")
        own = (_PROC / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return time.time()
    boot_s = next(int(line.split()[1]) for line in system.splitlines() if line[:5] == "btime")
    started_ticks = int(own.rpartition(")")[2].split()[19])
    return boot_s + started_ticks / os.sysconf("SC_CLK_TCK")


def process_families(started_s: float) -> Families:
    """Return the families `process_*` and `python_*`."""
    return [*(_linux_families() if _PROC.exists() else ()), *_families(started_s)]


def _families(started_s: float) -> Families:
    return [
        Family(
            "gauge",
            "process_start_time_seconds",
            "Start of the process in Unix time.",
            [({}, lambda: started_s)],
        ),
        Family(
            "counter",
            "process_cpu_seconds",
            "CPU time of the process in user and system mode.",
            [({}, time.process_time)],
        ),
        Family(
            "gauge",
            "process_max_fds",
            "File descriptors that the process may have open.",
            [({}, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])],
        ),
        *_python_families(),
    ]


def _linux_families() -> Families:
    page = os.sysconf("SC_PAGE_SIZE")
    return [
        Family(
            "gauge",
            "process_virtual_memory_bytes",
            "Virtual memory of the process.",
            [({}, lambda: _statm_pages(0) * page)],
        ),
        Family(
            "gauge",
            "process_resident_memory_bytes",
            "Memory of the process that is in RAM.",
            [({}, lambda: _statm_pages(1) * page)],
        ),
        Family(
            "gauge",
            "process_open_fds",
            "File descriptors that the process has open.",
            [({}, lambda: len(os.listdir(_FDS)))],
        ),
    ]


def _statm_pages(column: int) -> int:
    with open(_STATM, "rb") as file:
        return int(file.read().split()[column])


def _python_families() -> Families:
    major, minor, patch = platform.python_version_tuple()
    version = {
        "implementation": platform.python_implementation(),
        "major": major,
        "minor": minor,
        "patchlevel": patch,
        "version": platform.python_version(),
    }
    return [
        _collector("python_gc_objects_collected", "Objects that the collector freed.", "collected"),
        _collector(
            "python_gc_objects_uncollectable",
            "Objects that the collector found and could not free.",
            "uncollectable",
        ),
        _collector("python_gc_collections", "Runs of the collector.", "collections"),
        Family("gauge", "python_info", "Python that runs this process.", [(version, lambda: 1)]),
    ]


def _collector(name: str, text: str, field: str) -> Family:
    def read(generation: int) -> Callable[[], float]:
        return lambda: gc.get_stats()[generation][field]

    generations = range(len(gc.get_stats()))
    series = [({"generation": str(number)}, read(number)) for number in generations]
    return Family("counter", name, text, series)
