"""The worker's counts of requests that ended, beside what clients were told."""

import aiohttp
import pytest
from worker_accounts import Accounts
from worker_client import complete, post, stream

FIRST_WORDS = 6


async def accounts(worker):
    async with (
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.get("/metrics") as response,
    ):
        found = Accounts(await response.text())
    found.assert_sums_agree()
    return found


async def ended(worker):
    found = await accounts(worker)
    return tuple(
        found.total("vllm:request_success_total", finished_reason=reason)
        for reason in ("stop", "length", "abort")
    )


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stop_string_in_the_last_token_ends_a_request_as_stopped(run_worker, streamed):
    """As in vLLM, although the length is reached as well."""
    async with run_worker() as worker:
        answer = await complete(worker, max_tokens=FIRST_WORDS, seed=3)
        words = answer["choices"][0]["text"].split()
        assert len(set(words)) == FIRST_WORDS
        body = {"prompt": "x", "max_tokens": FIRST_WORDS, "seed": 3, "stop": words[-1]}
        if streamed:
            *_, last = await stream(worker, **body)
            reason = last["choices"][0]["finish_reason"]
        else:
            reason = (await complete(worker, **body))["choices"][0]["finish_reason"]

        assert reason == "stop"
        assert await ended(worker) == (1, 1, 0)


@pytest.mark.parametrize("streamed", [False, True])
async def test_without_delay_nothing_is_counted_behind_a_stop_string(run_worker, streamed):
    async with run_worker(speedup_ratio=0.0) as worker:
        answer = await complete(worker, max_tokens=FIRST_WORDS, seed=3)
        words = answer["choices"][0]["text"].split()
        body = {"prompt": "x", "max_tokens": 500, "seed": 3, "stop": words[-1], "stream": streamed}
        status, _ = await post(worker, "/v1/completions", body)

        assert status == 200
        assert await ended(worker) == (1, 1, 0)
        found = await accounts(worker)
        assert found.total("vllm:generation_tokens_total") == 2 * FIRST_WORDS
        assert found.total("vllm:request_generation_tokens_sum") == 2 * FIRST_WORDS


async def test_a_request_that_is_refused_for_one_of_its_prompts_never_began(run_worker):
    async with run_worker(num_gpu_blocks=8) as worker:
        prompts = [[1], [2, 3], list(range(100))]
        status, answer = await post(worker, "/v1/completions", {"prompt": prompts, "max_tokens": 4})

        assert status == 400, answer
        assert await ended(worker) == (0, 0, 0)
