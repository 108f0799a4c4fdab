"""The Docker daemon that is used: the machine's own when one answers, else a private one.

MOCKER_DOCKER=private asks for the private one in any case.
"""

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed import versions
from testbed.private_daemon import PrivateDaemon
from testbed.process import output, pipe, run, succeeds
from testbed.workshop import Workshop

_PULL_ANSWER_S = 20.0
_PULL_S = 600.0


@dataclass(frozen=True, slots=True)
class Docker:
    """A daemon that answers, by the environment that leads to it."""

    environment: Mapping[str, str]
    private: bool

    def output(self, *arguments: str) -> str:
        """Run the docker client and return what it writes."""
        return output(["docker", *arguments], env=self.environment, timeout_s=300)

    def has_image(self, reference: str) -> bool:
        """Whether the daemon holds the image."""
        return succeeds(["docker", "image", "inspect", reference], env=self.environment)

    def load(self, archive: Path, *, log: Path) -> None:
        """Load an image file: a tar, or one that zstd compressed."""
        if archive.suffix != ".zst":
            run(["docker", "load", "--input", str(archive)], log=log, env=self.environment)
            return
        pipe(["zstd", "-dc", str(archive)], ["docker", "load"], log=log, env=self.environment)

    def pull(self, shop: Workshop, reference: str) -> bool:
        """Pull an image; False when no registry answers soon, or it has no such image."""
        with shop.console.step(f"pull {reference.partition('@')[0]}"):
            return _pull(["docker", "pull", reference], self.environment)


def ambient() -> Docker | None:
    """The daemon that a plain `docker` command reaches, unless it is to be left alone."""
    if os.environ.get("MOCKER_DOCKER") == "private":
        return None
    reaches = succeeds(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=10)
    return Docker(dict(os.environ), private=False) if reaches else None


def running(shop: Workshop) -> Docker | None:
    """The daemon in use, without starting one."""
    daemon = PrivateDaemon(shop)
    if daemon.answers():
        return Docker(daemon.environment(), private=True)
    return ambient()


def ensure(shop: Workshop) -> Docker:
    """Return the daemon in use, starting a private one if there is none."""
    if found := running(shop):
        return found
    daemon = PrivateDaemon(shop)
    daemon.start()
    return Docker(daemon.environment(), private=True)


@contextmanager
def session(shop: Workshop) -> Iterator[Docker]:
    """A daemon for one command; one that was started for it is stopped again."""
    with shop.lock("clusters"):
        before = running(shop)
        docker = before or ensure(shop)
        try:
            yield docker
        finally:
            if before is None:
                PrivateDaemon(shop).stop()


def stock_node_image(shop: Workshop, docker: Docker) -> str | None:
    """The stock node image of kind's authors, if it is there or a registry has it."""
    pinned = f"{versions.STOCK_NODE_IMAGE}@{versions.STOCK_NODE_DIGEST}"
    for reference in (pinned, versions.STOCK_NODE_IMAGE):
        if docker.has_image(reference):
            return reference
    return pinned if docker.pull(shop, pinned) else None


def _pull(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Run `docker pull`, giving up when it has not found the image within seconds.

    Its first line says that the registry has the image; without one a firewall may swallow packets.
    """
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        found = threading.Event()
        ended = threading.Event()

        def read() -> None:
            for _ in child.stdout or ():
                found.set()
            found.set()
            ended.set()

        threading.Thread(target=read, name="docker pull", daemon=True).start()
        try:
            return found.wait(_PULL_ANSWER_S) and ended.wait(_PULL_S) and child.wait() == 0
        finally:
            child.kill()
