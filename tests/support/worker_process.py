"""A worker as a process of its own: the real command line, on uvloop, on a free port."""

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class WorkerProcess:
    """A worker that runs and is ready."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.process = process
        self.port = port

    def get(self, path: str) -> str:
        """Return the body of a GET."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, name: str) -> float:
        """Return the sum of a metric over all its labels."""
        pattern = re.compile(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", re.MULTILINE)
        return sum(map(float, pattern.findall(self.get("/metrics"))))

    def memory_mib(self) -> float:
        """Return its resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * 4096 / 2**20


@contextmanager
def worker_process(*flags: str) -> Iterator[WorkerProcess]:
    """Run `mocker-worker serve` until the end of the block; it must still run then."""
    command = [*(sys.executable, "-m", "mocker_worker.cli", "serve"), "--no-nats", "--port", "0"]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "listening on" in line)
        worker = WorkerProcess(process, int(line.rsplit(":", 1)[1]))
        _wait_until_ready(worker)
        yield worker
        assert process.poll() is None, "the worker died"
    finally:
        process.terminate()
        process.stderr.read()
        process.wait(30)
        process.stderr.close()


def _wait_until_ready(worker: WorkerProcess) -> None:
    for _ in range(1000):
        try:
            worker.get("/ready")
        except urllib.error.HTTPError:
            time.sleep(0.01)
        else:
            return
    raise TimeoutError("the worker did not become ready")
