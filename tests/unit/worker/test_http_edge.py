import asyncio
import io
import json
import logging

import aiohttp
import pytest
from aiohttp import web
from waiting import PATIENCE_S, until

from mocker_worker.log import brief_about_requests
from mocker_worker.server.access import Access
from mocker_worker.server.app import MAX_BODY_BYTES, build_app
from mocker_worker.server.response_headers import ResponseHeaders
from mocker_worker.stats import HttpStats

PROMPT = {"prompt": "Hi", "max_tokens": 2}


async def call(worker, method, path, **arguments):
    """Return status, headers and body of an answer."""
    async with (
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.request(method, path, **arguments) as response,
    ):
        return response.status, response.headers, await response.read()


async def raw(worker, request):
    """Send bytes on a connection of its own; return all that comes until it is closed."""
    host, port = worker.listening.result().removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    finally:
        writer.close()


async def answer_to(worker, request):
    """Send bytes and listen until the worker closes the connection."""
    host, port = worker.listening.result().removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    finally:
        writer.close()


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/none", "/v1/models/", "/%ff", "/tokenize/x"])
async def test_unknown_routes_are_not_found(run_worker, path):
    async with run_worker() as worker:
        status, _, body = await call(worker, "GET", path)

        assert status == 404
        assert json.loads(body)["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", "POST"),
        ("DELETE", "/v1/models", "GET,HEAD"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("PUT", "/admin/config", "GET,HEAD,POST"),
        ("PROPFIND", "/health", "GET,HEAD"),
    ],
)
async def test_wrong_methods_are_told_the_right_ones(run_worker, method, path, allowed):
    async with run_worker() as worker:
        status, headers, body = await call(worker, method, path)

        assert (status, headers["Allow"]) == (405, allowed)
        assert json.loads(body)["error"]["code"] == 405


async def test_heads_have_no_body(run_worker):
    async with run_worker() as worker:
        for path in ("/health", "/metrics", "/v1/models", "/openapi.json"):
            assert (await call(worker, "HEAD", path))[::2] == (200, b"")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "x"])
async def test_json_is_taken_under_any_content_type(run_worker, content_type):
    async with run_worker() as worker:
        status, _, _ = await call(
            worker,
            "POST",
            "/v1/completions",
            data=json.dumps(PROMPT),
            headers={"Content-Type": content_type},
        )
        assert status == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/detokenize", "/admin/config"])
async def test_what_is_no_json_is_refused(run_worker, path):
    async with run_worker() as worker:
        for body in (b"", b"{", b"\x00", b"prompt=Hi", b"\xff", b"nul", b"[" * 5000):
            status, _, answer = await call(worker, "POST", path, data=body)
            assert (status, json.loads(answer)["error"]["code"]) == (400, 400)


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/detokenize", "/admin/config"])
async def test_a_body_that_is_too_long_is_refused(run_worker, path):
    async with run_worker() as worker:
        try:
            status, _, _ = await call(
                worker, "POST", path, data=io.BytesIO(bytes(MAX_BODY_BYTES + 1))
            )
        except aiohttp.ClientOSError:
            pytest.skip("the connection was closed before the answer could be read")
        assert status == 413


async def test_a_body_that_is_not_what_its_encoding_says_is_refused(run_worker):
    async with run_worker() as worker:
        for encoding in ("gzip", "deflate", "br", "zstd"):
            status, _, _ = await call(
                worker,
                "POST",
                "/tokenize",
                data=b"nonsense",
                headers={"Content-Encoding": encoding},
            )
            assert status == 400


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_http_does_not_disturb_the_worker(run_worker, request_bytes):
    async with run_worker() as worker:
        answer = await raw(worker, request_bytes)

        assert not answer or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
        assert (await call(worker, "GET", "/health"))[0] == 200
        assert worker.lifecycle.in_flight == 0


@pytest.mark.parametrize(
    ("request_bytes", "status", "reason"),
    [
        (b"nonsense\r\n\r\n", 400, "Invalid method"),
        (b"GET /health HTTP/9.9\r\n\r\n", 400, "HTTP version"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 70_000 + b"\r\n\r\n", 400, "bytes"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: 1\r\n" * 300 + b"\r\n", 400, "headers"),
        (b"GET /health HTTP/1.1\r\nHost x\r\n\r\n", 400, "header"),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
            400,
            "Content-Length",
        ),
        (
            b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            400,
            "chunk",
        ),
        (
            b"GET /health HTTP/1.1\r\nHost: x\r\nExpect: wonders\r\nConnection: close\r\n\r\n",
            417,
            "Expectation",
        ),
    ],
)
async def test_what_reaches_no_handler_has_the_form_of_all_errors(
    run_worker, request_bytes, status, reason
):
    async with run_worker() as worker:
        head, _, body = (await answer_to(worker, request_bytes)).partition(b"\r\n\r\n")

        error = json.loads(body)["error"]
        assert int(head.split()[1]) == error["code"] == status
        assert b"application/json" in head
        assert error["type"] == "BadRequestError"
        assert reason in error["message"]
        assert len(error["message"]) < 300


class Broken:
    """A route that fails in the middle of its answer."""

    def add_routes(self, app):
        app.router.add_get("/broken", self.fail)

    async def fail(self, http):
        response = web.StreamResponse()
        await response.prepare(http)
        await response.write(b"half an ans")
        raise RuntimeError("on purpose")


async def test_an_answer_that_fails_half_way_ends_with_its_connection(caplog):
    """A second head in the body would be taken for a part of it."""
    headers = ResponseHeaders(
        pod_name=None, pod_namespace=None, has_request_id=False, load_report=lambda form: None
    )
    app = build_app([Broken()], access=Access(()), http_stats=HttpStats(), headers=headers)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0])
        writer.write(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        await writer.wait_closed()
    finally:
        await runner.cleanup()

    assert answer.count(b"HTTP/1.1") == 1
    assert answer.endswith(b"half an ans\r\n")
    assert "on purpose" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_http_1_0_that_keeps_its_connection_sees_the_end(run_worker, stream):
    body = json.dumps(PROMPT | {"stream": stream}).encode()
    head = "POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: "
    async with run_worker() as worker:
        host, port = worker.listening.result().removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + b"%d\r\n\r\n%b" % (len(body), body))
        answered = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)).lower()
        if stream:
            assert b"keep-alive" not in answered
            assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"data: [DONE]\n\n")
        else:
            assert b"content-length" in answered
        writer.close()
        await writer.wait_closed()


async def test_requests_are_counted_by_route_and_probes_are_not(run_worker):
    async with run_worker() as worker:
        for path in ("/health", "/metrics", "/load", "/ping", "/version"):
            await call(worker, "GET", path)
        await call(worker, "POST", "/v1/completions", json=PROMPT)
        await call(worker, "POST", "/v1/completions", json=PROMPT | {"stream": True})
        await call(worker, "POST", "/v1/completions", json={})
        await call(worker, "GET", "/none/1")
        await call(worker, "PROPFIND", "/none/2")

        assert worker._http_stats.requests == {
            ("/v1/completions", "POST", "2xx"): 2,
            ("/v1/completions", "POST", "4xx"): 1,
            ("none", "GET", "4xx"): 1,
            ("none", "other", "4xx"): 1,
        }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_whose_client_left_is_counted(run_worker, stream):
    async with run_worker() as worker:
        host, port = worker.listening.result().removeprefix("http://").split(":")
        body = json.dumps(PROMPT | {"max_tokens": 10_000, "stream": stream}).encode()
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await until(lambda: worker._ranks[0].num_running)
        writer.close()
        await until(lambda: worker._ranks[0].num_running == 0)

        counted = {("/v1/completions", "POST", "2xx"): 1}
        await until(lambda: worker._http_stats.requests == counted)
        assert worker._http_stats.all_durations.count == 1


async def test_long_headers_and_many_are_taken(run_worker):
    async with run_worker() as worker:
        headers = {f"X-{number}": "1" for number in range(200)} | {"X-Long": "a" * 60_000}
        status, _, _ = await call(worker, "GET", "/v1/models", headers=headers)

        assert status == 200


@pytest.fixture
def http_log(caplog):
    server_log = logging.getLogger("aiohttp.server")
    server_log.addFilter(brief_about_requests)
    yield lambda: [record for record in caplog.records if record.name == server_log.name]
    server_log.removeFilter(brief_about_requests)


async def test_a_body_that_cannot_be_unpacked_says_why(run_worker, http_log):
    async with run_worker() as worker:
        status, _, body = await call(
            worker,
            "POST",
            "/v1/completions",
            data=b"no gzip",
            headers={"Content-Encoding": "gzip"},
        )
        (record,) = await until(http_log)

        message = json.loads(body)["error"]["message"]
        assert status == 400
        assert "cannot be read" in message
        assert "gzip" in message
        assert (record.levelname, record.exc_info) == ("WARNING", None)


async def test_what_is_no_http_takes_one_line_of_the_log(run_worker, http_log):
    async with run_worker() as worker:
        await raw(worker, b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n")
        (record,) = await until(http_log)

        assert (record.levelname, record.exc_info) == ("WARNING", None)
        assert record.getMessage().startswith("cannot read a request: ")
        assert "\n" not in record.getMessage()


def test_mistakes_of_our_own_keep_their_traceback():
    error = ValueError("x")
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "m", (), (ValueError, error, None))

    assert brief_about_requests(record)
    assert (record.levelname, record.exc_info[1]) == ("ERROR", error)
