"""The registration in its bucket, against a real server."""

import asyncio
import contextlib

import pytest
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue
from waiting import PATIENCE_S

from mocker_protocol.names import WorkerType
from mocker_protocol.registration import BUCKET, WorkerRegistration
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.ending import end
from mocker_worker.events.registrar import Registrar

pytestmark = pytest.mark.nats

RECORD = WorkerRegistration(
    worker_id=5,
    namespace="dynamo",
    worker_type=WorkerType.AGGREGATED,
    url="http://127.0.0.1:1",
    model="mock",
    block_size=4,
    num_gpu_blocks=10,
    max_num_seqs=None,
)


@contextlib.asynccontextmanager
async def connection_to(server):
    connection = NatsConnection(server.url, name="test")
    task = asyncio.create_task(connection.run())
    try:
        yield connection
    finally:
        await end(task)


async def test_a_put_that_loses_the_cancellation_holds_no_end_up(
    nats_server, nats_client, monkeypatch
):
    """`asyncio.wait_for` of Python 3.11 loses it to an answer that comes at the same time."""
    put, is_putting = KeyValue.put, asyncio.Event()

    async def put_and_lose(bucket, key, value):
        sequence = await put(bucket, key, value)
        if b"draining" in value:
            is_putting.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return sequence

    monkeypatch.setattr(KeyValue, "put", put_and_lose)
    async with connection_to(nats_server) as connection:
        registrar = Registrar(connection, RECORD)
        run = asyncio.create_task(registrar.run())
        async with asyncio.timeout(PATIENCE_S):
            await registrar.registered.wait()
            registrar.drain()
            await is_putting.wait()
            registrar.leave()
            await end(run)
        await registrar.remove(5.0)

    bucket = await nats_client.jetstream().key_value(BUCKET)
    with pytest.raises(KeyNotFoundError):
        await bucket.get(RECORD.key)
