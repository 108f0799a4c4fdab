"""Dynamo 1.6.1's subscriber to forward-pass metrics, held against the worker's own counters."""

from collections import defaultdict

import aiohttp
import msgspec
from metrics import scraped
from programs import dynamo_servers
from traffic import Traffic
from waiting import until

RANKS = 2


async def test_the_passes_that_dynamo_hears_of_add_up_to_the_counters(programs):
    nats, etcd = await programs.nats(), await programs.etcd()
    servers = dynamo_servers(nats, etcd)
    worker = await programs.worker(
        *("--nats-url", nats, "--etcd-endpoints", etcd, "--data-parallel-size", RANKS),
        *("--kv-events-nats-format", "dynamo-event-plane", "--speedup-ratio", 50),
        *("--block-size", 4, "--num-gpu-blocks-override", 1000, "--max-num-seqs", 8),
    )
    place = "dynamo.backend.generate"
    subscriber = await programs.consumer("dynamo-1.6.1", "forward_passes", place, env=servers)
    ranks = {f"{worker.worker_id}/{rank}" for rank in range(RANKS)}

    async def tracks_all():
        return set((await subscriber.ask())["latest"]) == ranks

    await until(tracks_all, saying="heartbeats of every rank")
    heard = [await subscriber.ask()]
    await Traffic(worker, block_size=4, seed=12, ranks=RANKS).send(300)

    async def idle():
        """Every rank's latest message is a heartbeat."""
        heard.append(await subscriber.ask())
        latest = map(bytes.fromhex, heard[-1]["latest"].values())
        return all(not msgspec.msgpack.decode(message)["wall_time"] for message in latest)

    await until(idle)
    heard.append(await subscriber.ask())
    passes = defaultdict(list)
    for answer in heard:
        for message in map(bytes.fromhex, answer["messages"]):
            forward_pass = msgspec.msgpack.decode(message)
            assert forward_pass["version"] == 1
            passes[f"{forward_pass['worker_id']}/{forward_pass['dp_rank']}"].append(forward_pass)
    assert passes.keys() == ranks
    async with aiohttp.ClientSession(worker.url) as http:
        counters = await scraped(http)
    for rank, (_, told) in enumerate(sorted(passes.items())):
        numbers = [message["counter_id"] for message in told]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        scheduled = [message["scheduled_requests"] for message in told]
        mine = counters.of(engine=str(rank))
        computed = mine["vllm:prompt_tokens_total"] - mine["vllm:prefix_cache_hits_total"]
        requests = mine["vllm:e2e_request_latency_seconds_count"]
        decoded = mine["vllm:generation_tokens_total"] - requests
        assert mine["vllm:num_preemptions_total"] == 0  # which would compute prompts again
        assert sum(s["sum_prefill_tokens"] for s in scheduled) == computed > 0
        assert sum(s["num_decode_requests"] for s in scheduled) == decoded > 0
        assert sum(message["wall_time"] for message in told) > 0
