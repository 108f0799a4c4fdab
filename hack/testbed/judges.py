"""Foreign programs that judge ours, each in an environment of its own, never in `.venv`.

What a Python judge consists of is locked with hashes in hack/judges/NAME.lock, made from NAME.in by
`make lock`. Promtool is compiled from its Go module. docs/judges.md says who judges what.
Rivals are had in the same way, but only by name: they are measured by benchmarks, not in tests.
"""

import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from testbed.errors import TestbedError, Unavailable
from testbed.golang import (
    LLM_D_INFERENCE_SIM,
    PROMTOOL,
    GoProgram,
    architecture,
    built,
    ensure_programs,
)
from testbed.process import run
from testbed.workshop import REPOSITORY, Workshop, in_lanes, recipe_hash

LOCKS = REPOSITORY / "hack" / "judges"
_PIP_OPTIONS = (
    "--quiet",
    "--no-deps",
    "--no-compile",
    "--only-binary",
    ":all:",
    "--require-hashes",
)
_INSTALL_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class PythonJudge:
    """A package with all it needs, as `NAME.lock` has it."""

    name: str
    needs_glibc: tuple[int, int] | None = None
    """The oldest C library of the wheels, which are for Linux alone; None: they are for any."""
    below_python: tuple[int, int] | None = None
    """The first version of Python that the package refuses."""

    @property
    def lock(self) -> Path:
        """The file with every package, version and hash."""
        return LOCKS / f"{self.name}.lock"

    @property
    def folder(self) -> str:
        """The artefact folder's name."""
        tag = f"{sys.implementation.cache_tag}-{platform.system()}-{platform.machine()}".lower()
        return f"{self.name}-{tag}-{recipe_hash(self.lock, _PIP_OPTIONS, sys.version)}"


PYTHON_JUDGES = (
    PythonJudge("aiperf", below_python=(3, 14)),
    PythonJudge("dynamo-1.6.1", needs_glibc=(2, 28)),
    PythonJudge("dynamo-0.7.0", needs_glibc=(2, 28)),
    PythonJudge("schemathesis"),
)
NAMES = (*(judge.name for judge in PYTHON_JUDGES), PROMTOOL.name)
PYTHON_RIVALS = (PythonJudge("rival-dynamo-1.6.1", needs_glibc=(2, 28)),)
RIVALS = (*(rival.name for rival in PYTHON_RIVALS), LLM_D_INFERENCE_SIM.name)
_PYTHON = {judge.name: judge for judge in (*PYTHON_JUDGES, *PYTHON_RIVALS)}
_GO = {program.name: program for program in (PROMTOOL, LLM_D_INFERENCE_SIM)}


def install(shop: Workshop, names: Sequence[str] = NAMES) -> list[Path]:
    """Install those judges or rivals that are missing, two at a time; return where each is.

    That is the environment's folder, in which `bin/python` has the package, or the folder of the
    compiled program.

    Raises:
        Unavailable: This machine cannot have one of them; nothing was installed.
    """
    judges = [_PYTHON[name] for name in names if name in _PYTHON]
    for judge in judges:
        _require_platform(judge)
    compiled = [_GO[name] for name in names if name in _GO]
    tasks: list[Callable[[], object]] = [  # first, as they take longest
        partial(_ensure_program, shop, program) for program in compiled
    ]
    tasks += [partial(_ensure_environment, shop, judge) for judge in judges]
    in_lanes(tasks)
    return [_place(shop, name) for name in names]


def install_all(shop: Workshop) -> Path:
    """Install every judge; return a folder with a link of each one's name."""
    places = install(shop)
    folder = shop.artefact(f"judges-{recipe_hash([place.name for place in places])}")

    def link(target: Path, _log: Path) -> None:
        target.mkdir()
        for name, place in zip(NAMES, places, strict=True):
            (target / name).symlink_to(os.path.relpath(place, folder))

    return shop.ensure(folder, "collect the judges", link)


def _place(shop: Workshop, name: str) -> Path:
    if name in _GO:
        return built(shop, _GO[name]).parent
    return shop.artefact("judges", _PYTHON[name].folder)


def _ensure_program(shop: Workshop, program: GoProgram) -> None:
    ensure_programs(shop, f"compile {program.name}", [program])


def _require_platform(judge: PythonJudge) -> None:
    if judge.below_python is not None and sys.version_info >= judge.below_python:
        wanted, found = (".".join(map(str, v[:2])) for v in (judge.below_python, sys.version_info))
        raise Unavailable(f"{judge.name} needs a Python below {wanted}, and this is {found}")
    if judge.needs_glibc is None:
        return
    library, version = platform.libc_ver()
    if platform.system() == "Linux" and library == "glibc":
        architecture()  # which refuses other processors
        if tuple(map(int, version.split(".")[:2])) >= judge.needs_glibc:
            return
    wanted = ".".join(map(str, judge.needs_glibc))
    raise Unavailable(
        f"{judge.name} has packages for Linux with glibc {wanted} or later alone; this machine "
        f"has {platform.system()} with {library or 'another C library'} {version}".rstrip()
    )


def _ensure_environment(shop: Workshop, judge: PythonJudge) -> Path:
    target = _place(shop, judge.name)
    if target.exists():
        return target
    if importlib.util.find_spec("pip") is None:
        raise TestbedError(
            f"{sys.executable} has no pip, which installs the judges: run `make setup`, and then "
            "this with .venv/bin/python"
        )
    return shop.ensure(target, f"install {judge.name}", lambda to, log: _make(judge, to, log))


def _make(judge: PythonJudge, environment: Path, log: Path) -> None:
    """Leave an environment that works wherever it is moved to, by way of its `bin/python`."""
    run([sys.executable, "-m", "venv", "--without-pip", str(environment)], log=log)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    command = [*pip, "install", *_PIP_OPTIONS, "--requirement", str(judge.lock)]
    run(command, log=log, timeout_s=_INSTALL_TIMEOUT_S)
    # Their first lines name the folder that this environment is about to leave.
    for script in (environment / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            script.unlink()
