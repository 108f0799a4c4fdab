"""What comes from Debian: programs for this machine, and root file systems for images."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed import versions
from testbed.errors import MissingProgram, Unavailable
from testbed.process import run, succeeds
from testbed.workshop import Workshop

_PACKAGES = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "zstd": "zstd",
    "tar": "tar",
    "openssl": "openssl",
}
_ARCHIVE_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_POLICY = Path("/usr/sbin/policy-rc.d")
_WITHOUT_MANUALS = tuple(
    f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale", "info")
)


def require_programs(shop: Workshop, names: Sequence[str], *, needed_for: str) -> None:
    """Install what is missing, where root may do that with apt; else say what is missing."""
    with shop.lock("apt"):
        wanted = {_PACKAGES[name] for name in names if shutil.which(name) is None}
        if "mmdebstrap" in names and not _ARCHIVE_KEYS.exists():
            wanted.add("debian-archive-keyring")
        if wanted:
            packages = sorted(wanted)
            if os.geteuid() != 0 or shutil.which("apt-get") is None:
                raise MissingProgram(
                    " ".join(packages),
                    needed_for=needed_for,
                    remedy="Install these packages (Debian's names), or run this as root on Debian "
                    "or Ubuntu, which installs them.",
                )
            _install(shop, packages)
        if "docker" in names and shutil.which("docker") is None:
            _install(shop, ["docker-cli"])  # a package of its own from Debian 13 on


def require_root(needed_for: str) -> None:
    """Refuse what mmdebstrap and chroot do as root only.

    Raises:
        Unavailable: for any other user.
    """
    if os.geteuid() != 0:
        raise Unavailable(
            f"{needed_for} needs root. Run this as root, or use a Docker daemon that can pull from "
            "an image registry, or set MOCKER_KUBECONFIG to the kubeconfig of a cluster of yours."
        )


def _install(shop: Workshop, packages: Sequence[str]) -> None:
    log = shop.log("apt")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    with shop.console.step(f"apt-get install {' '.join(packages)}"), _services_stay_off():
        if not succeeds([*install, "--simulate"]):
            run(["apt-get", "update"], log=log, env=env)
        run(install, log=log, env=env)


@contextmanager
def _services_stay_off() -> Iterator[None]:
    """Keep packages from starting their services (Docker's would run next to our own daemon)."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def root_file_system(
    target: Path,
    packages: Sequence[str],
    *,
    variant: str,
    log: Path,
    uploads: Sequence[Path] = (),
) -> None:
    """Write a tar of a Debian system with these packages; `variant` is mmdebstrap's.

    `uploads` are this machine's files that take the same place in the system.
    """
    require_root("Making a Debian root file system")
    mirror = os.environ.get("MOCKER_DEBIAN_MIRROR")
    command = [
        "mmdebstrap",
        "--mode=root",
        f"--variant={variant}",
        *_WITHOUT_MANUALS,
        f"--include={','.join(packages)}",
        *(f"--customize-hook=upload {path} {path}" for path in uploads),
        versions.DEBIAN,
        str(target),
        *([mirror] if mirror else []),
    ]
    env = os.environ | {"TMPDIR": str(target.parent)}
    run(command, log=log, env=env)
