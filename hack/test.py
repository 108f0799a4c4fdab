"""Runs every tier of tests that this machine allows, and says what it left out and why.

Tiers: unit < nats < kmock < apiserver < judges < cluster. The quick ones need nothing but `.venv`;
`apiserver` needs the API server's binaries, `judges` etcd and foreign programs, and `cluster` a
cluster. All of that is made here where it is missing, and the cluster is taken down again at the
end, also after Ctrl-C or SIGTERM. A tier whose ground cannot be prepared does not keep the others
from running. With CI=true none may be left out.

    hack/test.py [TIER ...] [-- PYTEST ARGUMENTS]
"""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
TIERS = ("unit", "nats", "kmock", "apiserver", "judges", "cluster")
CLUSTER = "mocker-test"
IMAGE = "localhost/mocker:test"
_NOT_TO_BE_HAD = 3
"""Exit code of the programs in hack/ when this machine cannot have what was asked for."""
_INTERRUPTED = 130


class PreparationFailed(Exception):
    """A tier's ground could not be made; the text says why."""


class NotToBeHad(PreparationFailed):
    """This machine cannot have a tier's ground; the text says what is missing."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which unlike Ctrl-C does not reach the programs that run for us."""


def main(arguments: list[str]) -> int:
    """Prepare the tiers that were asked for, run them, and clean up.

    Returns:
        pytest's verdict, or 1 when a tier should have run and could not.
    """
    names, pytest_arguments = _split(arguments)
    tiers = [tier for tier in TIERS if not names or tier in names]
    signal.signal(signal.SIGTERM, _terminate)
    not_run: dict[str, PreparationFailed] = {}
    try:
        environment = _prepare(tiers, not_run)
        ready = [tier for tier in tiers if tier not in not_run]
        code = _pytest(ready, pytest_arguments, environment) if ready else 0
    except KeyboardInterrupt:
        code = _INTERRUPTED
    finally:
        if "cluster" in tiers:
            _clean_up()
    for tier, reason in not_run.items():
        print(f"NOT RUN: the {tier} tier: {reason}", flush=True)
    return code or int(any(_is_fault(reason) for reason in not_run.values()))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def _is_fault(reason: PreparationFailed) -> bool:
    return not isinstance(reason, NotToBeHad) or os.environ.get("CI") == "true"


def _prepare(tiers: list[str], not_run: dict[str, PreparationFailed]) -> dict[str, str]:
    """Make the tiers' ground; return pytest's environment, and add to `not_run` what failed."""
    environment = dict(os.environ)
    grounds = (("apiserver", _assets), ("judges", _judges), ("cluster", _cluster))
    for tier, prepare in grounds:
        if tier in tiers:
            try:
                environment |= prepare()
            except PreparationFailed as reason:
                not_run[tier] = reason
    return environment


def _clean_up() -> None:
    """Take the tests' cluster down, undisturbed by signals; one of the user's is left alone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # as does the program that is started
    try:
        _cluster_command("down", "--name", CLUSTER)
    except PreparationFailed as error:
        print(f"clean-up: {error}", file=sys.stderr, flush=True)


def _assets() -> dict[str, str]:
    return {"KUBEBUILDER_ASSETS": _last_line(_cluster_command("assets"))}


def _judges() -> dict[str, str]:
    folder = _last_line(_command("judges.py", "install"))
    return _assets() | {"MOCKER_JUDGES": folder}


def _cluster() -> dict[str, str]:
    """Bring up the tests' cluster with the images in it; return what pytest needs to see it.

    For a cluster that MOCKER_KUBECONFIG names nothing is made, and IMAGE is taken as it is.
    """
    _cluster_command("up", "--name", CLUSTER)
    environment = {"IMAGE": _cluster_command("build-image", "--tag", IMAGE).strip()}
    _cluster_command("load", "--name", CLUSTER, environment["IMAGE"])
    environment["NATS_IMAGE"] = _cluster_command("nats-image", "--name", CLUSTER).strip()
    lines = _cluster_command("env", "--name", CLUSTER).splitlines()
    return environment | dict(exported(line) for line in lines)


def exported(line: str) -> tuple[str, str]:
    """A variable and its value from a line for a shell, `export NAME=VALUE`."""
    name, _, value = shlex.split(line)[1].partition("=")
    return name, value.replace("$PATH", os.environ["PATH"]) if name == "PATH" else value


def _cluster_command(*arguments: str) -> str:
    return _command("cluster.py", *arguments)


def _command(program: str, *arguments: str) -> str:
    """Run a program of hack/; its progress goes to the terminal, its answer is returned."""
    command = [sys.executable, str(ROOT / "hack" / program), *arguments]
    code, said = _run(command, stdout=subprocess.PIPE)
    if code:
        reason = next(iter(said.strip().splitlines()), "see above")
        failed = NotToBeHad if code == _NOT_TO_BE_HAD else PreparationFailed
        raise failed(f"`hack/{program} {arguments[0]}` ended with {code}: {reason}")
    return said


def _last_line(said: str) -> str:
    return said.strip().splitlines()[-1]


def _pytest(tiers: list[str], arguments: list[str], environment: dict[str, str]) -> int:
    folders = [str(ROOT / "tests" / tier) for tier in tiers]
    command = [sys.executable, "-m", "pytest", *folders, *arguments]
    return _run(command, environment=environment)[0]


def _run(
    command: list[str], *, stdout: int | None = None, environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run a program to its end; when interrupted, wait until it has cleaned up after itself."""
    terminated: list[int] = []
    is_awaited = signal.getsignal(signal.SIGTERM) is _terminate
    if is_awaited:  # not while nobody knows the program yet
        signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    child = subprocess.Popen(command, stdout=stdout, text=True, cwd=ROOT, env=environment)
    try:
        if is_awaited:
            signal.signal(signal.SIGTERM, _terminate)
        if terminated:
            raise Terminated
        said, _ = child.communicate()
    except KeyboardInterrupt as interruption:
        if isinstance(interruption, Terminated):
            child.send_signal(signal.SIGINT)
        child.wait()
        raise
    return child.returncode, said or ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
