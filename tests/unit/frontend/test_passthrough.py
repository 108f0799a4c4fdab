"""What the frontend leaves to workers, and what it answers in their stead."""

import asyncio
import json

import pytest
from aiohttp import web
from waiting import PATIENCE_S


def answering(status=200, **answer):
    async def respond(request, body):
        return web.json_response(answer, status=status)

    return respond


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
@pytest.mark.parametrize("role", ["prefill", "decode", "aggregated"])
async def test_tokens_are_counted_by_any_worker(start_worker, start_frontend, path, role):
    worker = await start_worker()
    worker.answer = answering(count=2, tokens=[1, 2])
    frontend = await start_frontend(**{role: [worker]})
    payload = b'{"model": "mock", "prompt": "hi",  "vendor": 123456789012345678901}'
    response = await frontend.session.post(frontend.url + path, data=payload)
    assert await response.json() == {"count": 2, "tokens": [1, 2]}
    assert worker.requests == [json.loads(payload)]
    assert response.headers["X-Request-Id"] == worker.headers[0]["X-Request-Id"]


async def test_another_worker_counts_if_one_fails(start_worker, start_frontend):
    broken, healthy = await start_worker(), await start_worker()
    broken.answer, healthy.answer = broken.fail, answering(count=1)
    frontend = await start_frontend(decode=[broken], prefill=[healthy])
    response = await frontend.session.post(frontend.url + "/tokenize", json={"prompt": "a"})
    assert (response.status, await response.json()) == (200, {"count": 1})


async def test_an_error_about_the_request_is_the_answer(start_worker, start_frontend):
    worker = await start_worker()
    worker.answer = worker.refuse
    frontend = await start_frontend(decode=[worker])
    response = await frontend.session.post(frontend.url + "/detokenize", json={})
    assert response.status == 400
    assert "prompt too long" in await response.text()


async def test_caches_of_all_workers_are_reset(start_worker, start_frontend):
    workers = [await start_worker() for _ in range(3)]
    for worker in workers:
        worker.answer = answering(reset=True)
    frontend = await start_frontend(prefill=workers[:1], decode=workers[1:])
    url = frontend.url + "/reset_prefix_cache?reset_external=true"
    response = await frontend.session.post(url, json={})
    assert (response.status, await response.json()) == (200, {"reset": True})
    assert all(len(worker.requests) == 1 for worker in workers)


@pytest.mark.parametrize(
    ("worst", "status", "answer"),
    [
        (answering(reset=False), 200, {"reset": False}),
        (answering(status=501, no="no"), 501, {"no": "no"}),
    ],
)
async def test_a_reset_is_as_good_as_the_worst_of_them(
    start_worker, start_frontend, worst, status, answer
):
    workers = [await start_worker() for _ in range(3)]
    for worker, respond in zip(workers, [answering(reset=True), worst] * 2, strict=False):
        worker.answer = respond
    frontend = await start_frontend(aggregated=workers)
    response = await frontend.session.post(frontend.url + "/reset_prefix_cache", json={})
    assert (response.status, await response.json()) == (status, answer)


async def test_a_reset_that_did_not_reach_every_worker_has_failed(start_worker, start_frontend):
    healthy, broken = await start_worker(), await start_worker()
    healthy.answer, broken.answer = answering(reset=True), broken.cut
    frontend = await start_frontend(aggregated=[healthy, broken])
    response = await frontend.session.post(frontend.url + "/reset_prefix_cache", json={})
    assert response.status == 503
    assert broken.url in (await response.json())["error"]["message"]


async def test_the_load_is_what_is_being_answered(start_worker, start_frontend):
    worker = await start_worker()
    worker.answer = worker.hang
    frontend = await start_frontend(decode=[worker], read_timeout_s=5)

    async def load():
        async with frontend.session.get(frontend.url + "/load") as response:
            return await response.json()

    assert await load() == {"server_load": 0}
    request = asyncio.create_task(frontend.post())
    await asyncio.wait_for(worker.arrived.wait(), PATIENCE_S)
    assert await load() == {"server_load": 1}
    request.cancel()


async def test_pings_are_answered(start_worker, start_frontend):
    frontend = await start_frontend(decode=[await start_worker()])
    assert await frontend.status("/ping") == 200
    assert (await frontend.session.post(frontend.url + "/ping")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/embeddings", 404, "NotFoundError"),
        ("GET", "/nowhere", 404, "NotFoundError"),
        ("GET", "/v1/completions", 405, "BadRequestError"),
    ],
)
async def test_errors_have_the_form_of_the_worker(
    start_worker, start_frontend, method, path, status, kind
):
    frontend = await start_frontend(decode=[await start_worker()])
    response = await frontend.session.request(method, frontend.url + path)
    error = (await response.json())["error"]
    assert (response.status, error["code"], error["type"]) == (status, status, kind)
    assert ("Allow" in response.headers) is (status == 405)
