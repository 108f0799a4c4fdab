"""What the frontend says to requests that reach none of its handlers."""

import asyncio
import json

import pytest
from waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost x\r\n\r\n", 400),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            400,
        ),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nExpect: wonders\r\nConnection: close\r\n\r\n", 417),
    ],
)
async def test_errors_of_http_have_the_form_of_all_errors(
    start_worker, start_frontend, request_bytes, status
):
    worker = await start_worker()
    frontend = await start_frontend(aggregated=[worker])
    host, port = frontend.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request_bytes)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()

    head, _, body = answer.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert int(head.split()[1]) == error["code"] == status
    assert b"application/json" in head
    assert error["type"] == "BadRequestError"
    assert not worker.requests
    assert await frontend.status("/live") == 200
