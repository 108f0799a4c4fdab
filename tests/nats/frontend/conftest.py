"""Real processes: workers and a frontend, each on a port of its own."""

import asyncio
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import openai
import pytest
from waiting import until

BIN = Path(sys.executable).parent
NAMESPACE = "default-chat"


class Program:
    """A process of ours that listens on a port."""

    def __init__(self, process, url, session):
        self.process = process
        self.url = url
        self.session = session
        self.openai = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)

    async def get(self, path):
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def ready(self):
        return (await self.get("/ready"))[0] == 200

    async def metric(self, pattern):
        _, text = await self.get("/metrics")
        found = re.findall(rf"^{pattern}\S* (\S+)$", text, re.MULTILINE)
        return sum(float(value) for value in found)


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def start_program(stack):
    session = await stack.enter_async_context(aiohttp.ClientSession())

    async def start(name, *arguments):
        process = await asyncio.create_subprocess_exec(
            BIN / name,
            *("serve", "--host", "127.0.0.1", "--port", "0", "--model-name", "mock"),
            *("--namespace", NAMESPACE, *arguments),
            stderr=asyncio.subprocess.PIPE,
        )
        stack.push_async_callback(end, process)
        line = b""
        while b"listening on " not in line:
            line = await process.stderr.readline()
            assert line, f"{name} ended"
        log = asyncio.create_task(process.stderr.read())
        stack.push_async_callback(finish, log)
        url = re.search(rb"listening on (\S+)", line)[1].decode()
        program = Program(process, url, session)
        stack.push_async_callback(program.openai.close)
        return program

    return start


@pytest.fixture
def start_worker(start_program, nats_server):
    async def start(*arguments, speedup="0"):
        return await start_program(
            "mocker-worker",
            *("--nats-url", nats_server.url, "--speedup-ratio", speedup, *arguments),
            *("--num-gpu-blocks-override", "2048", "--block-size", "16"),
        )

    return start


@pytest.fixture
def start_frontend(start_program, nats_server):
    async def start(*arguments):
        return await start_program("mocker-frontend", "--nats-url", nats_server.url, *arguments)

    return start


@pytest.fixture
def start_fleet(start_worker, start_frontend):
    """Start prefill and decode workers and a frontend that knows them all."""

    async def start(*, prefill=1, decode=2, speedup="0", frontend=()):
        workers = await asyncio.gather(
            *(start_worker("--is-prefill-worker", speedup=speedup) for _ in range(prefill)),
            *(start_worker("--is-decode-worker", speedup=speedup) for _ in range(decode)),
        )
        entry = await start_frontend(*frontend)

        async def all_known():
            known = await entry.metric('mocker_frontend_workers.*state="ready"')
            return known == prefill + decode

        await until(all_known)
        return workers[:prefill], workers[prefill:], entry

    return start


async def end(process):
    if process.returncode is None:
        process.kill()
    await process.wait()


async def finish(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def wait_until():
    return until
