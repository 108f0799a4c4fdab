"""Workers that have too much to do: another one is asked, and the last refusal is the answer."""

import pytest

HEALTHY, OVERLOADED, UNAVAILABLE = "generate", "overloaded", "unavailable"


async def fleet(start_worker, start_frontend, *, prefill=(), decode):
    """Start workers that answer as named; return them by role, and the frontend."""

    async def start(answers):
        workers = [await start_worker() for _ in answers]
        for worker, name in zip(workers, answers, strict=True):
            worker.answer = getattr(worker, name)
        return workers

    prefillers, decoders = await start(prefill), await start(decode)
    return prefillers, decoders, await start_frontend(prefill=prefillers, decode=decoders)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refusal", [OVERLOADED, UNAVAILABLE])
async def test_a_worker_with_a_full_queue_costs_the_client_nothing(
    start_worker, start_frontend, refusal, stream
):
    _, [full, free], frontend = await fleet(start_worker, start_frontend, decode=[refusal, HEALTHY])
    for _ in range(2):
        assert (await frontend.text(stream=stream))[0] == 200
    assert full.requests
    assert len(free.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("answers", "status", "retry_after"),
    [
        ([OVERLOADED, OVERLOADED], 429, "7"),
        ([UNAVAILABLE, UNAVAILABLE], 503, "1"),
        (["fail", OVERLOADED], 429, "7"),
        ([OVERLOADED, "cut"], 429, "7"),
    ],
)
async def test_when_all_are_full_their_answer_is_the_clients(
    start_worker, start_frontend, answers, status, retry_after, stream
):
    _, decoders, frontend = await fleet(start_worker, start_frontend, decode=answers)
    response = await frontend.post(stream=stream)
    assert response.status == status
    assert response.headers["Retry-After"] == retry_after
    assert (await response.json())["error"]["message"] == "queue full"
    assert all(worker.requests for worker in decoders)
    assert await frontend.metric("dynamo_frontend_requests_total.*error") == 1


async def test_a_full_queue_of_all_prefill_workers_is_the_clients_if_it_says_429(
    start_worker, start_frontend
):
    prefillers, [decode], frontend = await fleet(
        start_worker, start_frontend, prefill=[OVERLOADED, OVERLOADED], decode=[HEALTHY]
    )
    assert (await frontend.text())[0] == 429
    assert all(worker.requests for worker in prefillers)
    assert not decode.requests


async def test_prefill_workers_that_are_unavailable_leave_the_prompt_to_the_decode_worker(
    start_worker, start_frontend
):
    _, [decode], frontend = await fleet(
        start_worker, start_frontend, prefill=[UNAVAILABLE], decode=[HEALTHY]
    )
    assert (await frontend.text())[0] == 200
    assert "kv_transfer_params" not in decode.requests[0]
    assert await frontend.metric("mocker_frontend_local_prefills_total") == 1


async def test_what_a_worker_does_not_support_no_other_is_asked_for(start_worker, start_frontend):
    _, [one, two], frontend = await fleet(
        start_worker, start_frontend, decode=["unsupported", "unsupported"]
    )
    status, text = await frontend.text()
    assert (status, "not supported" in text) == (501, True)
    assert len(one.requests) + len(two.requests) == 1
