"""Connections that are kept alive: small answers leave at once, on both sides of the frontend."""

import asyncio
import os
import socket

import pytest
import uvloop
from aiohttp import web
from waiting import PATIENCE_S

from mocker_frontend.config import FrontendConfig
from mocker_frontend.registry import Worker
from mocker_frontend.serve import Frontend
from mocker_protocol.names import WorkerType

BODY = b'{"model":"mock","prompt":"hi","max_tokens":1}'
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)


async def answer(request):
    return web.json_response({"choices": [{"text": "a"}]})


async def start_worker():
    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, runner.addresses[0][1]


async def read_answer(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    lines = head.lower().split(b"\r\n")
    length = next(int(line.partition(b":")[2]) for line in lines if b"content-length" in line)
    return await reader.readexactly(length)


def nodelay_of_connections():
    """Return TCP_NODELAY of this process's connections by (local port, remote port)."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as copy:
                ports = copy.getsockname()[1], copy.getpeername()[1]
                found[ports] = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        except (OSError, IndexError):
            continue
    return found


async def talk():
    """Send many small requests on one connection; return the options of the frontend's sockets."""
    runner, worker_port = await start_worker()
    worker = Worker("static", WorkerType.AGGREGATED, f"http://127.0.0.1:{worker_port}")
    config = FrontendConfig(
        host="127.0.0.1",
        port=0,
        model_name="mock",
        nats_url=None,
        static_workers=(worker,),
        drain_grace_s=0,
    )
    frontend = Frontend(config)
    running = asyncio.create_task(frontend.run())
    port = int((await frontend.listening).rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(50):
        writer.write(REQUEST)
        assert b'"text"' in await read_answer(reader)
    sockets = nodelay_of_connections()
    writer.close()
    frontend.request_stop()
    await running
    await runner.cleanup()
    to_client = [option for (local, _), option in sockets.items() if local == port]
    to_worker = [option for (_, remote), option in sockets.items() if remote == worker_port]
    return to_client, to_worker


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_no_answer_waits_for_more_to_send(new_loop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        to_client, to_worker = runner.run(asyncio.wait_for(talk(), PATIENCE_S))
    assert to_client == [1]
    assert to_worker == [1]
