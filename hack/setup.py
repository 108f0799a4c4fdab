#!/usr/bin/env python3
"""Make `.venv` hold what the lock file says, and the project itself; do nothing if it does.

Runs on the system's Python before anything is installed, so it uses the standard library only.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements-dev.lock"
STAMP = VENV / ".lock-digest"
MINIMUM = (3, 11)


def main() -> int:
    """Return 0 when the environment is complete."""
    if sys.version_info < MINIMUM:
        wanted = ".".join(map(str, MINIMUM))
        print(f"setup: Python {wanted} or newer is needed, this is {sys.version.split()[0]}")
        return 1
    digest = hashlib.sha256(
        LOCK.read_bytes() + (ROOT / "pyproject.toml").read_bytes() + sys.version.encode()
    ).hexdigest()
    if STAMP.exists() and STAMP.read_text() == digest:
        return 0
    began = time.monotonic()
    packages = sum(1 for line in LOCK.read_text().splitlines() if line[:1].isalnum())
    print(f"setup: installing {packages} locked packages into .venv", flush=True)
    if not _create_environment():
        return 1
    pip = [VENV / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    # A package that is on disk already must not be taken for the one whose hash is locked.
    subprocess.run([*pip, "--require-hashes", "--requirement", LOCK], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT], check=True)
    STAMP.write_text(digest)
    print(f"setup: done in {time.monotonic() - began:.0f} s", flush=True)
    return 0


def _create_environment() -> bool:
    shutil.rmtree(VENV, ignore_errors=True)
    create = [sys.executable, "-m", "venv", str(VENV)]
    if subprocess.run(create, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
        return True
    shutil.rmtree(VENV, ignore_errors=True)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print("setup: `python3 -m venv` does not work; install your system's python3-venv")
        return False
    print("setup: installing python3-venv with apt-get", flush=True)
    quiet = {
        "stdout": subprocess.DEVNULL,
        "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    }
    subprocess.run(["apt-get", "update", "-qq"], check=True, **quiet)
    subprocess.run(["apt-get", "install", "-qq", "--yes", "python3-venv"], check=True, **quiet)
    return subprocess.run(create).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
