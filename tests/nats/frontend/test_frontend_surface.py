"""What clients of a real worker are used to, through a real frontend."""

import asyncio

import openai
import pytest

pytestmark = pytest.mark.nats

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting{"
USED = "vllm:kv_cache_usage_perc"


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_of_several_prompts_come_from_both_legs(start_fleet, stream):
    [prefill], [decode], entry = await start_fleet(decode=1)
    answer = await entry.openai.completions.create(
        model="mock", prompt=["the sea", "the sky and the shore"], n=2, max_tokens=6, stream=stream
    )
    tokens = dict.fromkeys(range(4), 0)
    if stream:
        async for chunk in answer:
            for choice in chunk.choices:
                tokens[choice.index] += 1
        assert set(tokens.values()) == {6}
        assert await entry.metric("dynamo_frontend_inter_token_latency_seconds_count") == 20
    else:
        assert [choice.index for choice in answer.choices] == list(tokens)
        assert answer.usage.completion_tokens == 24
    assert await prefill.metric("vllm:generation_tokens_total") == 4
    assert await decode.metric("vllm:generation_tokens_total") == 24
    assert await entry.metric("mocker_frontend_local_prefills_total") == 0


async def test_several_choices_of_a_chat_are_measured_as_such(start_fleet):
    _, _, entry = await start_fleet(decode=1)
    stream = await entry.openai.chat.completions.create(
        model="mock",
        messages=[{"role": "user", "content": "Tell me about the sea."}],
        max_tokens=5,
        n=3,
        stream=True,
    )
    texts = [c.index async for chunk in stream for c in chunk.choices if c.delta.content]
    assert sorted(texts) == [0] * 5 + [1] * 5 + [2] * 5
    assert await entry.metric("dynamo_frontend_inter_token_latency_seconds_count") == 12
    assert await entry.metric("dynamo_frontend_output_sequence_tokens_sum") == 15


async def test_the_model_is_as_long_as_the_workers_say(start_fleet):
    [prefill], [decode], entry = await start_fleet(decode=1)
    (model,) = (await entry.openai.models.list()).data
    told = []
    for worker in (prefill, decode):
        async with entry.session.get(worker.url + "/v1/models") as response:
            told.append((await response.json())["data"][0]["max_model_len"])
    assert model.max_model_len == min(told)


async def test_integral_floats_and_biases_pass_both_legs(start_fleet):
    [prefill], [decode], entry = await start_fleet(decode=1)
    asked = {"model": "mock", "prompt": [7.0, 8], "max_tokens": 5.0, "n": 2.0}
    asked["logit_bias"] = {"100": 100}
    async with entry.session.post(entry.url + "/v1/completions", json=asked) as response:
        answer = await response.json()
    assert [choice["text"] for choice in answer["choices"]] == [" the" * 5] * 2
    assert await prefill.metric("vllm:generation_tokens_total") == 2
    assert await decode.metric("vllm:generation_tokens_total") == 10
    assert await entry.metric("mocker_frontend_local_prefills_total") == 0


async def test_a_text_survives_being_made_tokens(start_fleet):
    _, _, entry = await start_fleet(decode=1)
    text = "the sea, the sky; \u00e9t\u00e9"
    asked = {"model": "mock", "prompt": text}
    async with entry.session.post(entry.url + "/tokenize", json=asked) as response:
        answer = await response.json()
    assert answer["count"] == len(answer["tokens"])
    asked = {"model": "mock", "tokens": answer["tokens"]}
    async with entry.session.post(entry.url + "/detokenize", json=asked) as response:
        assert (await response.json())["prompt"] == text


async def test_a_reset_reaches_the_caches_of_all_workers(start_fleet):
    [prefill], _, entry = await start_fleet()
    prompt = list(range(1000, 1064))

    async def hits():
        await entry.openai.completions.create(model="mock", prompt=prompt, max_tokens=1)
        return await prefill.metric("vllm:prefix_cache_hits_total")

    assert await hits() == 0
    found = await hits()
    assert found > 0
    rate = "dynamo_component_router_kv_hit_rate"
    assert await entry.metric(f"{rate}_count") == 2
    assert await entry.metric(f"{rate}_sum") == pytest.approx(found / len(prompt))
    async with entry.session.post(entry.url + "/reset_prefix_cache") as response:
        assert response.status == 200
        assert await response.json() == {"reset": True}
    assert await hits() == found


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slots_and_blocks(start_fleet, wait_until, stream):
    [prefill], [decode], entry = await start_fleet(decode=1, speedup="1")
    request = entry.openai.completions.create(
        model="mock", prompt="the sea and the sky", max_tokens=5000, n=2, stream=stream
    )
    task = asyncio.create_task(request)
    await wait_until(lambda: reads(decode, RUNNING, 2))
    if stream:
        await (await task).close()
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await wait_until(lambda: reads(decode, RUNNING, 0))
    assert await decode.metric(USED) == 0
    assert await prefill.metric(RUNNING) == 0
    await wait_until(lambda: reads(entry, "dynamo_frontend_inflight_requests", 0))


async def reads(program, pattern, value):
    return await program.metric(pattern) == value


async def test_a_full_queue_of_the_only_worker_is_the_clients(
    start_worker, start_frontend, wait_until
):
    limits = ("--max-num-seqs", "1", "--max-num-queued-reqs", "1", "--queue-full-status", "429")
    worker, entry = await start_worker(*limits, speedup="1"), await start_frontend()
    await wait_until(lambda: reads(entry, "mocker_frontend_workers.*aggregated", 1))
    tasks = []
    for pattern in (RUNNING, WAITING):
        request = entry.openai.completions.create(model="mock", prompt="sea", max_tokens=5000)
        tasks.append(asyncio.create_task(request))
        await wait_until(lambda pattern=pattern: reads(worker, pattern, 1))
    with pytest.raises(openai.RateLimitError) as refusal:
        await entry.openai.completions.create(model="mock", prompt="sea", max_tokens=1)
    assert int(refusal.value.response.headers["Retry-After"]) > 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await wait_until(lambda: reads(worker, RUNNING, 0))


async def test_a_fault_that_a_client_asks_for_is_its_own(start_fleet):
    _, _, entry = await start_fleet()
    forced = {"X-Return-Error": "model_not_found"}
    with pytest.raises(openai.NotFoundError):
        await entry.openai.completions.create(
            model="mock", prompt="sea", max_tokens=1, extra_headers=forced
        )
    forced = {"X-Return-Error": "stream_error"}
    stream = await entry.openai.completions.create(
        model="mock", prompt="sea", max_tokens=9, stream=True, extra_headers=forced
    )
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass
    assert await entry.metric("mocker_frontend_local_prefills_total") == 0


async def test_the_load_of_the_worker_reaches_whoever_asks_for_it(start_fleet):
    _, _, entry = await start_fleet(decode=1)
    answer = await entry.openai.completions.with_raw_response.create(
        model="mock",
        prompt="sea",
        max_tokens=1,
        extra_headers={"endpoint-load-metrics-format": "TEXT"},
    )
    assert "kv_cache_usage_perc" in answer.headers["endpoint-load-metrics"]


async def test_one_key_opens_the_frontend_and_its_workers(start_worker, start_frontend, wait_until):
    key = ("--api-key", "secret")
    worker, entry = await start_worker(*key), await start_frontend(*key)
    await wait_until(lambda: reads(entry, "mocker_frontend_workers.*aggregated", 1))
    for program in (worker, entry):
        with pytest.raises(openai.AuthenticationError):
            await program.openai.models.list()
        async with openai.AsyncOpenAI(
            base_url=program.url + "/v1", api_key="secret", max_retries=0
        ) as client:
            answer = await client.completions.create(model="mock", prompt="sea", max_tokens=2)
            assert answer.usage.completion_tokens == 2
