"""Listeners of Dynamo on what a worker publishes by ZMQ, in both forms of vLLM's events."""

import json

import aiohttp
import pytest
from programs import dynamo_servers, free_port
from traffic import Traffic, judged_to_the_end
from waiting import until

BLOCK_SIZE = 4
ENGINE = (
    *("--block-size", BLOCK_SIZE, "--num-gpu-blocks-override", 160, "--max-num-seqs", 8),
    *("--speedup-ratio", 0),
)
UID = "3f0a1c5e-0000-4000-8000-000000000001"
"""Of the worker, whose id a listener has to be told before the worker is there."""


class Source:
    """Where a worker publishes."""

    def __init__(self, **options):
        port, replay_port = free_port(), free_port()
        self.endpoint, self.replay = (f"tcp://127.0.0.1:{p}" for p in (port, replay_port))
        self.options = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{port}",
            "replay_endpoint": f"tcp://*:{replay_port}",
            **options,
        }

    def flags(self):
        return ("--kv-events-config", json.dumps(self.options), "--worker-uid", UID)


@pytest.mark.parametrize(
    ("form", "algorithm", "num_prompts"),
    [("map", "xxh3", 10_000), ("array", "xxh3", 1000), ("map", "sha256_cbor", 1000)],
)
async def test_the_selection_service_of_dynamo_1_6_knows_the_cache(
    programs, form, algorithm, num_prompts
):
    source = Source(format=form)
    flags = (*source.flags(), "--no-nats", "--prefix-caching-hash-algo", algorithm)
    worker = await programs.worker(*flags, *ENGINE)
    place = (BLOCK_SIZE, worker.worker_id, source.endpoint)
    service = await programs.consumer("dynamo-1.6.1", "selection_service", *place)
    await judged_to_the_end(worker, service, num_prompts=num_prompts, block_size=BLOCK_SIZE)


async def test_a_late_subscriber_is_right_after_a_replay(programs):
    source = Source()
    worker = await programs.worker(*source.flags(), "--no-nats", *ENGINE)
    traffic = Traffic(worker, block_size=BLOCK_SIZE, seed=8)
    await traffic.send(1000)
    place = (BLOCK_SIZE, worker.worker_id, source.endpoint, source.replay)
    service = await programs.consumer("dynamo-1.6.1", "selection_service", *place)

    async def judge(tokens):
        return await service.ask(tokens=tokens)

    await traffic.greet(judge)
    assert await traffic.judge(judge, 40) > 10


@pytest.mark.parametrize(
    ("form", "topic"), [("map", ""), ("array", "kv-events"), ("array", "kv@{pod_ip}@{model}")]
)
async def test_the_listener_of_dynamo_0_7_hears_nothing_that_its_tree_refuses(
    programs, form, topic
):
    source = Source(format=form, topic=topic)
    worker = await programs.worker(*source.flags(), "--no-nats", *ENGINE)
    heard_topic = topic.format(pod_ip="127.0.0.1", model="mock")
    place = (BLOCK_SIZE, worker.worker_id, source.endpoint, heard_topic)
    listener = await programs.consumer("dynamo-0.7.0", "zmq_listener", *place)

    async def judge(tokens):
        return await listener.ask(tokens=tokens)

    traffic = Traffic(worker, block_size=BLOCK_SIZE, seed=9)
    await traffic.greet(judge)
    before = await cleared(worker, listener, traffic.last_prompt)
    await traffic.send(1000)
    assert await traffic.judge(judge, 40) > 10
    state = await listener.ask(state=True)
    assert state["errors"] == before["errors"]
    assert state["events"] - before["events"] == state["last_id"] - before["last_id"] > 1000


async def test_nats_and_zmq_tell_the_same_story_at_once(programs):
    nats, etcd = await programs.nats(), await programs.etcd()
    source = Source(format="array")
    servers = dynamo_servers(nats, etcd)
    place = ("dynamo", "backend", BLOCK_SIZE)
    indexer = await programs.consumer("dynamo-0.7.0", "jetstream_indexer", *place, env=servers)
    worker = await programs.worker("--nats-url", nats, *source.flags(), *ENGINE)
    place = (BLOCK_SIZE, worker.worker_id, source.endpoint)
    service = await programs.consumer("dynamo-1.6.1", "selection_service", *place)
    traffic = Traffic(worker, block_size=BLOCK_SIZE, seed=10)

    async def judge(tokens):
        """What both say, or nothing while one of them lags behind."""
        answers = [await consumer.ask(tokens=tokens) for consumer in (indexer, service)]
        return answers[0] if answers[0] == answers[1] else {}

    await traffic.greet(judge)
    await traffic.send(1000)
    assert await traffic.judge(judge, 40) > 10


async def cleared(worker, listener, prompt):
    """Empty the worker's cache, and return the listener's state once it knows."""
    async with aiohttp.ClientSession(worker.url) as http:

        async def is_reset():
            async with http.post("/reset_prefix_cache") as answer:
                return answer.status == 200

        await until(is_reset)

    async def heard():
        return not await listener.ask(tokens=prompt)

    await until(heard)
    return await listener.ask(state=True)
