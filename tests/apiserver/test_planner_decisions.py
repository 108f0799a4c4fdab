"""A planner's decisions, from a real NATS bucket to replicas and back to the acknowledgement."""

from typing import Any

import pytest
from bucket import open_bucket
from control_plane import ControlPlane
from nats_process import NatsProcess
from operator_account import OPERATOR_USER
from operators import Operators
from waiting import until
from world import World, mocker_deployment

PLANNED: dict[str, Any] = {"scaling": {"source": "planner"}}


@pytest.fixture(autouse=True)
async def _running(nats_process: NatsProcess, operators: Operators, world: World) -> None:
    await nats_process.start()
    await operators.start(resync_s=1.0)
    await world.create(mocker_deployment(**PLANNED))
    await world.has_children()


async def has_replicas(world: World, **wanted: int) -> None:
    async def scaled() -> bool:
        found = {role: await world.replicas(role) for role in wanted}
        assert found == wanted
        return True

    await until(scaled)


async def test_a_decision_scales_and_is_acknowledged_when_its_pods_are_ready(
    world: World, nats_process: NatsProcess
) -> None:
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(7, prefill=2, decode=3)
        await has_replicas(world, prefill=2, decode=3)
        await world.event("ScaledUp")
        assert await bucket.acknowledged() is None
        async with world.carried_out():
            await bucket.is_acknowledged(7)
    decision = (await world.resource())["status"]["decision"]
    assert (decision["observedId"], decision["appliedId"]) == (7, 7)


async def test_a_scale_down_is_acknowledged_only_when_the_old_pods_are_gone(
    world: World, nats_process: NatsProcess
) -> None:
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(1, decode=2)
        async with world.carried_out():
            await bucket.is_acknowledged(1)
        await bucket.decide(2, decode=1)
        await has_replicas(world, decode=1)
        for deployment in await world.api.list("deployments", world.namespace):
            await world.report(deployment)

        async def observed() -> bool:
            status = (await world.resource())["status"]
            roles = status["roles"]
            assert roles["decode"]["readyReplicas"] == 1, status
            return bool(status["decision"]["observedId"] == 2)

        await until(observed)
        assert await bucket.acknowledged() == 1
        async with world.carried_out():
            await bucket.is_acknowledged(2)


async def test_an_absent_count_leaves_the_role_alone_and_zero_is_legal(
    world: World, nats_process: NatsProcess
) -> None:
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(1, prefill=3)
        await has_replicas(world, prefill=3, decode=1)
        await bucket.decide(2, decode=0)
        await has_replicas(world, prefill=3, decode=0)
        async with world.carried_out():
            await bucket.is_acknowledged(2)


async def test_a_decision_out_of_bounds_is_clamped_and_acknowledged(
    world: World, nats_process: NatsProcess
) -> None:
    await world.edit({"decode": {"scaling": {"maxReplicas": 2}}})
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(1, decode=50)
        await has_replicas(world, decode=2)
        await world.event("DecisionClamped")
        async with world.carried_out():
            await bucket.is_acknowledged(1)
    await world.is_condition("ScalingActive", "True", reason="Clamped")


@pytest.mark.parametrize("rubbish", [b"", b"no json", b'{"decision_id": "x"}', b'{"decode": 3}'])
async def test_rubbish_is_ignored_with_an_event(
    world: World, nats_process: NatsProcess, rubbish: bytes
) -> None:
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(1, decode=2)
        await has_replicas(world, decode=2)
        await bucket.put(rubbish)
        await world.event("DecisionIgnored")
        assert await world.replicas("decode") == 2
        await bucket.decide(2, decode=3)
        await has_replicas(world, decode=3)


async def test_a_decision_for_a_deleted_namesake_is_ignored(
    world: World, nats_process: NatsProcess
) -> None:
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(1, decode=4)
        await has_replicas(world, decode=4)

        async def noted() -> str:
            decision = (await world.resource())["status"].get("decision", {})
            return str(decision.get("time", ""))

        decided = await until(noted)
        await world.api.delete("mockerdeployments", "demo", world.namespace)

        async def recreated() -> bool:
            # Creation times are whole seconds: a namesake of the same second has no "before".
            if await world.children():
                return False
            new = await world.create(mocker_deployment(**PLANNED))
            if new["metadata"]["creationTimestamp"] > decided:
                return True
            await world.api.delete("mockerdeployments", "demo", world.namespace)
            return False

        await until(recreated)
        await world.has_children()
        await world.event("DecisionIgnored")
        assert await world.replicas("decode") == 1


async def test_a_planner_that_begins_again_at_zero_is_obeyed(
    world: World, nats_process: NatsProcess
) -> None:
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(900, decode=2)
        await has_replicas(world, decode=2)
        await bucket.decide(0, decode=3)
        await has_replicas(world, decode=3)
        async with world.carried_out():
            await bucket.is_acknowledged(0)


async def test_an_id_that_a_restarted_planner_uses_again_is_acknowledged_again(
    world: World, nats_process: NatsProcess
) -> None:
    async with open_bucket(nats_process.url, world) as bucket:
        async with world.carried_out():
            await bucket.decide(0, decode=2)
            await bucket.is_acknowledged(0)
        first = await bucket.acknowledgements()
        await bucket.decide(0, decode=3)
        await has_replicas(world, decode=3)
        assert await bucket.acknowledgements() == first
        async with world.carried_out():

            async def renewed() -> bool:
                return await bucket.acknowledgements() > first

            await until(renewed)


async def test_a_key_that_vanishes_leaves_the_counts_alone(
    world: World, nats_process: NatsProcess
) -> None:
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(1, decode=3)
        await has_replicas(world, decode=3)
        await bucket.delete()
        await world.is_condition("ScalingActive", "True", reason="WaitingForDecision")
        assert await world.replicas("decode") == 3


@pytest.mark.parametrize("lose_storage", [False, True])
async def test_counts_outlive_a_nats_server_that_goes_and_comes_back(
    world: World, nats_process: NatsProcess, operators: Operators, lose_storage: bool
) -> None:
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(1, decode=3)
        await has_replicas(world, decode=3)
    await nats_process.stop(lose_storage=lose_storage)
    await world.is_condition("ScalingActive", "Unknown", reason="BucketUnavailable")
    assert await world.replicas("decode") == 3
    await operators.stop()
    await operators.start()
    await nats_process.start()
    reason = "WaitingForDecision" if lose_storage else "FollowingDecision"
    await world.is_condition("ScalingActive", "True", reason=reason)
    assert await world.replicas("decode") == 3
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(2, decode=2)
        await has_replicas(world, decode=2)


async def test_a_bucket_that_is_deleted_is_made_again(
    world: World, nats_process: NatsProcess
) -> None:
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(1, decode=3)
        await has_replicas(world, decode=3)
        await bucket.destroy()
    await world.is_condition("ScalingActive", "True", reason="WaitingForDecision")
    assert await world.replicas("decode") == 3


async def test_a_decision_about_a_foreign_namespace_is_none_of_our_business(
    control_plane: ControlPlane, world: World, nats_process: NatsProcess
) -> None:
    foreign = World(world.api, "kube-system")
    async with open_bucket(nats_process.url, foreign) as bucket:
        await bucket.decide(1, decode=3)
    async with open_bucket(nats_process.url, world) as bucket:
        await bucket.decide(1, decode=3)
    await has_replicas(world, decode=3)
    assert not control_plane.audit(user=OPERATOR_USER, namespace="kube-system")
