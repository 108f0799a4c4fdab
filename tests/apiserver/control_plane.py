"""etcd, kube-apiserver and the garbage collector as plain processes on loopback ports.

There is no kubelet, no scheduler and no Deployment controller: tests write the status of
Deployments themselves, as users of envtest do.
"""

import json
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

ADMIN_TOKEN = "admin-token"
START_TIMEOUT_S = 60
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class ControlPlane:
    """A real API server that can be killed and started again."""

    def __init__(self, assets: Path, directory: Path) -> None:
        self._assets = assets
        self._dir = directory
        self._etcd_port, self._etcd_peer_port, self.port = free_port(), free_port(), free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"https://127.0.0.1:{self.port}"
        self.audit_log = directory / "audit.log"
        self.audit_log.touch()
        self._audit_events: list[dict[str, Any]] = []
        self._audited_bytes = 0

    @property
    def ca_file(self) -> Path:
        return self._dir / "certs" / "apiserver.crt"

    def start(self) -> None:
        (self._dir / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,1,"system:masters"\n')
        (self._dir / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
        key = str(self._dir / "service-accounts.key")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self._start_etcd()
        self.start_apiserver()

    def start_apiserver(self) -> None:
        key = str(self._dir / "service-accounts.key")
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=192.0.2.1",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self._dir / 'certs'}",
            f"--token-auth-file={self._dir / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--audit-policy-file={self._dir / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
        )
        self._wait_ready()

    def kill_apiserver(self) -> None:
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def stop(self) -> None:
        for name in ("kube-controller-manager", "kube-apiserver", "etcd"):
            if process := self._processes.pop(name, None):
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=3)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def kubeconfig(self, token: str, path: Path) -> Path:
        """Write a kubeconfig for the bearer of a token."""
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def audit(self, **fields: str) -> list[dict[str, Any]]:
        """Return the audit events whose fields (`user`, `namespace`, ...) have these values."""
        with self.audit_log.open("rb") as log:
            log.seek(self._audited_bytes)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._audited_bytes += len(line)
                self._audit_events.append(json.loads(line))
        events = self._audit_events
        return [e for e in events if all(_audited(e, k) == v for k, v in fields.items())]

    def _start_etcd(self) -> None:
        client = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._etcd_peer_port}"
        self._start(
            "etcd",
            f"--data-dir={self._dir / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def start_controller_manager(self) -> None:
        """Start the garbage collector; it takes 30 s to notice kinds that come later."""
        kubeconfig = self.kubeconfig(ADMIN_TOKEN, self._dir / "admin.kubeconfig")
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            "--controllers=garbage-collector-controller,namespace-controller",
            "--leader-elect=false",
            "--secure-port=0",
        )

    def _start(self, program: str, *flags: str) -> None:
        log = (self._dir / f"{program}.log").open("ab")
        with log:
            self._processes[program] = subprocess.Popen(
                [self._assets / program, *flags], stdout=log, stderr=log
            )

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if (code := self._processes["kube-apiserver"].poll()) is not None:
                raise RuntimeError(f"kube-apiserver ended with {code}:\n{self._log_end()}")
            if self._ready():
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"kube-apiserver is not ready:\n{self._log_end()}")
            time.sleep(0.1)

    def _ready(self) -> bool:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        request = urllib.request.Request(f"{self.url}/readyz", headers=headers)
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file))
            with urllib.request.urlopen(request, context=context, timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _log_end(self) -> str:
        return (self._dir / "kube-apiserver.log").read_text()[-3000:]


def _audited(event: dict[str, Any], field: str) -> str | None:
    match field:
        case "user":
            return str(event["user"]["username"])
        case "verb":
            return str(event["verb"])
        case _:
            value = (event.get("objectRef") or {}).get(field)
            return None if value is None else str(value)
