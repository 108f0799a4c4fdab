"""Headers pass in both directions, but for those of one connection or one body."""

import pytest
from aiohttp import web
from multidict import CIMultiDict

from mocker_frontend.headers import request_id_of, to_client, to_prefill_worker, to_worker

OF_CLIENTS = {
    "Authorization": "Bearer key",
    "X-data-parallel-rank": "1",
    "X-Session-ID": "s",
    "X-Return-Error": "stream_error",
    "endpoint-load-metrics-format": "TEXT",
    "x-inference-anything": "a",
    "traceparent": "00-1-2-3",
}
OF_WORKERS = {
    "X-Pod-Name": "demo-decode-0",
    "x-inference-pod": "demo-decode-0",
    "endpoint-load-metrics": "TEXT named_metrics.kv_cache_usage_perc=0.5",
}


async def send(frontend, headers, **body):
    payload = {"model": "mock", "prompt": "hi", "max_tokens": 1, **body}
    return await frontend.session.post(
        frontend.url + "/v1/completions", json=payload, headers=headers
    )


async def test_what_a_client_says_reaches_both_legs(start_worker, start_frontend):
    prefill, decode = await start_worker(), await start_worker()
    frontend = await start_frontend(prefill=[prefill], decode=[decode])
    assert (await send(frontend, OF_CLIENTS)).status == 200
    for name, value in OF_CLIENTS.items():
        assert decode.headers[0][name] == value
        if name != "X-Return-Error":
            assert prefill.headers[0][name] == value


async def test_a_fault_that_is_asked_for_is_not_the_prefill_workers(start_worker, start_frontend):
    prefill, decode = await start_worker(), await start_worker()
    frontend = await start_frontend(prefill=[prefill], decode=[decode])
    await send(frontend, {"x-return-error": "server_error"})
    assert "X-Return-Error" not in prefill.headers[0]
    assert decode.headers[0]["X-Return-Error"] == "server_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_worker_says_reaches_the_client(start_worker, start_frontend, stream):
    worker = await start_worker(response_headers=OF_WORKERS)
    frontend = await start_frontend(aggregated=[worker])
    response = await send(frontend, {}, stream=stream)
    assert response.status == 200
    for name, value in OF_WORKERS.items():
        assert response.headers[name] == value
    assert response.headers.getall("Content-Type") == [response.headers["Content-Type"]]
    assert len(response.headers.getall("Date")) == 1


async def test_a_cookie_of_a_worker_is_the_clients_alone(start_worker, start_frontend):
    worker = await start_worker(response_headers={"Set-Cookie": "a=b"})
    frontend = await start_frontend(aggregated=[worker])
    assert (await send(frontend, {})).headers["Set-Cookie"] == "a=b"
    await send(frontend, {})
    assert "Cookie" not in worker.headers[-1]


async def test_a_redirect_is_the_clients_to_follow(start_worker, start_frontend):
    worker = await start_worker()

    async def elsewhere(request, body):
        return web.Response(status=307, headers={"Location": "/v1/other"})

    worker.answer = elsewhere
    frontend = await start_frontend(aggregated=[worker])
    payload = {"model": "mock", "prompt": "hi"}
    response = await frontend.session.post(
        frontend.url + "/v1/completions", json=payload, allow_redirects=False
    )
    assert (response.status, response.headers["Location"]) == (307, "/v1/other")
    assert len(worker.requests) == 1


def test_headers_of_the_connection_end_at_the_frontend():
    headers = CIMultiDict(
        {
            "Connection": "keep-alive, X-Mine",
            "X-Mine": "1",
            "X-Other": "2",
            "Transfer-Encoding": "chunked",
            "Accept-Encoding": "gzip",
            "Content-Length": "5",
            "Content-Type": "text/plain",
            "Host": "here",
        }
    )
    assert to_worker(headers, "id") == {
        "X-Other": "2",
        "X-Request-Id": "id",
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
    }


def test_a_header_may_come_twice():
    headers = CIMultiDict([("X-A", "1"), ("x-a", "2")])
    assert to_worker(headers, "id").getall("X-A") == ["1", "2"]
    assert to_client(headers, "id").getall("X-A") == ["1", "2"]


def test_bytes_that_are_no_text_are_left_out():
    headers = CIMultiDict({"X-A": "caf\u00e9", "X-B": "caf\udce9"})
    assert "X-B" not in to_prefill_worker(headers)
    assert to_prefill_worker(headers)["X-A"] == "caf\u00e9"


@pytest.mark.parametrize("given", [None, "", "caf\u00e9", "a\tb", "a\udce9"])
def test_an_id_that_no_header_can_hold_is_replaced(given):
    headers = CIMultiDict({} if given is None else {"X-Request-Id": given})
    assert len(request_id_of(headers)) == 32
