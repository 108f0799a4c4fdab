"""Edits of children that contradict what is applied, so that no apply can undo them."""

from typing import Any

import pytest
from operators import Operators
from waiting import until
from world import World, mocker_deployment

CONTAINER = "/spec/template/spec/containers/0"
EDITS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "handler of a probe": (
        "deployments/demo-decode",
        [
            {"op": "add", "path": f"{CONTAINER}/livenessProbe/exec", "value": {"command": ["a"]}},
            {"op": "remove", "path": f"{CONTAINER}/livenessProbe/httpGet"},
        ],
    ),
    "variable from a field": (
        "deployments/demo-decode",
        [
            {
                "op": "replace",
                "path": f"{CONTAINER}/env/0",
                "value": {"name": "POD_NAME", "value": "a"},
            }
        ],
    ),
    "kind of a volume": (
        "deployments/demo-decode",
        [
            {
                "op": "replace",
                "path": "/spec/template/spec/volumes/1",
                "value": {"name": "config", "emptyDir": {}},
            }
        ],
    ),
    "number of a port": (
        "services/demo-frontend",
        [{"op": "replace", "path": "/spec/ports/0/port", "value": 9000}],
    ),
    "immutable content": (
        "configmaps/demo-decode",
        [
            {"op": "replace", "path": "/data/engine.json", "value": "{}"},
            {"op": "add", "path": "/immutable", "value": True},
        ],
    ),
}


@pytest.mark.parametrize("edit", EDITS)
async def test_a_child_that_no_apply_repairs_is_made_again(
    world: World, operators: Operators, edit: str
) -> None:
    child, patch = EDITS[edit]
    plural, name = child.split("/")
    await operators.start()
    await world.create(mocker_deployment())
    before = (await world.has_children())[child]
    await world.api.edit(plural, name, patch, world.namespace)

    async def is_as_before() -> bool:
        found = await world.api.find(plural, name, world.namespace)
        if found is None or found["metadata"]["uid"] == before["metadata"]["uid"]:
            return False
        return _content(found) == _content(before)

    await until(is_as_before)
    async with world.carried_out():
        await world.is_condition("Ready", "True")


def _content(child: dict[str, Any]) -> Any:
    spec = dict(child.get("spec", {}))
    # The address of a Service is drawn anew.
    return {**spec, "clusterIP": None, "clusterIPs": None}, child.get("data")
