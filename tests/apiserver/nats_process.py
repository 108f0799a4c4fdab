"""A real nats-server with JetStream that keeps its port over restarts."""

import asyncio
import contextlib
import shutil
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

from waiting import until

NATS_SERVER = Path(sys.executable).parent / "nats-server"


class NatsProcess:
    """Not running until it is started."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._process: Process | None = None
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = listener.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self._port}"

    async def start(self) -> None:
        arguments = ["-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", str(self._store)]
        self._process = await asyncio.create_subprocess_exec(
            NATS_SERVER, *arguments, stdout=DEVNULL, stderr=DEVNULL
        )
        await until(self._answers)

    async def stop(self, *, lose_storage: bool = False) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None
        if lose_storage:
            shutil.rmtree(self._store, ignore_errors=True)

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True
