import asyncio
import json

import aiohttp
import openai
import pytest
from waiting import PATIENCE_S

from mocker_worker.config import ServerOptions

KEYS = ServerOptions(api_keys=("secret", "other"))
PROMPT = {"prompt": "Hi", "max_tokens": 2}


async def call(worker, method, path, **arguments):
    """Return status, headers and JSON (None without a body of JSON) of an answer."""
    async with (
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.request(method, path, **arguments) as response,
    ):
        is_json = response.content_type == "application/json"
        body = await response.json() if is_json else None
        return response.status, response.headers, body


async def complete(worker, *, stream=False, headers=None, **fields):
    """Return the headers of a completion."""
    body = PROMPT | {"stream": stream} | fields
    _, got, _ = await call(worker, "POST", "/v1/completions", json=body, headers=headers)
    return got


async def test_a_key_opens_the_api(run_worker):
    async with run_worker(server=KEYS) as worker:
        for key in ("secret", "other"):
            async with openai.AsyncOpenAI(
                base_url=f"{worker.listening.result()}/v1", api_key=key
            ) as client:
                answer = await client.completions.create(model="mock", prompt="Hi", max_tokens=1)
                assert answer.usage.completion_tokens == 1


async def test_a_wrong_key_is_an_authentication_error(run_worker):
    async with (
        run_worker(server=KEYS) as worker,
        openai.AsyncOpenAI(
            base_url=f"{worker.listening.result()}/v1", api_key="x", max_retries=0
        ) as client,
    ):
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic secret", "secret", "Bearer sécret"],
)
async def test_without_a_right_key_v1_is_closed(run_worker, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    async with run_worker(server=KEYS) as worker:
        for method, path in (
            ("GET", "/v1/models"),
            ("POST", "/v1/completions"),
            ("GET", "/v1/none"),
        ):
            status, _, body = await call(worker, method, path, headers=headers)
            assert (status, body) == (401, {"error": "Unauthorized"})
        assert worker.lifecycle.in_flight == 0


async def test_probes_and_metrics_stay_open(run_worker):
    async with run_worker(server=KEYS) as worker:
        for path in ("/health", "/live", "/metrics", "/load", "/version", "/ping"):
            status, _, _ = await call(worker, "GET", path)
            assert status == 200


async def test_without_keys_any_key_will_do(run_worker):
    async with run_worker() as worker:
        status, _, _ = await call(
            worker, "GET", "/v1/models", headers={"Authorization": "Bearer whatever"}
        )
        assert status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_say_which_pod_they_come_from(run_worker, stream):
    async with run_worker() as worker:
        headers = await complete(worker, stream=stream)

        assert headers["X-Pod-Name"] == headers["x-inference-pod"] == "pod-1"
        assert headers["x-inference-namespace"] == "testing"
        assert headers["x-inference-port"] == worker.listening.result().rpartition(":")[2]


async def test_errors_say_it_too(run_worker):
    async with run_worker() as worker:
        _, headers, _ = await call(worker, "GET", "/none")

        assert headers["x-inference-pod"] == "pod-1"


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_name_the_request_on_demand(run_worker, stream):
    async with run_worker(server=ServerOptions(request_id_headers=True)) as worker:
        headers = await complete(worker, stream=stream, headers={"X-Request-Id": "r-1"})
        assert headers["X-Request-Id"] == "r-1"

        first, second = await complete(worker), await complete(worker)
        assert first["X-Request-Id"] != second["X-Request-Id"]


async def test_answers_do_not_name_the_request_by_default(run_worker):
    async with run_worker() as worker:
        assert "X-Request-Id" not in await complete(worker, headers={"X-Request-Id": "r-1"})


async def test_a_request_id_that_no_header_can_hold_is_replaced(run_worker):
    async with run_worker(server=ServerOptions(request_id_headers=True)) as worker:
        url = worker.listening.result().removeprefix("http://")
        host, port = url.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\nX-Request-Id: \xff\xfe\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()

        assert head.startswith(b"HTTP/1.1 200")
        assert b"X-Request-Id: " in head


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_id_that_json_cannot_hold_is_replaced(run_worker, stream):
    body = json.dumps({"prompt": "x", "max_tokens": 1, "stream": stream}).encode()
    async with run_worker() as worker:
        host, port = worker.listening.result().removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"X-Request-Id: \xff\xfe\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        await writer.wait_closed()

        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.count(b"HTTP/1.1") == 1
        assert b'"id":"cmpl-' in answer


@pytest.mark.parametrize("stream", [False, True])
async def test_the_load_is_told_to_who_asks_for_it(run_worker, stream):
    async with run_worker() as worker:
        for form in ("TEXT", "JSON"):
            wanted = {"endpoint-load-metrics-format": form}
            headers = await complete(worker, stream=stream, headers=wanted)

            assert headers["endpoint-load-metrics"].startswith(f"{form} ")
            assert "num_requests_waiting" in headers["endpoint-load-metrics"]


async def test_the_load_is_not_told_to_others(run_worker):
    async with run_worker() as worker:
        assert "endpoint-load-metrics" not in await complete(worker)
        unknown = {"endpoint-load-metrics-format": "XML"}
        assert "endpoint-load-metrics" not in await complete(worker, headers=unknown)
        wanted = {"endpoint-load-metrics-format": "TEXT"}
        _, headers, _ = await call(worker, "GET", "/version", headers=wanted)
        assert "endpoint-load-metrics" not in headers
