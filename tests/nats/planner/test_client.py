"""Deciding and waiting through a real bucket."""

import asyncio

import pytest

from mocker_planner.client import PlannerClient
from mocker_planner.errors import (
    Contended,
    InvalidTarget,
    NatsUnreachable,
    NotScaledInTime,
    Superseded,
)
from mocker_planner.status import Status
from mocker_protocol.decisions import (
    BUCKET,
    DeploymentKey,
    ScalingDecision,
    encode_acknowledgement,
    parse_decision,
)

pytestmark = pytest.mark.nats
KEY = DeploymentKey("default", "chat")


@pytest.fixture
async def planner(nats_server):
    async with PlannerClient(nats_server.url) as planner:
        yield planner


@pytest.fixture
async def bucket(planner, nats_client):
    return await nats_client.jetstream().key_value(BUCKET)


async def test_the_bucket_is_made_and_holds_the_decision(planner, bucket):
    decision = await planner.decide("chat", prefill=2, decode=3)
    assert decision == ScalingDecision(decision_id=0, prefill=2, decode=3)
    assert parse_decision((await bucket.get("default.chat")).value) == decision


async def test_ids_rise_by_one(planner):
    for expected in range(3):
        assert (await planner.decide("chat", decode=1)).decision_id == expected


async def test_deployments_count_for_themselves(planner):
    await planner.decide("chat", "one", decode=1)
    assert (await planner.decide("chat", "two", decode=1)).decision_id == 0
    assert (await planner.decide("chat.v2", "one", decode=1)).decision_id == 0


async def test_an_id_that_is_given_is_taken_as_it_is(planner):
    assert (await planner.decide("chat", decode=1, decision_id=41)).decision_id == 41
    assert (await planner.decide("chat", decode=1)).decision_id == 42
    assert (await planner.decide("chat", decode=1, decision_id=3)).decision_id == 3


async def test_an_old_acknowledgement_never_matches_a_new_decision(planner, bucket):
    await bucket.put(KEY.scaled, encode_acknowledgement(9))
    assert (await planner.decide("chat", decode=1)).decision_id == 10


async def test_deciding_goes_on_after_the_keys_were_deleted_or_spoilt(planner, bucket):
    await planner.decide("chat", decode=1)
    await bucket.delete(KEY.decision)
    assert (await planner.decide("chat", decode=2)).decision_id == 0
    await bucket.put(KEY.decision, b"rubbish")
    assert (await planner.decide("chat", decode=3)).decision_id == 0


async def test_planners_that_decide_at_once_get_different_ids(nats_server):
    async with PlannerClient(nats_server.url) as one, PlannerClient(nats_server.url) as two:
        decisions = await asyncio.gather(
            *(planner.decide("chat", decode=1) for _ in range(3) for planner in (one, two))
        )
        assert sorted(decision.decision_id for decision in decisions) == list(range(6))


async def test_a_planner_that_is_always_overtaken_gives_up(planner, monkeypatch):
    write = PlannerClient._write

    async def overtaken(self, key, decision, entry):
        await self._bucket.put(key.decision, decision.encode())
        await write(self, key, decision, entry)

    monkeypatch.setattr(PlannerClient, "_write", overtaken)
    with pytest.raises(Contended, match=r"default\.chat"):
        await planner.decide("chat", decode=1)


async def test_waiting_ends_with_the_acknowledgement(planner, bucket):
    decision = await planner.decide("chat", decode=3)
    waiting = asyncio.create_task(planner.wait("chat", decision.decision_id, timeout_s=10))
    await bucket.put("default.other.scaled", encode_acknowledgement(0))
    await bucket.put(KEY.scaled, encode_acknowledgement(0))
    assert 0 <= await waiting < 10


async def test_waiting_for_what_is_done_returns_at_once(planner, bucket):
    decision = await planner.decide("chat", decode=3)
    await bucket.put(KEY.scaled, encode_acknowledgement(decision.decision_id))
    assert await planner.wait("chat", decision.decision_id, timeout_s=10) < 5


async def test_waiting_in_vain_says_where_to_look(planner, bucket):
    await bucket.put(KEY.scaled, encode_acknowledgement(0))
    decision = await planner.decide("chat", decode=3)
    with pytest.raises(NotScaledInTime, match="describe mockerdeployment chat"):
        await planner.wait("chat", decision.decision_id, timeout_s=0.2)


async def test_a_decision_that_was_replaced_is_not_waited_for(planner):
    first = await planner.decide("chat", decode=3)
    waiting = asyncio.create_task(planner.wait("chat", first.decision_id, timeout_s=10))
    await planner.decide("chat", decode=4)
    with pytest.raises(Superseded, match="decision 0 was replaced by 1"):
        await waiting


async def test_status_shows_the_latest_decision_and_acknowledgement(planner, bucket):
    assert await planner.status("chat") == Status(None, None)
    decision = await planner.decide("chat", prefill=0)
    assert await planner.status("chat") == Status(decision, None)
    await bucket.put(KEY.scaled, encode_acknowledgement(0))
    assert await planner.status("chat") == Status(decision, 0)


@pytest.mark.parametrize("name", ["", "a b", "chat*", ">"])
async def test_a_name_that_no_resource_can_have_is_refused(planner, name):
    with pytest.raises(InvalidTarget):
        await planner.decide(name, decode=1)


@pytest.mark.parametrize("counts", [{"prefill": -1}, {"decode": 2**31}, {"decision_id": -1}])
async def test_numbers_out_of_range_are_refused_by_name(planner, counts):
    with pytest.raises(InvalidTarget, match=next(iter(counts))):
        await planner.decide("chat", **counts)


async def test_a_server_that_is_not_there_is_named_with_the_remedy():
    with pytest.raises(NatsUnreachable, match=r"127\.0\.0\.1:1 .*port-forward"):
        await PlannerClient("nats://127.0.0.1:1").__aenter__()
