"""Requests through a real frontend to real workers."""

import pytest

pytestmark = pytest.mark.nats

MESSAGES = [{"role": "user", "content": "Tell me about the sea, the sky and the shore."}]
GENERATED = "vllm:generation_tokens_total"


async def test_prefill_runs_on_a_prefill_worker_and_decode_on_a_decode_worker(start_fleet):
    [prefill], decoders, entry = await start_fleet()
    answer = await entry.openai.chat.completions.create(
        model="mock", messages=MESSAGES, max_tokens=40
    )
    assert answer.usage.completion_tokens == 40
    assert answer.choices[0].finish_reason == "length"
    assert await prefill.metric(GENERATED) == 1
    assert sum([await worker.metric(GENERATED) for worker in decoders]) == 40
    assert await prefill.metric("vllm:prompt_tokens_total") == answer.usage.prompt_tokens
    assert await entry.metric("mocker_frontend_local_prefills_total") == 0


async def test_a_stream_has_one_chunk_per_token_and_usage_if_asked(start_fleet):
    _, _, entry = await start_fleet(decode=1)
    for options in ({}, {"stream_options": {"include_usage": True}}):
        stream = await entry.openai.chat.completions.create(
            model="mock", messages=MESSAGES, max_tokens=25, stream=True, **options
        )
        chunks = [chunk async for chunk in stream]
        texts = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
        assert len(texts) == 25
        usages = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
        assert usages == ([25] if options else [])
    assert await entry.metric("dynamo_frontend_output_sequence_tokens_sum") == 50
    assert await entry.metric("dynamo_frontend_input_sequence_tokens_sum") > 0


async def test_text_completions_work_too(start_fleet):
    _, _, entry = await start_fleet(decode=1)
    answer = await entry.openai.completions.create(model="mock", prompt="sea", max_tokens=5)
    assert answer.usage.completion_tokens == 5
    stream = await entry.openai.completions.create(
        model="mock", prompt="sea", max_tokens=5, stream=True
    )
    assert len([chunk async for chunk in stream if chunk.choices and chunk.choices[0].text]) == 5


async def test_round_robin_spreads_requests_over_decode_workers(start_fleet):
    _, decoders, entry = await start_fleet()
    for _ in range(6):
        await entry.openai.completions.create(model="mock", prompt="sea", max_tokens=4)
    assert [await worker.metric(GENERATED) for worker in decoders] == [12, 12]


async def test_aggregated_workers_serve_without_prefill_workers(
    start_worker, start_frontend, wait_until
):
    worker, entry = await start_worker(), await start_frontend()

    async def known():
        return await entry.metric("mocker_frontend_workers.*aggregated") == 1

    await wait_until(known)
    answer = await entry.openai.completions.create(model="mock", prompt="sea", max_tokens=8)
    assert answer.usage.completion_tokens == 8
    assert await worker.metric(GENERATED) == 8


async def test_least_loaded_avoids_the_busy_worker(start_fleet):
    _, decoders, entry = await start_fleet(speedup="1", frontend=("--routing", "least-loaded"))
    busy = await entry.openai.completions.create(
        model="mock", prompt="sea", max_tokens=2000, stream=True
    )
    await anext(aiter(busy))
    for _ in range(4):
        await entry.openai.completions.create(model="mock", prompt="sea", max_tokens=2)
    finished = [
        await worker.metric('vllm:request_success_total.*finished_reason="length"')
        for worker in decoders
    ]
    assert sorted(finished) == [0, 4]
    await busy.close()
