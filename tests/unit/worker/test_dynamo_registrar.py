"""Registration with Dynamo, against an etcd gateway of our own."""

import asyncio
import contextlib
import json

import pytest
from etcd_gateway import Etcd, base64_of
from waiting import PATIENCE_S, until

from mocker_protocol.dynamo_discovery import DiscoveredWorker
from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.names import Component
from mocker_worker.events import dynamo_registrar
from mocker_worker.events.dynamo_registrar import DynamoRegistrar

WORKER = DiscoveredWorker(
    component=Component("dynamo", "backend"),
    worker_id=0xABC,
    model="mock",
    address="10.0.0.1:8000",
    args=EngineArgs(),
    publisher_ids=[11, 12],
)
LEFT_OVER = (
    "v1/event_sources/namespace/dynamo/component/backend/endpoint/generate/topic/kv-events/5"
)


@pytest.fixture
async def etcd(monkeypatch):
    monkeypatch.setattr(dynamo_registrar, "_KEEP_ALIVE_S", 0.01)
    monkeypatch.setattr(dynamo_registrar, "_RETRY_S", 0.01)
    monkeypatch.setattr(dynamo_registrar, "_SETTLE_S", 0.01)
    async with Etcd.listening() as etcd:
        yield etcd


@contextlib.asynccontextmanager
async def registrar_of(*endpoints):
    told = []
    registrar = DynamoRegistrar(endpoints, WORKER, on_registered=lambda: told.append(True))
    task = asyncio.create_task(registrar.run())
    try:
        yield registrar, told
    finally:
        registrar.leave()
        async with asyncio.timeout(PATIENCE_S):
            await task


async def test_all_records_hang_on_one_lease_and_go_with_it(etcd):
    async with registrar_of(etcd.url) as (registrar, told):
        await until(lambda: told)
        assert set(etcd.keys) == {record.key for record in WORKER.records()}
        assert {lease for _, lease in etcd.keys.values()} == {"1"}
        instance = etcd.document("v1/instances/dynamo/backend/generate/abc")
        assert instance["transport"] == {"tcp": "10.0.0.1:8000/abc/dynamo/backend/generate"}

        registrar.leave()
        await registrar.wait_until_gone(10)
        assert (etcd.keys, etcd.leases) == ({}, {})


async def test_a_lease_that_expired_is_replaced_and_blocks_are_told_again(etcd):
    async with registrar_of(etcd.url) as (_, told):
        await until(lambda: len(told) == 1)
        etcd.lease_revoke({"ID": "1"})
        await until(lambda: len(told) == 2)

        assert {lease for _, lease in etcd.keys.values()} == {"2"}


async def test_an_etcd_that_is_away_is_waited_for_and_said_once(etcd, caplog):
    etcd.is_broken = True
    async with registrar_of("http://127.0.0.1:1", etcd.url) as (_, told):
        await until(lambda: len(caplog.records) >= 1)
        etcd.is_broken = False
        await until(lambda: told)

    assert len([r for r in caplog.records if "cannot register" in r.message]) == 1


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        ("lease_grant", b"{}"),
        ("lease_grant", b"[]"),
        ("lease_grant", b"no JSON"),
        ("lease_grant", b"\xff\xfe"),
        ("lease_grant", b""),
        ("kv_range", b'{"kvs": null}'),
        ("kv_range", b'{"kvs": 7}'),
        ("kv_range", b'{"kvs": [7]}'),
        ("kv_range", b'{"kvs": [{"key": 7}]}'),
        ("kv_range", b'{"kvs": [{"key": "a"}]}'),
        ("lease_keepalive", b"{}"),
        ("lease_keepalive", b'{"result": null}'),
        ("lease_keepalive", b'{"result": {"TTL": "soon"}}'),
        ("lease_keepalive", b'{"result": {"TTL": null}}'),
    ],
)
async def test_an_etcd_that_answers_oddly_is_tried_until_it_answers_well(
    etcd, caplog, operation, answer
):
    etcd.odd_answers[operation] = answer
    async with registrar_of(etcd.url) as (_, told):
        await until(lambda: len(caplog.records) >= 1)
        del etcd.odd_answers[operation]
        registered = len(told)
        await until(lambda: len(told) > registered)
        await until(lambda: {lease for _, lease in etcd.keys.values()} == set(etcd.leases))


async def test_no_record_is_put_without_a_lease(etcd, caplog):
    etcd.odd_answers["lease_grant"] = b'{"TTL": "10"}'
    async with registrar_of(etcd.url) as (_, told):
        await until(lambda: len(caplog.records) >= 1)
        assert (etcd.keys, told) == ({}, [])


async def test_sources_of_an_earlier_process_of_this_worker_are_removed(etcd):
    ours = {"publisher_id": 5, "metadata": {"worker": {"worker_id": 0xABC, "dp_rank": 0}}}
    theirs = {"publisher_id": 6, "metadata": {"worker": {"worker_id": 0xDEF, "dp_rank": 0}}}
    etcd.put(LEFT_OVER, base64_of(json.dumps(ours)), "old")
    etcd.put(LEFT_OVER[:-1] + "6", base64_of(json.dumps(theirs)), "old")
    etcd.put(LEFT_OVER[:-1] + "7", base64_of("no source"), "old")
    async with registrar_of(etcd.url) as (_, told):
        await until(lambda: told)
        assert LEFT_OVER not in etcd.keys
        assert {LEFT_OVER[:-1] + "6", LEFT_OVER[:-1] + "7"} <= set(etcd.keys)


async def test_leaving_while_etcd_is_away_ends_at_once(etcd):
    etcd.is_broken = True
    async with registrar_of(etcd.url) as (registrar, _):
        registrar.leave()
        await registrar.wait_until_gone(10)
