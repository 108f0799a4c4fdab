"""What clients see when workers misbehave: as little as possible."""

import asyncio
import json
import socket

import pytest
from waiting import PATIENCE_S


@pytest.fixture
def refused_url():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def two_decoders(start_worker, start_frontend, **settings):
    broken, healthy = await start_worker(), await start_worker()
    frontend = await start_frontend(decode=[broken.url, healthy], **settings)
    return broken, healthy, frontend


async def test_a_refused_connection_moves_on_to_another_worker(
    start_worker, start_frontend, refused_url
):
    healthy = await start_worker()
    frontend = await start_frontend(decode=[refused_url, healthy])
    for _ in range(4):
        assert (await frontend.text())[0] == 200
    assert len(healthy.requests) == 4
    assert await frontend.metric("mocker_frontend_failed_attempts_total") == 1


@pytest.mark.parametrize("fault", ["fail", "cut"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_before_the_first_byte_moves_on(start_worker, start_frontend, fault, stream):
    broken, healthy, frontend = await two_decoders(start_worker, start_frontend)
    broken.answer = getattr(broken, fault)
    status, _ = await frontend.text(stream=stream)
    assert status == 200
    assert broken.requests
    assert len(healthy.requests) == 1


async def test_a_worker_that_hangs_is_given_up(start_worker, start_frontend):
    broken, healthy, frontend = await two_decoders(start_worker, start_frontend, read_timeout_s=0.3)
    broken.answer = broken.hang
    assert (await frontend.text())[0] == 200
    await asyncio.wait_for(broken.cancelled.wait(), PATIENCE_S)
    assert len(healthy.requests) == 1


async def test_when_every_worker_fails_the_answer_is_503_with_an_openai_error(
    start_worker, start_frontend
):
    one, two, frontend = await two_decoders(start_worker, start_frontend)
    one.answer, two.answer = one.fail, two.fail
    response = await frontend.post()
    assert response.status == 503
    assert response.headers["Retry-After"] == "1"
    error = (await response.json())["error"]
    assert error["type"] == "ServiceUnavailableError"
    assert "HTTP 500" in error["message"]
    assert len(one.requests) == len(two.requests) == 1


async def test_a_stream_that_breaks_off_ends_with_an_error_event(start_worker, start_frontend):
    worker = await start_worker()
    worker.answer = worker.cut_in_the_middle
    frontend = await start_frontend(decode=[worker])
    status, text = await frontend.text(stream=True)
    assert status == 200
    assert "[DONE]" not in text
    last = text.strip().split("\n\n")[-1].removeprefix("data: ")
    assert json.loads(last)["error"]["code"] == 502
    assert await frontend.metric("dynamo_frontend_requests_total.*error") == 1


@pytest.mark.parametrize("mark", [b"", b"data: [DONE]\n\n"])
async def test_an_error_event_of_the_worker_passes_and_counts(start_worker, start_frontend, mark):
    worker = await start_worker()
    event = b'data: {"error":{"message":"broken"}}\n\n' + mark

    async def fail_in_the_middle(request, body):
        response = await worker.begin(request)
        await worker.token(response)
        await response.write(event)
        return response

    worker.answer = fail_in_the_middle
    frontend = await start_frontend(decode=[worker])
    _, text = await frontend.text(stream=True)
    assert text.encode().endswith(event)
    assert text.count('"error"') == 1
    assert await frontend.metric("dynamo_frontend_requests_total.*error") == 1


async def test_a_stream_that_ends_without_its_mark_has_broken_off(start_worker, start_frontend):
    worker = await start_worker()

    async def stop_early(request, body):
        response = await worker.begin(request)
        await worker.token(response)
        return response

    worker.answer = stop_early
    frontend = await start_frontend(decode=[worker])
    _, text = await frontend.text(stream=True)
    assert '"code":502' in text
    assert await frontend.metric("dynamo_frontend_requests_total.*error") == 1


async def test_a_client_error_of_the_prefill_worker_reaches_the_client(
    start_worker, start_frontend
):
    prefill, decode = await start_worker(), await start_worker()
    prefill.answer = prefill.refuse
    frontend = await start_frontend(prefill=[prefill], decode=[decode])
    status, text = await frontend.text(stream=True)
    assert status == 400
    assert "prompt too long" in text
    assert not decode.requests


async def test_a_client_error_of_the_decode_worker_reaches_the_client(start_worker, start_frontend):
    one, two, frontend = await two_decoders(start_worker, start_frontend)
    one.answer = one.refuse
    status, text = await frontend.text(stream=True)
    assert (status, "prompt too long" in text) == (400, True)
    assert not two.requests


async def test_without_a_prefill_worker_the_decode_worker_prefills(
    start_worker, start_frontend, refused_url
):
    decode = await start_worker()
    frontend = await start_frontend(prefill=[refused_url], decode=[decode])
    assert (await frontend.text())[0] == 200
    assert "kv_transfer_params" not in decode.requests[0]
    assert await frontend.metric("mocker_frontend_local_prefills_total") == 1


async def test_a_client_that_leaves_ends_the_decode_leg(start_worker, start_frontend):
    worker = await start_worker()

    async def one_token_then_nothing(request, body):
        await worker.token(await worker.begin(request))
        await asyncio.Event().wait()

    worker.answer = one_token_then_nothing
    frontend = await start_frontend(decode=[worker])
    response = await frontend.post(stream=True)
    await response.content.readany()
    response.close()
    await asyncio.wait_for(worker.cancelled.wait(), PATIENCE_S)


async def test_a_client_that_leaves_ends_the_prefill_leg(start_worker, start_frontend):
    prefill, decode = await start_worker(), await start_worker()
    prefill.answer = prefill.hang
    frontend = await start_frontend(prefill=[prefill], decode=[decode])
    request = asyncio.create_task(frontend.post())
    await asyncio.wait_for(prefill.arrived.wait(), PATIENCE_S)
    request.cancel()
    await asyncio.wait_for(prefill.cancelled.wait(), PATIENCE_S)
    assert not decode.requests


async def test_a_connection_that_the_worker_closed_while_idle_costs_nothing(
    start_worker, start_frontend
):
    worker = await start_worker(keepalive_timeout=0.01)
    frontend = await start_frontend(decode=[worker])
    for _ in range(30):
        assert (await frontend.text())[0] == 200
        await asyncio.sleep(0.011)
    assert await frontend.metric("mocker_frontend_failed_attempts_total") == 0


async def test_a_drain_finishes_the_stream_and_takes_late_requests(start_worker, start_frontend):
    worker = await start_worker()
    go_on = asyncio.Event()
    healthy = worker.answer

    async def wait_in_the_middle(request, body):
        response = await worker.begin(request)
        await worker.token(response)
        await go_on.wait()
        await worker.token(response)
        await response.write(b"data: [DONE]\n\n")
        return response

    worker.answer = wait_in_the_middle
    frontend = await start_frontend(decode=[worker], drain_grace_s=0.2)
    stream = await frontend.post(stream=True)
    frontend.frontend.request_stop()
    await asyncio.sleep(0)
    assert await frontend.status("/ready") == 503
    assert await frontend.status("/health") == 200
    worker.answer = healthy
    assert (await frontend.text())[0] == 200
    go_on.set()
    assert (await stream.text()).endswith("data: [DONE]\n\n")
    await asyncio.wait_for(frontend.running, PATIENCE_S)


async def test_a_drain_ends_at_its_timeout(start_worker, start_frontend):
    worker = await start_worker()
    worker.answer = worker.hang
    frontend = await start_frontend(decode=[worker], drain_grace_s=0.1, drain_timeout_s=0.3)
    request = asyncio.create_task(frontend.post())
    await asyncio.wait_for(worker.arrived.wait(), PATIENCE_S)
    frontend.frontend.request_stop()
    await asyncio.wait_for(frontend.running, PATIENCE_S)
    await asyncio.gather(request, return_exceptions=True)
