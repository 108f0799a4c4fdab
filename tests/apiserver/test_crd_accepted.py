"""The API server and the operator judge the same resource alike."""

from pathlib import Path

import yaml
from api_client import Api
from control_plane import ControlPlane
from world import World, mocker_deployment

from mocker_operator.api import crd

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = Path(__file__).parents[1] / "data" / "mockerdeployment_specs.yaml"


async def test_the_crd_is_accepted_strictly_and_without_a_warning(
    control_plane: ControlPlane, api: Api
) -> None:
    definition = crd()
    definition["spec"]["group"] = "strict.test"
    definition["metadata"]["name"] = f"{definition['spec']['names']['plural']}.strict.test"
    answer = await api.request("POST", CRDS, definition, fieldValidation="Strict", dryRun="All")
    assert (answer.status, answer.warnings) == (201, []), answer.body


async def test_a_bad_spec_is_refused_by_the_server_with_the_name_of_the_field(
    control_plane: ControlPlane, world: World
) -> None:
    path = f"/apis/mocker.dev/v1alpha1/namespaces/{world.namespace}/mockerdeployments"
    bad = mocker_deployment(decode={"replicas": -1})
    answer = await world.api.request("POST", path, bad, fieldValidation="Strict")
    assert answer.status == 422
    assert "spec.decode.replicas" in answer.body["message"]


async def test_an_unknown_field_is_refused_by_a_strict_server(
    control_plane: ControlPlane, world: World
) -> None:
    path = f"/apis/mocker.dev/v1alpha1/namespaces/{world.namespace}/mockerdeployments"
    bad = mocker_deployment(decode={"replica": 1})
    answer = await world.api.request("POST", path, bad, fieldValidation="Strict")
    assert answer.status == 400
    assert 'unknown field "spec.decode.replica"' in answer.body["message"]


async def test_the_server_says_of_every_spec_in_the_table_what_the_operator_says(
    control_plane: ControlPlane, world: World
) -> None:
    path = f"/apis/mocker.dev/v1alpha1/namespaces/{world.namespace}/mockerdeployments"
    wrong = []
    for row in yaml.safe_load(TABLE.read_text()):
        name = row.get("resource_name", "table")
        manifest = {**mocker_deployment(name), "spec": row["spec"]}
        answer = await world.api.request(
            "POST", path, manifest, fieldValidation="Strict", dryRun="All"
        )
        expected = row["valid"] or row.get("judge") == "operator"
        if (answer.status == 201) != expected:
            wrong.append((row["name"], answer.status, answer.body.get("message")))
    assert not wrong
