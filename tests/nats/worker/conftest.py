import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from pathlib import Path

import openai
import pytest
from waiting import PATIENCE_S, until

BINARY = Path(sys.executable).parent / "mocker-worker"
ENGINE = {
    "block_size": 4,
    "timing_model": {"type": "fixed", "prefill_ms": 2.0, "decode_ms": 1.0},
}


class WorkerProcess:
    """A worker started by its console script."""

    def __init__(self, process):
        self._process = process
        self._reader = asyncio.create_task(self._read())
        self.lines = []

    async def _read(self):
        async for line in self._process.stderr:
            self.lines.append(line.decode().rstrip())

    async def logged(self, pattern):
        """Wait for a log line; return the match."""

        async def search():
            assert self._process.returncode is None or not self._reader.done(), self.lines
            return next(filter(None, (re.search(pattern, line) for line in self.lines)), None)

        return await until(search)

    async def listening(self):
        return (await self.logged(r"listening on (http://\S+)"))[1]

    async def client(self):
        url = await self.listening()
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)

    def terminate(self):
        self._process.send_signal(signal.SIGTERM)

    async def exit_code(self):
        async with asyncio.timeout(PATIENCE_S):
            code = await self._process.wait()
            await self._reader
            return code

    async def close(self):
        if self._process.returncode is None:
            self._process.kill()
        await self.exit_code()


@pytest.fixture
async def start_worker(tmp_path):
    """Start workers; `engine` overrides engine arguments."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*flags, engine=None):
            path = tmp_path / "engine.json"
            path.write_text(json.dumps(ENGINE | (engine or {})))
            process = await asyncio.create_subprocess_exec(
                str(BINARY),
                "serve",
                *("--host", "127.0.0.1", "--port", "0", "--namespace", "default-demo"),
                *("--extra-engine-args", str(path), "--drain-grace-s", "0"),
                *flags,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "POD_UID": "uid-1"},
            )
            worker = WorkerProcess(process)
            stack.push_async_callback(worker.close)
            return worker

        yield start


@pytest.fixture
async def run_events():
    """Run `mocker-worker events`; return its exit code and lines."""

    async def run(*flags):
        process = await asyncio.create_subprocess_exec(
            str(BINARY),
            "events",
            *("--namespace", "default-demo"),
            *flags,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_S):
            out, _ = await process.communicate()
        return process.returncode, out.decode().splitlines()

    return run
