"""`spec.tokenizer` in the pods of a real API server, also when its source changes."""

from typing import Any

from control_plane import ControlPlane
from operators import Operators
from world import World, mocker_deployment

CONFIG_MAP = {"configMap": {"name": "tokenizer-v1"}}
CLAIM = {"persistentVolumeClaim": {"claimName": "models", "path": "llama/tokenizer.json"}}


async def volumes(world: World) -> dict[str, dict[str, Any]]:
    """Volumes of the decode workers by name."""
    deployment = await world.api.get("deployments", "demo-decode", world.namespace)
    return {each["name"]: each for each in deployment["spec"]["template"]["spec"]["volumes"]}


async def becomes_ready(world: World) -> None:
    """Wait for Ready, which also says that the operator finds its Deployments as it wants them."""
    async with world.carried_out():
        await world.is_condition("Ready", "True")


async def test_a_tokenizer_moves_from_a_config_map_to_a_volume_and_goes(
    world: World, operators: Operators
) -> None:
    await operators.start()
    await world.create(mocker_deployment(tokenizer=CONFIG_MAP))
    await becomes_ready(world)
    assert (await volumes(world))["tokenizer"]["configMap"]["name"] == "tokenizer-v1"

    await world.edit({"tokenizer": {"configMap": None, **CLAIM}})
    await becomes_ready(world)
    assert (await volumes(world))["tokenizer"] == {
        "name": "tokenizer",
        "persistentVolumeClaim": {"claimName": "models", "readOnly": True},
    }

    await world.edit({"tokenizer": None})
    await becomes_ready(world)
    assert sorted(await volumes(world)) == ["config", "tmp"]


async def test_the_server_says_which_source_is_missing(
    control_plane: ControlPlane, world: World
) -> None:
    path = f"/apis/mocker.dev/v1alpha1/namespaces/{world.namespace}/mockerdeployments"
    bad = mocker_deployment(tokenizer={**CONFIG_MAP, **CLAIM})
    answer = await world.api.request("POST", path, bad, fieldValidation="Strict")
    assert answer.status == 422
    assert "give one of configMap and persistentVolumeClaim" in answer.body["message"]
