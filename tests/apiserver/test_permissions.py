"""The operator asks for nothing that its role does not allow."""

from api_client import Api
from control_plane import ControlPlane
from operator_account import ACCOUNT, OPERATOR_USER
from operators import Operators
from waiting import until
from world import World, mocker_deployment


async def test_every_request_of_a_whole_life_is_allowed(
    control_plane: ControlPlane, world: World, operators: Operators
) -> None:
    await operators.start()
    await world.create(mocker_deployment())
    async with world.carried_out():
        await world.is_condition("Ready", "True")
    await world.edit({"frontend": {"enabled": False}})
    await world.has_children(count=4)
    await world.edit({"engine": {"extraEngineArgs": {"no_such_argument": 1}}})
    await world.event("InvalidSpec")
    requests = control_plane.audit(user=OPERATOR_USER)
    refused = [event for event in requests if event["responseStatus"]["code"] in (401, 403)]
    refused = [e for e in refused if e["objectRef"].get("namespace") == world.namespace]
    assert not refused


async def test_an_operator_of_the_whole_cluster_needs_no_more(
    control_plane: ControlPlane, world: World, operators: Operators
) -> None:
    before = len(control_plane.audit(user=OPERATOR_USER))
    await operators.start(clusterwide=True)
    await world.create(mocker_deployment())
    await world.has_children()
    async with world.carried_out():
        await world.is_condition("Ready", "True")
    await world.api.merge("deployments", "demo-decode", {"spec": {"replicas": 5}}, world.namespace)

    async def repaired() -> bool:
        return await world.replicas("decode") == 1

    await until(repaired)
    # Namespaces of earlier tests are going away, and answer 403 to whoever writes to them.
    requests = [
        event
        for event in control_plane.audit(user=OPERATOR_USER)[before:]
        if event.get("objectRef", {}).get("namespace") in (None, world.namespace)
    ]
    assert {e["responseStatus"]["code"] for e in requests} & {401, 403} == set()
    lists = [e for e in requests if e["verb"] == "watch"]
    assert lists
    assert all("namespace" not in e["objectRef"] for e in lists)


async def test_a_missing_rule_is_named(
    control_plane: ControlPlane, world: World, api: Api, operators: Operators
) -> None:
    role = await api.get("clusterroles", ACCOUNT)
    rules = [rule for rule in role["rules"] if "services" not in rule["resources"]]
    reading = {"apiGroups": [""], "resources": ["services", "configmaps"]}
    rules += [{**reading, "verbs": ["get", "list", "watch"]}]
    await api.merge("clusterroles", ACCOUNT, {"rules": rules})
    try:
        await operators.start()
        await world.create(mocker_deployment())
        ready = await world.is_condition("Ready", "False", reason="ApplyFailed")
        assert "grant verb patch on services" in ready["message"]
    finally:
        await api.merge("clusterroles", ACCOUNT, {"rules": role["rules"]})
