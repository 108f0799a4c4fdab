"""A frontend between a test and scripted workers on real sockets."""

import asyncio
import json
import re
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, settings

from mocker_frontend.config import FrontendConfig
from mocker_frontend.registry import Worker
from mocker_frontend.serve import Frontend
from mocker_protocol.names import WorkerType

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'


class ScriptedWorker:
    """A worker that does what a test says; it remembers what it was asked."""

    def __init__(self):
        self.requests = []
        self.headers = []
        self.cancelled = asyncio.Event()
        self.arrived = asyncio.Event()
        self.answer = self.generate
        self.url = ""

    async def handle(self, request):
        self.requests.append(await request.json())
        self.headers.append(request.headers)
        self.arrived.set()
        try:
            return await self.answer(request, self.requests[-1])
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def generate(self, request, body):
        """Answer as a healthy worker does: `max_tokens` tokens."""
        tokens = body["max_tokens"]
        usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
        if not body.get("stream"):
            answer = {"id": "x", "choices": [{"text": "a" * tokens}], "usage": usage}
            if (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
                answer["kv_transfer_params"] = {"do_remote_prefill": True, "remote_port": 5600}
            return web.json_response(answer)
        response = await self.begin(request)
        if request.path.endswith("/chat/completions"):
            await response.write(ROLE)
        for _ in range(tokens):
            await self.token(response)
        if (body.get("stream_options") or {}).get("include_usage"):
            chunk = json.dumps({"choices": [], "usage": usage}).encode()
            await response.write(b"data: " + chunk + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def begin(self, request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return response

    async def token(self, response):
        await response.write(b'data: {"choices":[{"text":"a"}]}\n\n')

    async def fail(self, request, body):
        return web.json_response({"error": {"message": "broken"}}, status=500)

    async def refuse(self, request, body):
        return web.json_response({"error": {"message": "prompt too long"}}, status=400)

    async def overloaded(self, request, body):
        return web.json_response(
            {"error": {"message": "queue full"}}, status=429, headers={"Retry-After": "7"}
        )

    async def unavailable(self, request, body):
        return web.json_response({"error": {"message": "queue full"}}, status=503)

    async def unsupported(self, request, body):
        return web.json_response({"error": {"message": "not supported"}}, status=501)

    async def hang(self, request, body):
        await asyncio.Event().wait()

    async def cut(self, request, body):
        """Close the connection without a word."""
        request.transport.abort()
        await asyncio.Event().wait()

    async def cut_in_the_middle(self, request, body):
        response = await self.begin(request)
        await self.token(response)
        await asyncio.sleep(0)
        request.transport.close()
        await asyncio.Event().wait()


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def start_worker(stack):
    async def start(*, response_headers=(), **options):
        worker = ScriptedWorker()

        async def add_headers(request, response):
            response.headers.update(response_headers)

        app = web.Application()
        app.router.add_post("/{path:.*}", worker.handle)
        app.on_response_prepare.append(add_headers)
        options = {"handler_cancellation": True, "shutdown_timeout": 0.1, **options}
        runner = web.AppRunner(app, **options)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        worker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return worker

    return start


class FrontendUnderTest:
    """A running frontend and a client of it."""

    def __init__(self, frontend, running, url, session):
        self.frontend = frontend
        self.running = running
        self.url = url
        self.session = session

    async def post(self, path="/v1/completions", **body):
        body = {"model": "mock", "prompt": "hi", "max_tokens": 3, **body}
        return await self.session.post(self.url + path, json=body)

    async def text(self, **body):
        response = await self.post(**body)
        return response.status, await response.text()

    async def status(self, path):
        async with self.session.get(self.url + path) as response:
            return response.status

    async def metric(self, pattern):
        async with self.session.get(self.url + "/metrics") as response:
            text = await response.text()
        found = re.findall(rf"^{pattern}\S* (\S+)$", text, re.MULTILINE)
        return sum(float(value) for value in found)


@pytest.fixture
def start_frontend(stack):
    async def start(*, prefill=(), decode=(), aggregated=(), **settings):
        urls = {"prefill": prefill, "decode": decode, "aggregated": aggregated}
        config = FrontendConfig(
            host="127.0.0.1",
            port=0,
            model_name="mock",
            nats_url=None,
            static_workers=tuple(
                Worker(f"static.{role}.{number}", WorkerType(role), getattr(at, "url", at))
                for role, found in urls.items()
                for number, at in enumerate(found)
            ),
            **settings,
        )
        frontend = Frontend(config)
        running = asyncio.create_task(frontend.run(), name="frontend")
        stack.push_async_callback(cancel, running)
        url = await frontend.listening
        session = await stack.enter_async_context(aiohttp.ClientSession())
        return FrontendUnderTest(frontend, running, url, session)

    return start


async def cancel(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
