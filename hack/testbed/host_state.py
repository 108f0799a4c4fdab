"""What a private Docker daemon changes on the machine, so that all of it can be taken back.

A snapshot is taken before the daemon starts. Only what is new since then, and names Docker's chains
or our bridges, is removed; a firewall keeps its own. While another daemon runs, only rules that
name our bridges go.
"""

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.errors import CommandFailed
from testbed.process import output, succeeds

_TABLES = [(c, t) for c in ("iptables", "ip6tables") for t in ("filter", "nat", "raw", "mangle")]
_FORWARDING = "net/ipv4/ip_forward"
_SYSCTLS = (
    _FORWARDING,
    # kubelet sets these through its privileged node, in every kind cluster.
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "fs/inotify/max_user_instances",
)
_INOTIFY_INSTANCES = 1024  # a node takes about 20, the kernel's default is 128


@dataclass(frozen=True, slots=True)
class HostState:
    """Firewall rules by "command table", kernel settings by their path below /proc/sys, links."""

    boot_id: str
    rules: dict[str, list[str]]
    settings: dict[str, str]
    links: list[str]

    @classmethod
    def now(cls) -> "HostState":
        """Read the machine's state."""
        rules = {f"{c} {t}": _rules(c, t) for c, t in _TABLES}
        settings = {name: _sysctl(name).read_text().strip() for name in _SYSCTLS}
        return cls(boot_id(), rules, settings, _links())

    @classmethod
    def load(cls, path: Path) -> "HostState | None":
        """Read a saved state; None when there is none of this boot."""
        try:
            state = cls(**json.loads(path.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return state if state.boot_id == boot_id() else None

    def save(self, path: Path) -> None:
        """Write the state for a later run."""
        path.write_text(json.dumps(asdict(self)))


def boot_id() -> str:
    """A word that changes when the machine restarts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def prepare() -> None:
    """Set what the daemon and the nodes need.

    A daemon that finds forwarding off turns it on and makes DROP the machine's policy for
    forwarded packets; one that finds it on leaves the policy alone.
    """
    _sysctl(_FORWARDING).write_text("1")
    instances = _sysctl("fs/inotify/max_user_instances")
    if int(instances.read_text()) < _INOTIFY_INSTANCES:
        instances.write_text(str(_INOTIFY_INSTANCES))


def docker_runs() -> bool:
    """Whether a Docker daemon runs on this machine, whoever started it."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # a process that has ended meanwhile
            if Path(os.fsdecode(file.read_bytes().split(b"\0")[0])).name == "dockerd":
                return True
    return False


def restore(before: HostState, *, bridges: Sequence[str], shared: bool) -> None:
    """Take back what came since `before` and belongs to Docker or these bridges.

    With `shared` another daemon runs, and Docker's chains and forwarding are left to it.
    """
    for command, table in _TABLES:
        old = before.rules.get(f"{command} {table}", [])
        for change in removals(old, _rules(command, table), bridges=bridges, shared=shared):
            succeeds([command, "-w", "-t", table, *change])
    for bridge in bridges:
        if Path("/sys/class/net", bridge).exists():
            succeeds(["ip", "link", "delete", bridge])
    for link in _links():
        if link not in before.links and _is_orphan(link):
            succeeds(["ip", "link", "delete", link])
    for name, value in before.settings.items():
        if shared and name == _FORWARDING:
            continue
        if _sysctl(name).read_text().strip() != value:
            _sysctl(name).write_text(value)


def removals(
    before: Sequence[str], after: Sequence[str], *, bridges: Sequence[str], shared: bool
) -> Iterator[list[str]]:
    """The iptables arguments that remove our lines of `iptables -S`: rules first, then chains.

    With `shared` only rules that name one of the bridges are ours.
    """
    words = [rf"{re.escape(bridge)}(?![\w.-])" for bridge in bridges]
    if not shared:
        words += [r"\bDOCKER\b", r"\bDOCKER-"]
    new = [line for line in after if line not in before and any(re.search(w, line) for w in words)]
    yield from (["-D", *shlex.split(line)[1:]] for line in new if line.startswith("-A "))
    chains = [line.split()[1] for line in new if line.startswith("-N ")]
    yield from (["-F", chain] for chain in chains)
    yield from (["-X", chain] for chain in chains)


def unmount_below(folder: Path) -> None:
    """Unmount everything at or below a folder, the deepest first."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted(mounted, key=len, reverse=True):
        if Path(point).is_relative_to(folder):
            succeeds(["umount", point]) or succeeds(["umount", "--lazy", point])


def remove_empty_cgroups(name: str) -> None:
    """Remove the parent groups that Docker leaves behind, where nothing is in them."""
    root = Path("/sys/fs/cgroup")
    for group in (root / name, *root.glob(f"*/{name}")):
        with suppress(OSError):
            group.rmdir()


def _rules(command: str, table: str) -> list[str]:
    if shutil.which(command) is None:
        return []
    try:
        return output([command, "-w", "-t", table, "-S"]).splitlines()
    except CommandFailed:  # a table that this kernel does not have
        return []


def _links() -> list[str]:
    return [link.name for link in Path("/sys/class/net").iterdir()]


def _is_orphan(link: str) -> bool:
    """Whether a link is named as Docker names a container's and hangs on no bridge.

    A daemon that was killed loses them; living containers' links are on their daemon's bridges.
    """
    docker_names_it = re.fullmatch(r"veth[0-9a-f]{7}", link) is not None
    return docker_names_it and not Path("/sys/class/net", link, "master").exists()


def _sysctl(name: str) -> Path:
    return Path("/proc/sys", name)
