"""Runs every tier of tests that this machine allows, and says what it left out and why.

Tiers: unit < nats < kmock < apiserver < cluster. The quick ones need nothing but `.venv`;
`apiserver` needs the API server's binaries and `cluster` a cluster, which are made here where
they are missing and taken down again at the end. With CI=true nothing may be left out.

    hack/test.py [TIER ...] [-- PYTEST ARGUMENTS]
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIERS = ("unit", "nats", "kmock", "apiserver", "cluster")
CLUSTER = "mocker-test"
IMAGE = "localhost/mocker:test"
_NOT_TO_BE_HAD = 3
"""Exit code of hack/cluster.py when this machine cannot have what was asked for."""


class NotToBeHad(Exception):
    """A tier's ground is missing on this machine; the text says what and why."""


def main(arguments: list[str]) -> int:
    """Prepare the tiers that were asked for, run them, and clean up; return pytest's verdict."""
    names, _, pytest_arguments = _split(arguments)
    tiers = [tier for tier in TIERS if not names or tier in names]
    environment = dict(os.environ)
    skipped: dict[str, str] = {}
    try:
        for tier, prepare in (("apiserver", _assets), ("cluster", _cluster)):
            if tier not in tiers:
                continue
            try:
                environment |= prepare()
            except NotToBeHad as reason:
                skipped[tier] = str(reason)
                tiers.remove(tier)
        if skipped and os.environ.get("CI") == "true":
            return _report(skipped) or 1
        code = _pytest(tiers, pytest_arguments, environment)
    finally:
        if "cluster" in tiers and "MOCKER_KUBECONFIG" not in os.environ:
            _cluster_command("down", "--name", CLUSTER)
    _report(skipped)
    return code


def _split(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], "--", arguments[at + 1 :]


def _report(skipped: dict[str, str]) -> None:
    for tier, reason in skipped.items():
        print(f"NOT RUN: the {tier} tier: {reason}", flush=True)


def _assets() -> dict[str, str]:
    return {"KUBEBUILDER_ASSETS": _cluster_command("assets").strip().splitlines()[-1]}


def _cluster() -> dict[str, str]:
    """Bring up the tests' own cluster with the images in it; return what pytest needs to see it.

    On a cluster that MOCKER_KUBECONFIG names, IMAGE must name an image that it can pull.
    """
    _cluster_command("up", "--name", CLUSTER)
    environment = {"IMAGE": os.environ.get("IMAGE", IMAGE)}
    if "MOCKER_KUBECONFIG" not in os.environ:
        environment["IMAGE"] = _cluster_command("build-image", "--tag", IMAGE).strip()
        _cluster_command("load", "--name", CLUSTER, environment["IMAGE"])
        environment["NATS_IMAGE"] = _cluster_command("nats-image", "--name", CLUSTER).strip()
    lines = _cluster_command("env", "--name", CLUSTER).splitlines()
    return environment | dict(_exported(line) for line in lines if line.startswith("export "))


def _exported(line: str) -> tuple[str, str]:
    name, _, value = shlex.split(line)[1].partition("=")
    return name, os.path.expandvars(value)


def _cluster_command(*arguments: str) -> str:
    """Run hack/cluster.py; its progress goes to the terminal, its answer is returned."""
    command = [sys.executable, str(ROOT / "hack/cluster.py"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode == _NOT_TO_BE_HAD:
        raise NotToBeHad(done.stdout.strip() or "see above")
    done.check_returncode()
    return done.stdout


def _pytest(tiers: list[str], arguments: list[str], environment: dict[str, str]) -> int:
    folders = [str(ROOT / "tests" / tier) for tier in tiers]
    command = [sys.executable, "-m", "pytest", *folders, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
