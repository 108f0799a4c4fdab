"""Render the chart with the real helm.

The tests are skipped where there is none, and fail where nothing may be skipped.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts/mocker-operator"
# A helm that was built from its Go module claims to render for Kubernetes 1.20.
KUBE_VERSION = "1.34.0"

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


@pytest.fixture(scope="session")
def helm() -> Path:
    """Path of a helm: from PATH, else from the cache of `make cluster-up`."""
    found = shutil.which("helm") or _cached_helm()
    if found:
        return Path(found)
    reason = "no helm on PATH, and none in the cache: install it or run `make cluster-up`"
    if os.environ.get("CI") == "true" or os.environ.get("MOCKER_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _cached_helm() -> str | None:
    script = ROOT / "hack/cluster.py"
    if not script.exists():
        return None
    env = f'eval "$({shlex.quote(sys.executable)} {shlex.quote(str(script))} env)"'
    done = subprocess.run(
        ["bash", "-c", f"{env} && command -v helm"], capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() or None


@pytest.fixture(scope="session")
def run_helm(helm: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run helm with arguments, without raising."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([helm, *arguments], capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture(scope="session")
def render(run_helm: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """Return the objects that release `mocker` in `mocker-system` installs, CRDs left out."""

    def render_values(*values: str) -> list[Manifest]:
        settings = [word for value in values for word in ("--set", value)]
        done = run_helm(
            *("template", "mocker", str(CHART), "--namespace", "mocker-system"),
            *("--kube-version", KUBE_VERSION, *settings),
        )
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return render_values
