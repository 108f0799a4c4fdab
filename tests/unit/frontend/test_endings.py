"""However a split request ends, in whichever phase: it is counted once, and nothing stays open."""

import asyncio

import pytest
from waiting import until

from mocker_frontend.exchange import Exchange

COUNTS = ("dynamo_frontend_requests_started_total", "dynamo_frontend_requests_total")
OPEN = ("dynamo_frontend_inflight_requests", "dynamo_frontend_queued_requests")


async def assert_ended_once(frontend, status):
    async def is_over():
        for name in OPEN:
            assert await frontend.metric(name) == 0, name
        assert [await frontend.metric(name) for name in COUNTS] == [1, 1]
        series = rf'dynamo_frontend_requests_total\{{.*status="{status}"'
        assert await frontend.metric(series) == 1
        async with frontend.session.get(frontend.url + "/load") as answer:
            assert await answer.json() == {"server_load": 0}
        return True

    await until(is_over)


async def hang_in_the_middle(worker, request, body):
    response = await worker.begin(request)
    await worker.token(response)
    await asyncio.Event().wait()


@pytest.fixture
async def split(start_worker, start_frontend):
    prefill, decode = await start_worker(), await start_worker()
    return prefill, decode, await start_frontend(prefill=[prefill], decode=[decode])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["prefill", "decode", "in the middle"])
async def test_a_client_that_leaves_is_cancelled_in_every_phase(split, phase, stream):
    prefill, decode, frontend = split
    busy = prefill if phase == "prefill" else decode
    if phase == "in the middle":
        busy.answer = lambda *asked: hang_in_the_middle(decode, *asked)
    else:
        busy.answer = busy.hang
    asking = asyncio.create_task(frontend.text(stream=stream))
    await until(busy.arrived.is_set)
    if phase == "in the middle" and stream:
        await until(lambda: first_token_is_out(frontend))
    asking.cancel()

    await until(busy.cancelled.is_set)
    await assert_ended_once(frontend, "cancelled")


async def first_token_is_out(frontend):
    return await frontend.metric("dynamo_frontend_time_to_first_token_seconds_count") == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("ill", "way", "outcome"),
    [
        ("prefill", "cut", "success"),
        ("prefill", "fail", "success"),
        ("prefill", "unavailable", "success"),
        ("prefill", "refuse", "error"),
        ("prefill", "overloaded", "error"),
        ("prefill", "unsupported", "error"),
        ("decode", "cut", "error"),
        ("decode", "cut_in_the_middle", "error"),
        ("decode", "fail", "error"),
        ("decode", "unavailable", "error"),
        ("decode", "overloaded", "error"),
        ("decode", "refuse", "error"),
    ],
)
async def test_a_worker_that_fails_ends_a_request_once(split, ill, way, outcome, stream):
    prefill, decode, frontend = split
    worker = prefill if ill == "prefill" else decode
    worker.answer = getattr(worker, way)
    await frontend.text(stream=stream)

    await assert_ended_once(frontend, outcome)


async def test_a_request_that_the_frontend_itself_fails_is_an_error(split, monkeypatch):
    """And not one whose client has left."""

    async def fail(*asked):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Exchange, "run", fail)
    *_, frontend = split
    status, _ = await frontend.text()

    assert status == 500
    await assert_ended_once(frontend, "error")
