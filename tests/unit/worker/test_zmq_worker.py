"""A whole worker that publishes on ZMQ, without NATS."""

import asyncio
from dataclasses import replace

import aiohttp
from waiting import PATIENCE_S, until
from zmq_consumers import PrefixIndex, Router, consumer_context, running

from mocker_worker.config import EventOptions
from mocker_worker.events.zmq_options import ZmqOptions
from mocker_worker.serve import Worker


def cached(worker, dp_rank):
    index = PrefixIndex()
    for event in worker._engines[dp_rank].cached_blocks():
        hashes = [block.sequence for block in event.blocks]
        index.stored(hashes, event.parent_hash, event.token_ids, 4)
    return index.prefixes


async def test_a_router_follows_the_cache_of_a_worker_to_its_end(worker_config):
    options = ZmqOptions(
        endpoint="tcp://*:0", replay_endpoint="tcp://*:0", topic="kv@{pod_name}@{model}"
    )
    config = replace(worker_config(dp_size=2, num_gpu_blocks=64), events=EventOptions(zmq=options))
    worker = Worker(config)
    run = asyncio.create_task(worker.run())
    url = await worker.listening
    with consumer_context() as context:
        async with aiohttp.ClientSession(url) as http:
            async with http.get("/kv_event_sources") as answer:
                sources = await answer.json()
            assert [source["data_parallel_rank"] for source in sources] == [0, 1]
            assert {source["topic"] for source in sources} == {"kv@pod-1@mock"}
            router = Router(context, sources[1])
            async with running(router):
                for number in range(60):
                    body = {"prompt": [7, 7, 7, 7, *range(number, number + 20)], "max_tokens": 8}
                    headers = {"X-data-parallel-rank": "1"}
                    async with http.post("/v1/completions", json=body, headers=headers) as answer:
                        assert answer.status == 200
                    if number == 10:
                        await until(lambda: router.heard)
                await until(lambda: router.prefixes == cached(worker, 1))
                assert len(router.prefixes) > 50
                assert cached(worker, 0) == set()
                worker.lifecycle.request_stop()
                await until(lambda: router.prefixes == set())
                async with asyncio.timeout(PATIENCE_S):
                    await run
