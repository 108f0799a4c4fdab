"""A model's own tokenizer, as the pods of the workers get it."""

import pytest
from kubernetes.client import V1Deployment

from mocker_operator.api import parse_spec
from mocker_operator.render import render

CONFIG_MAP = {"configMap": {"name": "llama-v1", "key": "llama.json"}}
CLAIM = {"persistentVolumeClaim": {"claimName": "models", "path": "llama/tokenizer.json"}}


@pytest.fixture
def deployments(key, settings):
    def rendered(**fields):
        spec = {"model": {"name": "m"}, "prefill": {}, "decode": {}, **fields}
        resource = {"metadata": {"name": "demo"}, "spec": spec}
        manifests = render(key, "u", parse_spec(resource), {}, settings)
        return {m["metadata"]["name"]: m for m in manifests if m["kind"] == "Deployment"}

    return rendered


def pod_of(deployment):
    return deployment["spec"]["template"]["spec"]


def environment(deployment):
    return {e["name"]: e.get("value") for e in pod_of(deployment)["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("tokenizer", "volume", "path"),
    [
        (
            CONFIG_MAP,
            {
                "configMap": {
                    "name": "llama-v1",
                    "items": [{"key": "llama.json", "path": "tokenizer.json"}],
                }
            },
            "/etc/mocker-tokenizer/tokenizer.json",
        ),
        (
            CLAIM,
            {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
            "/etc/mocker-tokenizer/llama/tokenizer.json",
        ),
    ],
)
def test_every_worker_mounts_the_tokenizer_and_is_told_of_it(deployments, tokenizer, volume, path):
    rendered = deployments(tokenizer=tokenizer)
    for role in ("prefill", "decode"):
        deployment = rendered[f"demo-{role}"]
        V1Deployment.model_validate(deployment)
        pod = pod_of(deployment)
        assert pod["volumes"][-1] == {"name": "tokenizer", **volume}
        assert pod["containers"][0]["volumeMounts"][-1] == {
            "name": "tokenizer",
            "mountPath": "/etc/mocker-tokenizer",
            "readOnly": True,
        }
        assert environment(deployment)["MOCKER_TOKENIZER"] == path


def test_the_frontend_has_no_use_for_a_tokenizer(deployments):
    with_one, without = deployments(tokenizer=CLAIM), deployments()
    assert with_one["demo-frontend"] == without["demo-frontend"]


def test_a_file_has_the_usual_name_unless_another_is_given(deployments):
    claim = {"persistentVolumeClaim": {"claimName": "models"}}
    config_map = {"configMap": {"name": "llama-v1"}}
    on_volume = deployments(tokenizer=claim)["demo-decode"]
    path = "/etc/mocker-tokenizer/tokenizer.json"
    assert environment(on_volume)["MOCKER_TOKENIZER"] == path
    in_map = pod_of(deployments(tokenizer=config_map)["demo-decode"])["volumes"][-1]
    assert in_map["configMap"]["items"][0]["key"] == "tokenizer.json"


@pytest.mark.parametrize("after", [{"configMap": {"name": "llama-v2"}}, CLAIM, None])
def test_another_tokenizer_rolls_the_pods(deployments, after):
    before = {"configMap": {"name": "llama-v1"}}
    for role in ("prefill", "decode"):
        old, new = (pod_of(deployments(tokenizer=t)[f"demo-{role}"]) for t in (before, after))
        assert old != new
