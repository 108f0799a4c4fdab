"""A worker's recovery endpoint: what it tells at any moment is what its events have said so far."""

import asyncio
import base64
import contextlib
import json
import random
from urllib.parse import urlsplit

import aiohttp
import msgspec
import nats
import pytest
from etcd_gateway import Etcd
from kv_consumers import StrictCache
from ranks_config import ranks_config
from request_plane_client import Answers, body_of, info_of, request_of
from waiting import PATIENCE_S, until

from mocker_protocol.event_plane import decode_envelope, decode_router_events
from mocker_worker.config import EventOptions, NatsFormat
from mocker_worker.events import dynamo_registrar
from mocker_worker.lifecycle import LifeState
from mocker_worker.serve import Worker

pytestmark = pytest.mark.nats

RANKS = 2
SUBJECT = "namespace.default-demo.component.backend.endpoint.generate.kv-events"


class Rig:
    """A worker with a small cache, a subscriber to its events, and a router that asks it."""

    def __init__(self, worker, etcd, answers):
        self.worker = worker
        self.etcd = etcd
        self.answers = answers
        self.events = []
        self._random = random.Random(5)

    def instances(self):
        """Return the records of the endpoints for recovery, by rank."""
        records = [self.etcd.document(key) for key in self.etcd.keys]
        sources = [record for record in records if record["type"] == "EventSource"]
        return {
            source["metadata"]["worker"]["dp_rank"]: source["metadata"]["recovery_target"]
            for source in sources
        }

    @property
    def numbers(self):
        return {(event.dp_rank, event.event_id) for event in self.events}

    def events_of(self, dp_rank):
        return [event for event in self.events if event.dp_rank == dp_rank]

    async def take(self, message):
        self.events += decode_router_events(decode_envelope(message.data).payload)

    async def recover(self, dp_rank):
        """Ask as a router that knows only the record; returns (last event id, events)."""
        target = urlsplit("tcp://" + self.instances()[dp_rank]["transport"]["tcp"])
        query = {"worker_id": self.worker.config.worker_id, "dp_rank": dp_rank}
        body = body_of(query, connection=info_of(self.answers.address))
        reader, writer = await asyncio.open_connection(target.hostname, target.port)
        writer.write(request_of(target.path[1:].encode(), body))
        assert await reader.readexactly(4) == bytes(4)
        _, answer = await self.answers.next()
        writer.close()
        dump = answer["TreeDump"]
        return dump["last_event_id"], decode_router_events(msgspec.msgpack.encode(dump["events"]))

    async def ask(self, count):
        """Send requests that share beginnings; some leave in the midst of their answer."""
        async with aiohttp.ClientSession(await self.worker.listening) as http:
            for _ in range(count):
                start = self._random.randrange(6) * 100
                prompt = list(range(start, start + self._random.randrange(4, 60)))
                body = {"model": "mock", "prompt": prompt, "max_tokens": 24, "stream": True}
                async with http.post("/v1/completions", json=body) as response:
                    assert response.status == 200
                    if self._random.random() < 0.5:
                        await response.content.readline()
                    else:
                        await response.read()


@pytest.fixture
async def rig(nats_server, monkeypatch):
    monkeypatch.setattr(dynamo_registrar, "_SETTLE_S", 0.01)
    async with contextlib.AsyncExitStack() as stack:
        etcd = await stack.enter_async_context(Etcd.listening())
        answers = await stack.enter_async_context(Answers.listening())
        worker = Worker(config_of(nats_server, etcd))
        rig = Rig(worker, etcd, answers)
        client = await nats.connect(nats_server.url)
        stack.push_async_callback(client.close)
        await client.subscribe(SUBJECT, cb=rig.take)
        await client.flush()
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.lifecycle.state == LifeState.READY)
        await until(lambda: worker._outside._hub.resynchronizations == RANKS)
        yield rig
        worker.lifecycle.request_stop()
        async with asyncio.timeout(PATIENCE_S):
            await running


def config_of(server, etcd, **events):
    return ranks_config(
        server.url,
        EventOptions(nats_format=NatsFormat.EVENT_PLANE, etcd_endpoints=(etcd.url,), **events),
        dp_size=RANKS,
        num_gpu_blocks=64,
    )


async def test_every_dump_amid_traffic_is_what_the_events_up_to_its_number_say(rig):
    asking = [asyncio.create_task(rig.ask(40)) for _ in range(4)]
    dumps = []
    while not all(task.done() for task in asking):
        dp_rank = len(dumps) % RANKS
        dumps.append((dp_rank, *await rig.recover(dp_rank)))
    await asyncio.gather(*asking)
    assert len({last_event_id for _, last_event_id, _ in dumps}) > 20

    for dp_rank, last_event_id, dumped in dumps:
        told, alone = StrictCache(), StrictCache()
        await until(lambda wanted=(dp_rank, last_event_id): wanted in rig.numbers)
        for event in rig.events_of(dp_rank)[: last_event_id + 1]:
            told.apply(event.event_id, event.event)
        for event in dumped:
            assert (event.worker_id, event.dp_rank) == (rig.worker.config.worker_id, dp_rank)
            alone.apply(event.event_id, event.event)
        assert alone.parents == told.parents, f"rank {dp_rank} after event {last_event_id}"


async def test_events_that_no_pass_has_published_yet_are_numbered_before_a_dump(rig):
    await rig.ask(1)
    engine = rig.worker._engines[0]
    before, _ = await rig.recover(0)
    assert engine.reset_prefix_cache()

    assert await rig.recover(0) == (before + 1, [])
    await until(lambda: (0, before + 1) in rig.numbers)


async def test_the_records_name_the_endpoint_of_each_rank(rig):
    instances = rig.instances()
    assert sorted(instances) == list(range(RANKS))
    for instance in instances.values():
        key = (
            f"v1/instances/default-demo/backend/{instance['endpoint']}"
            f"/{rig.worker.config.worker_id:x}"
        )
        assert rig.etcd.document(key) == {"type": "Endpoint", **instance}


async def test_a_port_that_is_taken_leaves_the_worker_without_recovery(nats_server, caplog):
    taken = await asyncio.start_server(lambda *ends: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    async with Etcd.listening() as etcd:
        worker = Worker(config_of(nats_server, etcd, recovery_port=port))
        running = asyncio.create_task(worker.run())
        await until(lambda: len(etcd.keys) == 2 + RANKS)
        sources = [json.loads(base64.b64decode(value)) for value, _ in etcd.keys.values()]
        targets = [item["metadata"]["recovery_target"] for item in sources if "metadata" in item]
        assert targets == [None] * RANKS
        worker.lifecycle.request_stop()
        async with asyncio.timeout(PATIENCE_S):
            await running
    taken.close()
    assert f"--kv-recovery-port {port}: cannot listen" in caplog.text
