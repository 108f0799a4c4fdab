"""A Docker daemon of our own: data, socket, bridge and address pool apart from any other's.

Its images stay in the cache folder, so a later cluster starts without loading them again. What it
does to the machine is undone by `stop`.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from testbed import debian, host_state, orphans
from testbed.errors import TestbedError, Unavailable
from testbed.host_state import HostState
from testbed.process import output, succeeds
from testbed.workshop import NODE_FILES, Workshop

BRIDGE = "mocker0"
_BRIDGE_ADDRESS = "172.29.255.1/24"
_ADDRESS_POOL = IPv4Network("172.28.240.0/20")
_CGROUP_PARENT = "mocker-testbed"
_CAP_SYS_RESOURCE = 24
_START_S = 30.0
_STOP_S = 40.0
_LONGEST_SOCKET_PATH = 100  # the kernel allows 107; containerd appends a few letters


class PrivateDaemon:
    """The daemon below `<cache>/docker`."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self._folder = shop.cache / "docker"
        self._socket = self._folder / "docker.sock"
        self._pid_file = self._folder / "docker.pid"
        self._before = self._folder / "host-before.json"

    @property
    def host(self) -> str:
        """The value for DOCKER_HOST."""
        return f"unix://{self._socket}"

    def environment(self) -> dict[str, str]:
        """The environment in which docker and kind talk to this daemon."""
        return {k: v for k, v in os.environ.items() if k != "DOCKER_CONTEXT"} | {
            "DOCKER_HOST": self.host
        }

    def answers(self) -> bool:
        """Whether the daemon is there."""
        return self._socket.exists() and succeeds(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            env=self.environment(),
            timeout_s=10,
        )

    def left_something(self) -> bool:
        """Whether the daemon runs, or has run since the last `stop`."""
        return self._before.exists()

    def require_possible(self) -> None:
        """Install what the daemon needs, and say at once if this user cannot have one."""
        if os.geteuid() != 0:
            raise Unavailable(
                "No Docker daemon answers, and only root can start one. Start Docker, or run this "
                "as root, or set MOCKER_KUBECONFIG to the kubeconfig of a cluster that you have."
            )
        if len(str(self._socket)) > _LONGEST_SOCKET_PATH:
            raise TestbedError(
                f"{self._socket} is too long for a socket: set MOCKER_CACHE to a shorter path."
            )
        debian.require_programs(
            self._shop,
            ["dockerd", "docker", "runc", "iptables", "ip", "zstd"],
            needed_for="a Docker daemon of our own",
        )

    def start(self) -> None:
        """Start the daemon, which must not run yet, and wait until it answers."""
        self.require_possible()
        with self._shop.console.step("start a private Docker daemon"):
            self._folder.mkdir(parents=True, exist_ok=True)
            if HostState.load(self._before) is None:
                HostState.now().save(self._before)
            host_state.prepare()
            _make_bridge()
            self._launch()

    def stop(self) -> None:
        """Stop the daemon and take back all that it changed on the machine."""
        with self._shop.console.step("stop the private Docker daemon"):
            bridges = [BRIDGE, *_network_bridges()]
            if self.answers():
                self._tidy()
            self._end()
            self._clear()
            if before := HostState.load(self._before):
                shared = host_state.docker_runs()
                host_state.restore(before, bridges=bridges, shared=shared)
            host_state.remove_empty_cgroups(_CGROUP_PARENT)
            self._before.unlink(missing_ok=True)

    def _launch(self) -> None:
        self._clear()
        log = self._folder / "dockerd.log"
        with log.open("wb") as out:
            daemon = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + _START_S
            while not self.answers():
                if daemon.poll() is not None or time.monotonic() > deadline:
                    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                    raise Unavailable(f"dockerd did not start (all of it: {log}):\n{tail}")
                time.sleep(0.1)
        except BaseException:
            daemon.terminate()
            daemon.wait()
            self.stop()
            raise

    def _command(self) -> list[str]:
        command = [
            "dockerd",
            f"--host={self.host}",
            f"--data-root={self._folder / 'data'}",
            f"--exec-root={self._folder / 'exec'}",
            f"--pidfile={self._pid_file}",
            f"--bridge={BRIDGE}",
            f"--default-address-pool=base={_ADDRESS_POOL},size=24",
            f"--cgroup-parent=/{_CGROUP_PARENT}",
        ]
        if not _may_raise_limits():
            shim = NODE_FILES / "runc-without-resource"
            command += [f"--add-runtime=limited={shim}", "--default-runtime=limited"]
        return command

    def _tidy(self) -> None:
        """Leave the daemon's data with images only."""
        env = self.environment()
        with suppress(TestbedError):
            if containers := output(["docker", "ps", "--all", "--quiet"], env=env).split():
                output(["docker", "rm", "--force", "--volumes", *containers], env=env)
            for command in ("network", "volume", "image"):
                output(["docker", command, "prune", "--force"], env=env)

    def _clear(self) -> None:
        """Remove what a daemon that does not run left behind, were it killed: it trips the next."""
        orphans.kill_started_below(self._folder / "exec")
        host_state.unmount_below(self._folder)
        shutil.rmtree(self._folder / "exec", ignore_errors=True)
        for left in (self._socket, self._pid_file):
            left.unlink(missing_ok=True)

    def _end(self) -> None:
        pid = self._pid()
        if pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_S
            while self._pid() is not None:
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)

    def _pid(self) -> int | None:
        """The daemon's process, checked by its arguments as a number may be another's by now."""
        try:
            pid = int(self._pid_file.read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ValueError, ProcessLookupError):
            return None
        return pid if f"--pidfile={self._pid_file}".encode() in arguments else None


def _make_bridge() -> None:
    if not Path("/sys/class/net", BRIDGE).exists():
        output(["ip", "link", "add", BRIDGE, "type", "bridge"])
        output(["ip", "address", "add", _BRIDGE_ADDRESS, "dev", BRIDGE])
        output(["ip", "link", "set", BRIDGE, "up"])


def _network_bridges() -> list[str]:
    """The bridges of this daemon's networks, kind's one, known by their addresses."""
    links = json.loads(output(["ip", "-json", "-4", "address", "show"]) or "[]")
    return [
        link["ifname"]
        for link in links
        if link.get("ifname", "").startswith("br-")
        and any(IPv4Address(a["local"]) in _ADDRESS_POOL for a in link["addr_info"])
    ]


def _may_raise_limits() -> bool:
    """Whether this root has CAP_SYS_RESOURCE, which Docker gives to privileged containers."""
    status = Path("/proc/self/status").read_text().splitlines()
    bounding = next(line.split()[1] for line in status if line.startswith("CapBnd:"))
    return bool(int(bounding, 16) >> _CAP_SYS_RESOURCE & 1)
