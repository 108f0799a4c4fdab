"""Workers and NATS come and go; clients do not notice."""

import asyncio
import signal

import pytest
from waiting import PATIENCE_S

pytestmark = pytest.mark.nats


async def complete(entry, tokens=3):
    answer = await entry.openai.completions.create(
        model="mock", prompt="the sea", max_tokens=tokens
    )
    assert answer.usage.completion_tokens == tokens


async def test_draining_a_worker_in_mid_stream_causes_no_error(start_fleet, wait_until):
    _, decoders, entry = await start_fleet(speedup="1")
    stream = await entry.openai.completions.create(
        model="mock", prompt="the sea", max_tokens=600, stream=True
    )
    tokens = aiter(stream)
    await anext(tokens)
    [leaving] = [w for w in decoders if await w.metric("vllm:num_requests_running")]
    [staying] = [w for w in decoders if w is not leaving]
    leaving.process.send_signal(signal.SIGTERM)

    async def known_to_drain():
        return await entry.metric('mocker_frontend_workers.*state="draining"') == 1

    await wait_until(known_to_drain)
    for _ in range(4):
        await complete(entry)
    assert await staying.metric("vllm:generation_tokens_total") == 12
    received = 1 + len([chunk async for chunk in tokens if chunk.choices])
    assert received == 600
    assert await asyncio.wait_for(leaving.process.wait(), PATIENCE_S) == 0
    await complete(entry)
    assert await entry.metric("dynamo_frontend_requests_total.*error") == 0


async def test_requests_succeed_after_a_worker_was_killed(start_fleet):
    _, decoders, entry = await start_fleet()
    await asyncio.gather(*(complete(entry) for _ in range(4)))
    decoders[0].process.kill()
    await decoders[0].process.wait()
    for _ in range(6):
        await complete(entry)
    assert await entry.metric("dynamo_frontend_requests_total.*error") == 0


async def test_a_killed_worker_expires(start_fleet, wait_until):
    _, decoders, entry = await start_fleet()
    decoders[0].process.kill()

    async def forgotten():
        return await entry.metric('mocker_frontend_workers.*role="decode"') == 1

    await wait_until(forgotten)


async def test_killed_prefill_workers_leave_prefill_to_the_decode_workers(start_fleet):
    [prefill], _, entry = await start_fleet(decode=1)
    prefill.process.kill()
    await prefill.process.wait()
    await complete(entry)
    assert await entry.metric("mocker_frontend_local_prefills_total") == 1


@pytest.mark.parametrize("storage_lost", [False, True])
async def test_an_outage_of_nats_loses_no_worker_and_no_request(
    start_fleet, nats_server, start_worker, wait_until, storage_lost
):
    _, _, entry = await start_fleet(decode=1)
    nats_server.stop()
    if storage_lost:
        nats_server.lose_storage()
    await complete(entry)
    nats_server.start()
    late = await start_worker("--is-decode-worker")
    await wait_until(late.ready)

    async def all_known():
        known = await entry.metric('mocker_frontend_workers.*state="ready"')
        assert known >= 2
        return known == 3

    await wait_until(all_known)
    await complete(entry)


async def test_a_frontend_waits_for_nats_before_it_is_ready(start_program, nats_server, wait_until):
    nats_server.stop()
    entry = await start_program("mocker-frontend", "--nats-url", nats_server.url)
    assert (await entry.get("/live"))[0] == 200
    assert (await entry.get("/ready"))[0] == 503
    nats_server.start()
    await wait_until(entry.ready)


async def test_sigterm_drains_the_frontend(start_fleet):
    _, _, entry = await start_fleet(speedup="1", frontend=("--drain-grace-s", "0.2"))
    stream = await entry.openai.completions.create(
        model="mock", prompt="the sea", max_tokens=100, stream=True
    )
    tokens = aiter(stream)
    await anext(tokens)
    entry.process.send_signal(signal.SIGTERM)
    assert 1 + len([chunk async for chunk in tokens if chunk.choices]) == 100
    assert await asyncio.wait_for(entry.process.wait(), PATIENCE_S) == 0


async def test_a_client_that_leaves_frees_the_decode_worker(start_fleet, wait_until):
    _, [decode], entry = await start_fleet(decode=1, speedup="1")
    stream = await entry.openai.completions.create(
        model="mock", prompt="the sea", max_tokens=2000, stream=True
    )
    await anext(aiter(stream))
    assert await decode.metric("vllm:num_requests_running") == 1
    await stream.close()

    async def idle():
        return await decode.metric("vllm:num_requests_running") == 0

    await wait_until(idle)


async def test_no_request_fails_while_a_worker_leaves(start_fleet):
    [prefill, *_], [leaving, *_], entry = await start_fleet(prefill=2)
    gone = asyncio.Event()

    async def keep_asking():
        while not gone.is_set():
            await complete(entry)

    async with asyncio.TaskGroup() as clients:
        for _ in range(4):
            clients.create_task(keep_asking())
        for worker in (prefill, leaving):
            worker.process.send_signal(signal.SIGTERM)
        for worker in (prefill, leaving):
            assert await asyncio.wait_for(worker.process.wait(), PATIENCE_S) == 0
        gone.set()
    await complete(entry)
    assert await entry.metric("dynamo_frontend_requests_total.*error") == 0
    assert await entry.metric("mocker_frontend_local_prefills_total") == 0
