"""Operators under test: real ones, in this process or in one of their own."""

import asyncio
import os
import sys
from asyncio.subprocess import Process
from pathlib import Path

from operator_thread import OperatorThread, start_operator
from waiting import PATIENCE_S

from mocker_operator.config import OperatorConfig

COMMAND = Path(sys.executable).parent / "mocker-operator"
IMAGE = "example.test/mocker:1"


class Operators:
    """Operators of one namespace in this process, one at a time."""

    def __init__(self, namespace: str, nats_url: str) -> None:
        self._namespace, self._nats_url = namespace, nats_url
        self._running: OperatorThread | None = None

    async def start(self, *, resync_s: float = 300.0, clusterwide: bool = False) -> None:
        config = OperatorConfig(
            worker_image=IMAGE,
            nats_url=self._nats_url,
            worker_nats_url="nats://nats:4222",
            namespaces=() if clusterwide else (self._namespace,),
            resync_s=resync_s,
        )
        self._running = await start_operator(config)

    async def stop(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.stop()
            async with asyncio.timeout(PATIENCE_S):
                await running.ended


class OperatorProcess:
    """An operator that can be killed."""

    def __init__(self, namespace: str, nats_url: str, kubeconfig: Path, directory: Path) -> None:
        self._arguments = ["run", "--namespace", namespace, "--nats-url", nats_url,
                           "--worker-image", IMAGE]  # fmt: skip
        self._environ = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._log = directory / "operator.log"
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    async def start(self, *arguments: str) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                COMMAND, *self._arguments, *arguments, env=self._environ, stdout=log, stderr=log
            )

    async def kill(self) -> None:
        """Kill it without a word, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()
