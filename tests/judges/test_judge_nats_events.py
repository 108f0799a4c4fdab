"""Indexers of Dynamo on what a worker publishes to NATS: JetStream (0.7) and event plane (1.6)."""

import re
from functools import partial

import pytest
from programs import dynamo_servers
from traffic import Traffic, judged_to_the_end
from waiting import until

BLOCK_SIZE = 4
ENGINE = ("--block-size", BLOCK_SIZE, "--num-gpu-blocks-override", 160, "--max-num-seqs", 8)
QUICK = ("--speedup-ratio", 0)
NAMESPACE = "judged"
UID = "3f0a1c5e-0000-4000-8000-000000000002"


@pytest.mark.parametrize(("ranks", "num_prompts"), [(1, 10_000), (2, 1000)])
async def test_the_indexer_of_dynamo_0_7_knows_the_cache_by_jetstream(programs, ranks, num_prompts):
    nats, etcd = await programs.nats(), await programs.etcd()
    servers = dynamo_servers(nats, etcd)
    place = (NAMESPACE, "backend", BLOCK_SIZE)
    indexer = await programs.consumer("dynamo-0.7.0", "jetstream_indexer", *place, env=servers)
    worker = await programs.worker(
        *("--nats-url", nats, "--namespace", NAMESPACE, "--data-parallel-size", ranks),
        *ENGINE,
        *QUICK,
    )
    await judged_to_the_end(
        worker, indexer, num_prompts=num_prompts, block_size=BLOCK_SIZE, ranks=ranks
    )


@pytest.mark.parametrize(("ranks", "num_prompts"), [(1, 10_000), (2, 1000)])
async def test_the_router_of_dynamo_1_6_knows_the_cache_by_the_event_plane(
    programs, ranks, num_prompts
):
    nats, etcd = await programs.nats(), await programs.etcd()
    servers = dynamo_servers(nats, etcd)
    worker = await programs.worker(
        *("--nats-url", nats, "--namespace", NAMESPACE, "--data-parallel-size", ranks),
        *("--kv-events-nats-format", "dynamo-event-plane", "--etcd-endpoints", etcd),
        *ENGINE,
        *QUICK,
    )
    place = (f"{NAMESPACE}.backend.generate", BLOCK_SIZE)
    router = await programs.consumer("dynamo-1.6.1", "kv_router", *place, env=servers)
    await judged_to_the_end(
        worker, router, num_prompts=num_prompts, block_size=BLOCK_SIZE, ranks=ranks
    )


@pytest.mark.parametrize("transport", ["jetstream", "event-plane"])
async def test_what_a_killed_worker_had_is_forgotten_when_it_starts_again(programs, transport):
    worker, judge, flags = await judged_worker(programs, transport)
    before = Traffic(worker, block_size=BLOCK_SIZE, seed=20)
    await before.greet(judge)
    await before.send(100)
    assert await before.judge(judge, 10) > 1
    assert await judge(before.last_prompt)
    await worker.kill()
    worker = await programs.worker(*flags)
    after = Traffic(worker, block_size=BLOCK_SIZE, seed=21)
    await after.greet(judge)
    assert await judge(before.last_prompt) == {}
    await after.send(100)
    assert await after.judge(judge, 20) > 1


@pytest.mark.parametrize("transport", ["jetstream", "event-plane"])
async def test_what_happened_while_nats_was_away_is_known_when_it_is_back(programs, transport):
    worker, judge, _ = await judged_worker(programs, transport)
    traffic = Traffic(worker, block_size=BLOCK_SIZE, seed=22)
    await traffic.greet(judge)
    await programs.nats_stops()
    await traffic.send(1000)
    await traffic.remember()
    await programs.nats_starts()
    if transport == "event-plane":  # it keeps nothing, so a router that is back late is told then
        await until(partial(told_once_more, worker), saying="a snapshot for late routers")
    await traffic.known(judge)
    assert await traffic.judge(judge, 40) > 10


async def told_once_more(worker):
    """Whether a snapshot came seconds after the connection, when routers are back, too."""
    logged = re.findall(r"(?m)^\S+ \d+:(\d+):(\d+),.*(connected to NATS|start anew)", worker.log)
    times = [(event, 60 * int(minute) + int(second)) for minute, second, event in logged]
    connected_s = [time_s for event, time_s in times if event == "connected to NATS"][-1]
    return any(
        event == "start anew" and (time_s - connected_s) % 3600 in range(4, 1800)
        for event, time_s in times
    )


async def judged_worker(programs, transport):
    """A worker, who judges it, and its flags."""
    nats, etcd = await programs.nats(), await programs.etcd()
    servers = dynamo_servers(nats, etcd)
    flags = (
        *("--nats-url", nats, "--namespace", NAMESPACE, "--worker-uid", UID),
        *("--kv-events-nats-format", f"dynamo-{transport}", "--etcd-endpoints", etcd),
        *ENGINE,
        *QUICK,
    )
    if transport == "jetstream":  # its indexer has to be there first
        place = ("dynamo-0.7.0", "jetstream_indexer", NAMESPACE, "backend", BLOCK_SIZE)
        consumer = await programs.consumer(*place, env=servers)
        worker = await programs.worker(*flags)
    else:
        worker = await programs.worker(*flags)
        place = ("dynamo-1.6.1", "kv_router", f"{NAMESPACE}.backend.generate", BLOCK_SIZE)
        consumer = await programs.consumer(*place, env=servers)

    async def judge(tokens):
        return await consumer.ask(tokens=tokens)

    return worker, judge, flags
