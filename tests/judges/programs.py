"""The processes of a test: a worker, servers, and judges that answer questions while they run."""

import asyncio
import json
import os
import re
import shutil
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from judge_programs import Judges
from waiting import PATIENCE_S, until

BIN = Path(sys.executable).parent
END_TIMEOUT_S = 20
_LONGEST_ANSWER_BYTES = 2**24


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def dynamo_servers(nats: str, etcd: str) -> dict[str, str]:
    """The environment in which Dynamo, of either version, uses these servers."""
    return {
        "NATS_SERVER": nats,
        "ETCD_ENDPOINTS": etcd,
        "DYN_DISCOVERY_BACKEND": "etcd",
        "DYN_EVENT_PLANE": "nats",
        "DYN_LOG": "warn",
    }


class Program:
    """One process; what it writes to standard error is in a file."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def logged(self, pattern: str) -> re.Match[str]:
        """Wait for a line in its log."""

        async def look() -> re.Match[str] | None:
            found = re.search(pattern, self.log)
            assert found or self.process.returncode is None, f"it ended: {self.log[-2000:]}"
            return found

        return await until(look, saying=f"{pattern!r} in {self._log.name}")

    async def stop(self) -> int:
        """End it, politely first; returns its exit code."""
        if self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), END_TIMEOUT_S)
            except TimeoutError:
                self.process.kill()
        return await self.process.wait()


P = TypeVar("P", bound=Program)


class Worker(Program):
    """`mocker-worker serve`, as a container runs it."""

    url = ""

    async def ready(self) -> "Worker":
        self.url = (await self.logged(r"listening on (http://\S+)"))[1]
        async with aiohttp.ClientSession(self.url) as http:

            async def is_ready() -> bool:
                assert self.process.returncode is None, f"it ended: {self.log[-2000:]}"
                async with http.get("/ready") as answer:
                    return answer.status == 200

            await until(is_ready)
        return self

    async def kill(self) -> None:
        """End it as a kernel without memory does."""
        self.process.kill()
        await self.process.wait()

    @property
    def worker_id(self) -> int:
        return int(re.search(r"worker (\d+) \(", self.log)[1])


class Consumer(Program):
    """A judge that answers one JSON line with another."""

    async def ready(self) -> "Consumer":
        assert await self._read() == "ready"
        return self

    async def ask(self, **question: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        return await self._read()

    async def stop(self) -> int:
        if self.process.stdin is not None:
            self.process.stdin.close()  # at which it ends itself
        return await super().stop()

    async def _read(self) -> Any:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = await self.process.stdout.readline()
        assert line, f"the judge ended: {self.log[-2000:]}"
        return json.loads(line)


class Programs:
    """Starts processes, and ends all that were started."""

    def __init__(self, folder: Path, judges: Judges) -> None:
        self.folder = folder
        self._judges = judges
        self._started: list[Program] = []
        self._nats_port = free_port()
        self._nats: Program | None = None

    async def worker(self, *arguments: object, env: Mapping[str, str] | None = None) -> Worker:
        """Start a worker on a free port and wait until it is ready."""
        command = [BIN / "mocker-worker", "serve", "--host", "127.0.0.1", "--port", 0, *arguments]
        command += ["--drain-grace-s", 0.2]
        worker = await self._start(Worker, "worker", command, env=env)
        return await worker.ready()

    async def nats(self) -> str:
        """Start a NATS server with JetStream; returns its URL."""
        await self.nats_starts()
        return f"nats://127.0.0.1:{self._nats_port}"

    async def nats_starts(self) -> None:
        """Start it on the port and with the storage that it had before, if it ran already."""
        command = [BIN / "nats-server", "-a", "127.0.0.1", "-p", self._nats_port]
        command += ["-js", "-sd", self.folder / "nats-store"]
        self._nats = await self._start(Program, "nats", command)
        await self._nats.logged("Server is ready")

    async def nats_stops(self) -> None:
        """End it; nobody is told."""
        assert self._nats is not None
        await self._nats.stop()

    async def etcd(self) -> str:
        """Start an etcd; returns its URL."""
        binary = shutil.which("etcd", path=os.environ.get("KUBEBUILDER_ASSETS", "/nonexistent"))
        assert binary is not None, "no etcd: run `make test`, or set KUBEBUILDER_ASSETS"
        url, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        command = [
            *(binary, "--data-dir", self.folder / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        ]
        server = await self._start(Program, "etcd", command)
        await server.logged("ready to serve client requests")
        return url

    async def consumer(
        self, judge: str, script: str, *arguments: object, env: Mapping[str, str] | None = None
    ) -> Consumer:
        """Start one of the scripts in `consumers` and wait until it takes questions."""
        command = self._judges.command(judge, script, *arguments)
        consumer = await self._start(Consumer, script, command, env=env, pipes=True)
        return await consumer.ready()

    async def stop(self) -> None:
        for program in reversed(self._started):
            await program.stop()

    async def _start(
        self,
        kind: type[P],
        name: str,
        command: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        pipes: bool = False,
    ) -> P:
        log = self.folder / f"{len(self._started)}-{name}.log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *map(str, command),
                stdin=PIPE if pipes else DEVNULL,
                stdout=PIPE if pipes else DEVNULL,
                stderr=file,
                env={**os.environ, **(env or {})},
                limit=_LONGEST_ANSWER_BYTES,
            )
        program = kind(process, log)
        self._started.append(program)
        return program
