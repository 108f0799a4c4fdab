"""One pass after another against a real API server."""

from typing import Any

import pytest
from control_plane import ControlPlane
from operator_account import OPERATOR_USER
from operators import OperatorProcess, Operators
from waiting import until
from world import World, mocker_deployment

WRITES = {"create", "update", "patch", "delete", "deletecollection"}
KEY = {"name": "keys", "key": "api-key"}
WITH_EVENTS_AND_KEY: dict[str, Any] = {
    "engine": {"dataParallelSize": 2},
    "kvEvents": {"transports": ["nats", "zmq"], "natsFormat": "dynamo-event-plane"},
    "prefill": {
        "replicas": 1,
        "template": {"env": [{"name": "MOCKER_API_KEY", "valueFrom": {"secretKeyRef": KEY}}]},
    },
}


def operator_requests(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    return plane.audit(user=OPERATOR_USER, namespace=namespace)


def writes(plane: ControlPlane, namespace: str) -> list[tuple[str, str, str]]:
    return [
        (event["verb"], event["objectRef"]["resource"], event["objectRef"].get("name", ""))
        for event in operator_requests(plane, namespace)
        if event["verb"] in WRITES
    ]


def passes(plane: ControlPlane, namespace: str) -> int:
    """Return how often the operator has read a resource, which every pass begins with."""
    return sum(
        event["verb"] == "get" and event["objectRef"]["resource"] == "mockerdeployments"
        for event in operator_requests(plane, namespace)
    )


def what_was_applied(children: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the children without what the controllers write to them at any time."""
    return {
        name: (child["metadata"]["uid"], child.get("spec"), child.get("data"))
        for name, child in children.items()
    }


_LATER_PASSES = 10
"""Passes in the audit log after which all that came before them is in it."""


async def settled(plane: ControlPlane, world: World) -> int:
    """Wait until the world is ready and that has been reported; return the count of writes."""
    async with world.carried_out():
        await world.is_condition("Ready", "True")
    await world.event("Ready")
    before = passes(plane, world.namespace)

    async def audited() -> bool:
        # A pass ends with its events, and the audit log is behind the answers, but in order.
        events = [each for each in writes(plane, world.namespace) if each[1] == "events"]
        return (
            len(events) >= len(await world.api.list("events", world.namespace))
            or passes(plane, world.namespace) >= before + _LATER_PASSES
        )

    await until(audited)
    return len(writes(plane, world.namespace))


async def test_a_resource_becomes_children_and_then_ready(
    world: World, operators: Operators
) -> None:
    await operators.start()
    await world.create(mocker_deployment(prefill={"replicas": 2}))
    children = await world.has_children()
    assert sorted(children) == [
        "configmaps/demo-decode",
        "configmaps/demo-prefill",
        "deployments/demo-decode",
        "deployments/demo-frontend",
        "deployments/demo-prefill",
        "services/demo-frontend",
    ]
    assert await world.replicas("prefill") == 2
    await world.is_condition("Ready", "False")
    async with world.carried_out():
        await world.is_condition("Ready", "True")
    status = (await world.resource())["status"]
    assert status["roles"]["prefill"]["ready"] == "2/2"
    assert status["endpoint"] == f"http://demo-frontend.{world.namespace}.svc:8000/v1"


async def test_nothing_is_written_to_the_resource_but_its_status(
    world: World, operators: Operators
) -> None:
    await operators.start()
    created = await world.create(mocker_deployment())
    async with world.carried_out():
        await world.is_condition("Ready", "True")
    after = await world.resource()
    for field in ("annotations", "finalizers", "labels", "generation"):
        assert after["metadata"].get(field) == created["metadata"].get(field)
    assert after["spec"] == created["spec"]


@pytest.mark.parametrize("spec", [{}, WITH_EVENTS_AND_KEY], ids=["plain", "events and key"])
async def test_passes_over_a_settled_world_write_nothing(
    control_plane: ControlPlane, world: World, operators: Operators, spec: dict[str, Any]
) -> None:
    await operators.start(resync_s=0.2)
    await world.create(mocker_deployment(**spec))
    written = await settled(control_plane, world)
    before = passes(control_plane, world.namespace)

    async def passed() -> bool:
        return passes(control_plane, world.namespace) >= before + 5

    await until(passed)
    assert len(writes(control_plane, world.namespace)) == written


async def test_events_and_variables_that_change_leave_nothing_behind(
    world: World, operators: Operators
) -> None:
    await operators.start()
    await world.create(mocker_deployment())

    async def container(*, ports: int) -> dict[str, Any]:
        deployment = (await world.has_children())["deployments/demo-prefill"]
        found: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
        assert len(found["ports"]) == ports
        return found

    before = await until(lambda: container(ports=1))
    await world.edit(WITH_EVENTS_AND_KEY)
    changed = await until(lambda: container(ports=1 + 2 * 2))
    assert "--kv-events-config" in changed["args"]
    assert changed["env"][-1] == {"name": "MOCKER_API_KEY", "valueFrom": {"secretKeyRef": KEY}}
    plain = [{"name": "MOCKER_API_KEY", "value": "plain"}]
    await world.edit({"kvEvents": None, "engine": None, "prefill": {"template": {"env": plain}}})
    after = await until(lambda: container(ports=1))
    assert after["args"] == before["args"]
    assert after["env"] == [*before["env"], *plain]


async def test_a_restarted_operator_writes_nothing_to_a_settled_world(
    control_plane: ControlPlane, world: World, operators: Operators
) -> None:
    await operators.start()
    await world.create(mocker_deployment())
    written = await settled(control_plane, world)
    await operators.stop()
    before = passes(control_plane, world.namespace)
    await operators.start(resync_s=0.2)

    async def passed() -> bool:
        return passes(control_plane, world.namespace) >= before + 3

    await until(passed)
    assert writes(control_plane, world.namespace)[written:] == []


CHILDREN = (
    "configmaps/demo-prefill",
    "deployments/demo-decode",
    "deployments/demo-frontend",
    "services/demo-frontend",
)


@pytest.mark.parametrize("child", CHILDREN)
async def test_a_deleted_child_is_made_again(
    world: World, operators: Operators, child: str
) -> None:
    await operators.start()
    await world.create(mocker_deployment())
    lost = (await world.has_children())[child]
    await world.api.delete(*child.split("/"), world.namespace)

    async def is_back() -> bool:
        found = (await world.children()).get(child)
        return found is not None and found["metadata"]["uid"] != lost["metadata"]["uid"]

    await until(is_back)


EDITS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "replicas": ("deployments/demo-decode", {"spec": {"replicas": 9}}, ["spec", "replicas"]),
    "strategy": (
        "deployments/demo-decode",
        {"spec": {"revisionHistoryLimit": 7}},
        ["spec", "revisionHistoryLimit"],
    ),
    "configuration": (
        "configmaps/demo-decode",
        {"data": {"engine.json": "{}"}},
        ["data", "engine.json"],
    ),
    "selector": (
        "services/demo-frontend",
        {"spec": {"selector": {"mocker.dev/role": "other"}}},
        ["spec", "selector", "mocker.dev/role"],
    ),
    "key in a selector": (
        "services/demo-frontend",
        {"spec": {"selector": {"theirs": "yes"}}},
        ["spec", "selector"],
    ),
    "key in a node selector": (
        "deployments/demo-decode",
        {"spec": {"template": {"spec": {"nodeSelector": {"theirs": "yes"}}}}},
        ["spec", "template", "spec", "nodeSelector"],
    ),
    "label": (
        "deployments/demo-prefill",
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "somebody"}}},
        ["metadata", "labels", "app.kubernetes.io/managed-by"],
    ),
    "label of the owner": (
        "deployments/demo-prefill",
        {"metadata": {"labels": {"mocker.dev/deployment": None}}},
        ["metadata", "labels", "mocker.dev/deployment"],
    ),
}


@pytest.mark.parametrize("edit", EDITS)
async def test_an_edited_field_of_ours_is_repaired(
    world: World, operators: Operators, edit: str
) -> None:
    child, patch, path = EDITS[edit]
    plural, name = child.split("/")
    await operators.start()
    template = {"nodeSelector": {"ours": "yes"}}
    await world.create(mocker_deployment(decode={"replicas": 1, "template": template}))
    expected = _at((await world.has_children())[child], path)
    await world.api.merge(plural, name, patch, world.namespace)

    async def is_repaired() -> bool:
        return _at(await world.api.get(plural, name, world.namespace), path) == expected

    await until(is_repaired)


def _at(value: Any, path: list[str]) -> Any:
    for part in path:
        value = value.get(part, {})
    return value


async def test_what_others_add_to_a_child_stays(
    control_plane: ControlPlane, world: World, operators: Operators
) -> None:
    await operators.start(resync_s=0.2)
    await world.create(mocker_deployment())
    await world.has_children()
    theirs = {"metadata": {"annotations": {"example.test/injected": "yes"}}}
    await world.api.merge("deployments", "demo-decode", theirs, world.namespace)
    await world.edit({"decode": {"replicas": 3}})

    async def is_scaled() -> bool:
        return await world.replicas("decode") == 3

    await until(is_scaled)
    child = await world.api.get("deployments", "demo-decode", world.namespace)
    assert child["metadata"]["annotations"]["example.test/injected"] == "yes"


async def test_a_role_that_is_no_longer_wanted_is_removed(
    world: World, operators: Operators
) -> None:
    await operators.start()
    await world.create(mocker_deployment())
    await world.has_children()
    await world.edit({"prefill": None, "decode": None, "aggregated": {"replicas": 1}})

    async def is_aggregated() -> bool:
        return sorted(await world.children()) == [
            "configmaps/demo-aggregated",
            "deployments/demo-aggregated",
            "deployments/demo-frontend",
            "services/demo-frontend",
        ]

    await until(is_aggregated)


async def test_an_invalid_spec_leaves_the_children_and_says_why(
    control_plane: ControlPlane, world: World, operators: Operators
) -> None:
    await operators.start()
    await world.create(mocker_deployment())
    await settled(control_plane, world)
    before = await world.children()
    bad = {"extraEngineArgs": {"no_such_argument": 1}}
    await world.edit({"engine": bad})
    ready = await world.is_condition("Ready", "False", reason="InvalidSpec")
    assert "no_such_argument" in ready["message"]
    after = await world.children()
    assert what_was_applied(after) == what_was_applied(before)
    event = await world.event("InvalidSpec")
    assert event["type"] == "Warning"
    assert event["regarding"]["name"] == "demo"
    await world.edit({"engine": {"extraEngineArgs": None}})
    async with world.carried_out():
        await world.is_condition("Ready", "True")


async def test_a_manifest_that_the_server_refuses_is_reported_and_not_sent_in_a_loop(
    control_plane: ControlPlane, world: World, operators: Operators
) -> None:
    # A Deployment of that name that a MockerDeployment owns, with a selector nobody can change.
    other = await world.create(mocker_deployment("other"))
    labels = {"app": "another-version"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    owner = {
        "apiVersion": "mocker.dev/v1alpha1",
        "kind": "MockerDeployment",
        "name": "other",
        "uid": other["metadata"]["uid"],
    }
    foreign = {
        "metadata": {"name": "demo-decode", "ownerReferences": [owner]},
        "spec": {"selector": {"matchLabels": labels}, "template": pod},
    }
    await world.api.create("deployments", foreign, world.namespace)
    await operators.start(resync_s=0.2)
    await world.create(mocker_deployment())
    ready = await world.is_condition("Ready", "False", reason="ApplyFailed")
    assert "Deployment demo-decode" in ready["message"]
    assert "field is immutable" in ready["message"]
    await world.is_condition("Degraded", "True")
    await world.event("ApplyFailed")
    before = passes(control_plane, world.namespace)

    async def passed() -> bool:
        return passes(control_plane, world.namespace) >= before + 5

    await until(passed)
    attempts = [w for w in writes(control_plane, world.namespace) if w[2] == "demo-decode"]
    assert attempts.count(("patch", "deployments", "demo-decode")) == 1
    assert len(await world.children()) == 5


async def test_an_object_of_somebody_else_is_never_taken_over(
    world: World, operators: Operators
) -> None:
    theirs = {"metadata": {"name": "demo-prefill"}, "data": {"engine.json": "theirs"}}
    await world.api.create("configmaps", theirs, world.namespace)
    await operators.start()
    await world.create(mocker_deployment())
    ready = await world.is_condition("Ready", "False", reason="ApplyFailed")
    assert "ConfigMap demo-prefill exists and belongs to no MockerDeployment" in ready["message"]
    live = await world.api.get("configmaps", "demo-prefill", world.namespace)
    assert live["data"] == {"engine.json": "theirs"}
    assert "ownerReferences" not in live["metadata"]


async def test_a_resource_with_arguments_nested_as_deep_as_can_be_stops_nobody_else(
    world: World, operators: Operators
) -> None:
    nested: dict[str, Any] = {}
    for _ in range(1500):
        nested = {"a": nested}
    await operators.start()
    await world.create(mocker_deployment("deep", engine={"extraEngineArgs": {"seed": nested}}))
    await world.create(mocker_deployment())
    await world.has_children()
    await world.is_condition("Ready", "False", reason="InvalidSpec", name="deep")


async def test_a_resource_that_is_deleted_in_the_foreground_goes_at_once(
    world: World, operators: Operators
) -> None:
    await operators.start(resync_s=0.2)
    await world.create(mocker_deployment())
    await world.has_children()
    await world.api.delete(
        "mockerdeployments", "demo", world.namespace, propagationPolicy="Foreground"
    )

    async def is_gone() -> bool:
        there = await world.api.find("mockerdeployments", "demo", world.namespace)
        return there is None and not await world.children()

    await until(is_gone)


async def test_a_resource_goes_with_its_children_when_no_operator_runs(
    world: World, operators: Operators
) -> None:
    await operators.start()
    await world.create(mocker_deployment())
    await world.has_children()
    await operators.stop()
    await world.api.delete("mockerdeployments", "demo", world.namespace)

    async def is_gone() -> bool:
        return not await world.children()

    await until(is_gone)


@pytest.mark.parametrize("writes_before", [1, 3, 6])
async def test_an_operator_killed_at_any_moment_leaves_the_same_world(
    control_plane: ControlPlane,
    world: World,
    operator_process: OperatorProcess,
    writes_before: int,
) -> None:
    await operator_process.start()
    await world.create(mocker_deployment())

    async def has_written() -> bool:
        return len(writes(control_plane, world.namespace)) >= writes_before

    await until(has_written, every_s=0.001)
    await operator_process.kill()
    await operator_process.start()
    await world.has_children()
    async with world.carried_out():
        await world.is_condition("Ready", "True")
