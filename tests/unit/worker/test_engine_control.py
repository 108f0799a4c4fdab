import asyncio
import dataclasses
import json

import aiohttp
from waiting import PATIENCE_S

from mocker_worker.config import EventOptions
from mocker_worker.events.zmq_options import ZmqOptions
from mocker_worker.serve import Worker


async def call(worker, method, path, **arguments):
    """Return status and JSON of an answer."""
    async with (
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.request(method, path, **arguments) as response,
    ):
        return response.status, await response.json()


async def cached_tokens(worker, prompt):
    """Return how much of a prompt the cache had."""
    body = {"prompt": prompt, "max_tokens": 1}
    _, answer = await call(worker, "POST", "/v1/completions", json=body)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_a_reset_forgets_cached_blocks(run_worker):
    async with run_worker() as worker:
        prompt = "water " * 40
        await cached_tokens(worker, prompt)
        assert await cached_tokens(worker, prompt) > 0

        assert await call(worker, "POST", "/reset_prefix_cache") == (200, {"reset": True})
        assert await cached_tokens(worker, prompt) == 0


async def test_a_reset_does_nothing_while_requests_hold_blocks(run_worker):
    slow = {"type": "fixed", "prefill_ms": 1.0, "decode_ms": 20.0}
    async with (
        run_worker(timing_model=slow) as worker,
        aiohttp.ClientSession(worker.listening.result()) as session,
    ):
        body = {"prompt": "water " * 40, "max_tokens": 10_000, "stream": True}
        async with session.post("/v1/completions", json=body) as stream:
            await stream.content.readline()
            assert await call(worker, "POST", "/reset_prefix_cache") == (200, {"reset": False})
            stream.close()
        async with asyncio.timeout(PATIENCE_S):
            while worker.lifecycle.in_flight:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.005)


async def test_running_requests_are_not_reset(run_worker):
    async with run_worker() as worker:
        status, answer = await call(
            worker, "POST", "/reset_prefix_cache?reset_running_requests=true"
        )
        assert status == 501
        assert answer["error"]["param"] == "reset_running_requests"
        status, _ = await call(worker, "POST", "/reset_prefix_cache?reset_running_requests=x")
        assert status == 400
        status, _ = await call(worker, "POST", "/reset_prefix_cache?reset_running_requests=false")
        assert status == 200


async def test_without_zmq_there_are_no_event_sources(run_worker):
    async with run_worker() as worker:
        assert await call(worker, "GET", "/kv_event_sources") == (200, [])


async def test_the_engine_can_be_looked_at(run_worker):
    async with run_worker(max_num_seqs=7) as worker:
        status, info = await call(worker, "GET", "/server_info")

        assert status == 200
        assert (info["model"], info["mode"], info["worker_type"]) == (
            "mock",
            "random",
            "aggregated",
        )
        assert info["engine_args"]["max_num_seqs"] == 7
        assert int(info["worker_id"]) == worker.config.worker_id
        json.dumps(info)


async def test_the_event_sources_on_zmq_are_listed(worker_config):
    options = EventOptions(zmq=ZmqOptions(endpoint="tcp://*:0", topic="kv@{pod_ip}"))
    config = dataclasses.replace(worker_config(dp_size=2), events=options)
    worker = Worker(config)
    run = asyncio.create_task(worker.run())
    await worker.listening
    status, sources = await call(worker, "GET", "/kv_event_sources")
    worker.lifecycle.request_stop()
    await run

    assert status == 200
    assert [source["data_parallel_rank"] for source in sources] == [0, 1]
    assert all(source["endpoint"].startswith("tcp://127.0.0.1:") for source in sources)
    assert sources[0]["endpoint"] != sources[1]["endpoint"]
    assert sources[0]["topic"] == "kv@127.0.0.1"
    assert sources[0]["replay_endpoint"] is None
