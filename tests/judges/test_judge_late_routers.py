"""Dynamo's KV router 1.6.1 when it starts after the events that it has to know."""

import asyncio
import contextlib
import logging
from types import SimpleNamespace

import pytest
from programs import dynamo_servers
from traffic import Traffic
from waiting import PATIENCE_S, until

from mocker_protocol.engine_args import parse_engine_args
from mocker_worker.config import EventOptions, NatsFormat, WorkerConfig
from mocker_worker.events.event_plane_publisher import EventPlanePublisher
from mocker_worker.serve import Worker

BLOCK_SIZE = 4
ENGINE = ("--block-size", BLOCK_SIZE, "--num-gpu-blocks-override", 160, "--max-num-seqs", 8)
NAMESPACE = "judged"
NUM_PROMPTS = 2000
TOLD_ANEW = "start anew"


@pytest.mark.parametrize("ranks", [1, 2])
async def test_a_router_that_starts_late_knows_what_one_knows_that_was_there(programs, ranks):
    stack = await Stack.of(programs, ranks)
    await stack.told_once()
    early = await stack.router()
    traffic = Traffic(stack.worker, block_size=BLOCK_SIZE, seed=30, ranks=ranks)
    await traffic.greet(judge_of(early))
    await traffic.send(NUM_PROMPTS)
    await traffic.remember()
    await traffic.known(judge_of(early))
    told_before = stack.worker.log.count(TOLD_ANEW)

    late = await stack.router()
    await traffic.known(judge_of(late))
    await same_blocks(early, late)
    assert stack.worker.log.count(TOLD_ANEW) == told_before
    assert await traffic.judge(judge_of(late), 40) > 10
    await same_blocks(early, late)


@pytest.mark.parametrize("ranks", [1, 2])
async def test_routers_that_start_amid_traffic_miss_nothing(programs, ranks):
    stack = await Stack.of(programs, ranks)
    await stack.told_once()
    traffic = Traffic(stack.worker, block_size=BLOCK_SIZE, seed=31, ranks=ranks)
    both_started = asyncio.Event()

    async def send_until_then():
        while not both_started.is_set():
            await traffic.send(NUM_PROMPTS // 4)

    sending = asyncio.create_task(send_until_then())
    first = await stack.router()
    second = await stack.router()
    both_started.set()
    await sending
    await traffic.send(NUM_PROMPTS)

    await traffic.remember()
    for router in (first, second):
        await traffic.known(judge_of(router))
    await same_blocks(first, second)
    assert await traffic.judge(judge_of(second), 40) > 10


async def test_a_router_that_starts_again_knows_what_it_knew(programs):
    stack = await Stack.of(programs, 1)
    await stack.told_once()
    traffic = Traffic(stack.worker, block_size=BLOCK_SIZE, seed=32)
    router = await stack.router()
    await traffic.greet(judge_of(router))
    await traffic.send(200)
    await traffic.remember()
    await traffic.known(judge_of(router))
    knew = await router.ask(dump=True)
    await router.stop()

    router = await stack.router()
    await traffic.known(judge_of(router))
    assert sorted(await router.ask(dump=True), key=str) == sorted(knew, key=str)


async def test_a_router_that_misses_events_asks_for_them(programs, monkeypatch, caplog):
    nats, etcd = await programs.nats(), await programs.etcd()
    caplog.set_level(logging.INFO)
    network = LossyNetwork(monkeypatch)
    async with worker_in_this_loop(nats, etcd) as worker:
        stack = Stack(programs, worker, dynamo_servers(nats, etcd), 1)
        await until(lambda: logged(caplog, TOLD_ANEW))
        router = await stack.router()
        traffic = Traffic(worker, block_size=BLOCK_SIZE, seed=33)
        await traffic.greet(judge_of(router))
        await traffic.send(200)
        await traffic.remember()
        await traffic.known(judge_of(router))
        kept = traffic.last_prompt
        caplog.clear()

        network.loses_next = True
        await traffic.remember()
        await until(network.has_lost)
        await traffic.remember()
        await traffic.known(judge_of(router))

        assert await router.ask(tokens=kept)
        assert await logged(caplog, "telling the router")
        assert not await logged(caplog, TOLD_ANEW)
        assert await traffic.judge(judge_of(router), 40) > 10


class LossyNetwork:
    """Loses a message of the event plane on demand; nobody is told."""

    def __init__(self, monkeypatch):
        self.loses_next = False
        send = EventPlanePublisher._send

        async def send_or_lose(publisher, batch):
            if self.loses_next:
                self.loses_next = False
                return True
            return await send(publisher, batch)

        monkeypatch.setattr(EventPlanePublisher, "_send", send_or_lose)

    async def has_lost(self):
        return not self.loses_next


@contextlib.asynccontextmanager
async def worker_in_this_loop(nats, etcd):
    """Run a worker whose parts a test can reach; gives what `Traffic` wants to know."""
    worker = Worker(
        WorkerConfig(
            args=parse_engine_args(
                {
                    "block_size": BLOCK_SIZE,
                    "num_gpu_blocks": 160,
                    "max_num_seqs": 8,
                    "speedup_ratio": 0.0,
                }
            ),
            model_name="mock",
            host="127.0.0.1",
            port=0,
            advertised_host="127.0.0.1",
            nats_url=nats,
            namespace=NAMESPACE,
            worker_uid="uid-1",
            drain_timeout_s=10.0,
            drain_grace_s=0.0,
            events=EventOptions(nats_format=NatsFormat.EVENT_PLANE, etcd_endpoints=(etcd,)),
        )
    )
    running = asyncio.create_task(worker.run())
    try:
        yield SimpleNamespace(url=await worker.listening, worker_id=worker.config.worker_id)
    finally:
        worker.lifecycle.request_stop()
        async with asyncio.timeout(PATIENCE_S):
            await running


async def logged(caplog, text):
    return text in caplog.text


class Stack:
    """A worker on the event plane, with what routers find it by."""

    def __init__(self, programs, worker, servers, ranks):
        self._programs = programs
        self._ranks = ranks
        self._servers = servers
        self.worker = worker

    @classmethod
    async def of(cls, programs, ranks):
        nats, etcd = await programs.nats(), await programs.etcd()
        worker = await programs.worker(
            *("--nats-url", nats, "--namespace", NAMESPACE, "--data-parallel-size", ranks),
            *("--kv-events-nats-format", "dynamo-event-plane", "--etcd-endpoints", etcd),
            *ENGINE,
            *("--speedup-ratio", 0),
        )
        return cls(programs, worker, dynamo_servers(nats, etcd), ranks)

    async def router(self):
        place = (f"{NAMESPACE}.backend.generate", BLOCK_SIZE)
        return await self._programs.consumer("dynamo-1.6.1", "kv_router", *place, env=self._servers)

    async def told_once(self):
        """Wait until the worker has repeated everything, as it does once after it is ready."""
        await self.worker.logged(f"(?s)({TOLD_ANEW}.*){{{self._ranks}}}")


def judge_of(router):
    async def judge(tokens):
        return await router.ask(tokens=tokens)

    return judge


async def same_blocks(one, other):
    """Wait until two routers know the same blocks, and some."""

    async def are_same():
        dumps = [sorted(await router.ask(dump=True), key=str) for router in (one, other)]
        return dumps[0] == dumps[1] and dumps[0]

    await until(are_same, saying="both routers know the same blocks")
