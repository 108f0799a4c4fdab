"""The command-line tools kind, kubectl and helm: this machine's own when new enough, else ours."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import versions
from testbed.errors import TestbedError
from testbed.golang import (
    APISERVER,
    CONTROLLER_MANAGER,
    ETCD,
    HELM,
    KIND,
    KUBECTL,
    GoProgram,
    architecture,
    built,
    ensure_programs,
)
from testbed.process import output
from testbed.workshop import Workshop, recipe_hash

ASSETS = ("kube-apiserver", "kube-controller-manager", "etcd", "kubectl")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, how it tells its version, and the oldest version (major, minor) that will do."""

    program: GoProgram
    version_arguments: tuple[str, ...]
    oldest: tuple[int, int]


TOOLS = {
    "kind": Tool(KIND, ("version",), versions.OLDEST_KIND),
    "kubectl": Tool(KUBECTL, ("version", "--client"), versions.OLDEST_KUBECTL),
    "helm": Tool(HELM, ("version", "--short"), versions.OLDEST_HELM),
}


def parse_version(said: str) -> tuple[int, int] | None:
    """The first `v1.2` in what a program says about itself, as (major, minor)."""
    found = re.search(r"\bv(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None


def installed(name: str) -> Path | None:
    """The tool on PATH, if it is new enough."""
    tool = TOOLS[name]
    path = shutil.which(name)
    if path is None:
        return None
    try:
        version = parse_version(output([path, *tool.version_arguments], timeout_s=20))
    except (TestbedError, OSError):
        return None
    return Path(path) if version is not None and version >= tool.oldest else None


def ensure(shop: Workshop, name: str) -> Path:
    """Return where the tool is, compiling it if the machine has none that will do."""
    if path := have(shop, name):
        return path
    program = TOOLS[name].program
    ensure_programs(shop, f"compile {name}", [program])
    return built(shop, program)


def have(shop: Workshop, name: str) -> Path | None:
    """Return where the tool is, or None; compiles nothing."""
    if path := installed(name):
        return path
    ours = built(shop, TOOLS[name].program)
    return ours if ours.exists() else None


def assets(shop: Workshop, given: str | None) -> Path:
    """A folder with the control plane's programs, for tests that start their own API server.

    `given` is KUBEBUILDER_ASSETS, used when all four programs are there.
    """
    if given and missing_assets(Path(given)) == []:
        return Path(given)
    programs: Sequence[GoProgram] = (APISERVER, CONTROLLER_MANAGER, KUBECTL)
    ensure_programs(shop, "compile the API server", programs)
    ensure_programs(shop, "compile etcd", [ETCD])
    everything = (*programs, ETCD)
    folder = f"assets-{architecture()}-{recipe_hash([p.folder for p in everything])}"

    def link(target: Path, _log: Path) -> None:
        target.mkdir()
        for program in everything:
            (target / program.name).symlink_to(Path("../bin", program.folder, program.name))

    return shop.ensure(shop.artefact(folder), "collect the API server's programs", link)


def missing_assets(folder: Path) -> list[str]:
    """Which of the four programs the folder lacks."""
    return [name for name in ASSETS if shutil.which(name, path=str(folder)) is None]
