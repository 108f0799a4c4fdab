"""A real nats-server with JetStream, on a port of its own, that can be stopped and started."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nats
import pytest

BINARY = Path(sys.executable).parent / "nats-server"
_START_TIMEOUT_S = 20


class NatsServer:
    """One server; its port and its storage outlive a restart."""

    def __init__(self, folder):
        self._folder = folder
        self._storage = folder / "jetstream"
        self._port = -1
        self._process = None

    @property
    def url(self):
        return f"nats://127.0.0.1:{self._port}"

    def start(self, *, jetstream=True):
        ports = self._folder / "ports"
        ports.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            [
                *(str(BINARY), "-a", "127.0.0.1", "-p", str(self._port)),
                *("--ports_file_dir", str(ports)),
                *(("-js", "-sd", str(self._storage)) if jetstream else ()),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._port = self._wait_for_port(ports)

    def stop(self):
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=_START_TIMEOUT_S)
            self._process = None

    @contextlib.contextmanager
    def hanging(self):
        """Stop the process without closing its connections, then let it go on."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def lose_storage(self):
        shutil.rmtree(self._storage)

    def _wait_for_port(self, ports):
        deadline = time.monotonic() + _START_TIMEOUT_S
        path = ports / f"nats-server_{self._process.pid}.ports"
        while time.monotonic() < deadline:
            assert self._process.poll() is None, "nats-server ended"
            try:
                return int(json.loads(path.read_text())["nats"][0].rsplit(":", 1)[1])
            except (OSError, ValueError):
                time.sleep(0.01)
        raise TimeoutError("nats-server does not listen")


@pytest.fixture
def nats_server(tmp_path):
    if not BINARY.exists():
        pytest.skip("nats-server is missing: install the development dependencies")
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def nats_client(nats_server):
    client = await nats.connect(
        nats_server.url,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.1,
        error_cb=_ignore,
    )
    yield client
    await client.close()


async def _ignore(error):
    """A server that is away is what some tests are about."""
