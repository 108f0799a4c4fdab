"""Rendered manifests: reviewed as files, and accepted by the Kubernetes client's own models."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from kubernetes.client import V1ConfigMap, V1Deployment, V1Service

from mocker_operator.api import parse_spec
from mocker_operator.reconcile.model import Key
from mocker_operator.render import endpoint, render

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
GOLDEN = Path(__file__).parent / "golden"
MODELS = {"Deployment": V1Deployment, "ConfigMap": V1ConfigMap, "Service": V1Service}


def example(name):
    if name != "everything":
        return yaml.safe_load((ROOT / f"examples/{name}.yaml").read_text())
    table = yaml.safe_load((ROOT / "tests/data/mockerdeployment_specs.yaml").read_text())
    spec = next(row["spec"] for row in table if row["name"] == name)
    return {"metadata": {"name": name}, "spec": spec}


def rendered(name, settings, counts=None):
    resource = example(name)
    key = Key("team", resource["metadata"]["name"])
    return render(key, "the-uid", parse_spec(resource), counts or {}, settings)


def spec_of(**fields):
    return parse_spec({"metadata": {"name": "demo"}, "spec": {"model": {"name": "m"}, **fields}})


def by_kind(manifests, kind):
    return {m["metadata"]["name"]: m for m in manifests if m["kind"] == kind}


every_example = pytest.mark.parametrize(
    "name", ["disaggregated", "aggregated", "kv-events", "everything"]
)


@every_example
def test_manifests_are_those_in_the_golden_file(name, settings):
    path = GOLDEN / f"{name}.yaml"
    text = yaml.safe_dump_all(rendered(name, settings), sort_keys=False, width=100)
    if os.environ.get("MOCKER_UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text, "run the test with MOCKER_UPDATE_GOLDEN=1 and review the diff"


@every_example
def test_manifests_fit_the_models_of_the_kubernetes_client(name, settings):
    for manifest in rendered(name, settings):
        model = MODELS[manifest["kind"]].model_validate(manifest)
        assert model.metadata.name == manifest["metadata"]["name"]


@every_example
def test_every_child_is_owned_and_labelled(name, settings):
    for manifest in rendered(name, settings):
        metadata = manifest["metadata"]
        assert metadata["ownerReferences"][0]["uid"] == "the-uid"
        assert metadata["labels"]["mocker.dev/deployment"] == name
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "mocker-operator"


@every_example
def test_selectors_find_their_pods(name, settings):
    for manifest in by_kind(rendered(name, settings), "Deployment").values():
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_rendering_twice_gives_the_same(key, settings):
    spec = spec_of(prefill={}, decode={})
    assert render(key, "u", spec, {}, settings) == render(key, "u", spec, {}, settings)


def test_counts_win_over_the_spec(key, settings):
    manifests = render(key, "u", spec_of(prefill={}, decode={}), {"decode": 0}, settings)
    deployments = by_kind(manifests, "Deployment")
    assert deployments["demo-decode"]["spec"]["replicas"] == 0
    assert deployments["demo-prefill"]["spec"]["replicas"] == 1


def test_a_change_of_the_engine_rolls_the_pods_of_its_role_alone(key, settings):
    def template(spec, role):
        return by_kind(render(key, "u", spec, {}, settings), "Deployment")[f"demo-{role}"]["spec"][
            "template"
        ]

    before = spec_of(prefill={}, decode={})
    after = spec_of(prefill={}, decode={"engine": {"blockSize": 16}})
    assert template(before, "prefill") == template(after, "prefill")
    assert template(before, "decode") != template(after, "decode")


def test_a_scaled_role_keeps_its_pods(key, settings):
    spec = spec_of(aggregated={})
    one = by_kind(render(key, "u", spec, {"aggregated": 1}, settings), "Deployment")
    two = by_kind(render(key, "u", spec, {"aggregated": 2}, settings), "Deployment")
    name = "demo-aggregated"
    assert one[name]["spec"]["template"] == two[name]["spec"]["template"]


def test_pods_get_time_to_drain(key, settings):
    spec = spec_of(aggregated={}, scaling={"drainTimeoutSeconds": 600})
    for manifest in by_kind(render(key, "u", spec, {}, settings), "Deployment").values():
        pod = manifest["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == 610
        args = pod["containers"][0]["args"]
        assert args[args.index("--drain-timeout-s") + 1] == "600"


@pytest.mark.parametrize(
    ("spec", "service", "url"),
    [
        ({"prefill": {}, "decode": {}}, "demo-frontend", "http://demo-frontend.team.svc:8000/v1"),
        ({"aggregated": {}}, "demo-frontend", "http://demo-frontend.team.svc:8000/v1"),
        (
            {"aggregated": {}, "frontend": {"enabled": False}},
            "demo-aggregated",
            "http://demo-aggregated.team.svc:8000/v1",
        ),
        ({"prefill": {}, "decode": {}, "frontend": {"enabled": False}}, None, None),
    ],
)
def test_the_service_is_where_clients_go(spec, service, url, key, settings):
    manifests = render(key, "u", spec_of(**spec), {}, settings)
    assert list(by_kind(manifests, "Service")) == ([service] if service else [])
    assert endpoint(key, spec_of(**spec)) == url


def test_without_a_uid_nothing_has_an_owner(key, settings):
    manifests = render(key, "", spec_of(aggregated={}), {}, settings)
    assert not any("ownerReferences" in m["metadata"] for m in manifests)


def containers(manifests):
    return {
        name: deployment["spec"]["template"]["spec"]["containers"][0]
        for name, deployment in by_kind(manifests, "Deployment").items()
    }


def worker_of(settings, key, *, role="prefill", **fields):
    shape = {"aggregated": {}} if role == "aggregated" else {"prefill": {}, "decode": {}}
    manifests = render(key, "u", spec_of(**{**shape, **fields}), {}, settings)
    return containers(manifests)[f"demo-{role}"]


def flags(container):
    """Return the flags of a container that have values."""
    args = container["args"]
    return {flag: value for flag, value in pairwise(args) if flag.startswith("--")}


@pytest.mark.parametrize("events", [{}, {"transports": ["nats"]}, {"zmqFormat": "array"}])
def test_events_as_ever_change_no_manifest(key, settings, events):
    before = render(key, "u", spec_of(prefill={}, decode={}), {}, settings)
    after = render(key, "u", spec_of(prefill={}, decode={}, kvEvents=events), {}, settings)
    assert before == after


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ({}, None),
        ({"natsFormat": "dynamo-event-plane"}, "dynamo-event-plane"),
        ({"transports": []}, "none"),
        ({"transports": ["zmq"], "natsFormat": "dynamo-event-plane"}, "none"),
    ],
)
def test_the_format_on_nats_is_said_where_it_is_not_the_default(key, settings, events, said):
    worker = worker_of(settings, key, kvEvents=events)
    assert flags(worker).get("--kv-events-nats-format") == said


@pytest.mark.parametrize(("given", "form"), [({}, "map"), ({"zmqFormat": "array"}, "array")])
def test_zmq_gets_sockets_and_ports_as_vllm_has_them(key, settings, given, form):
    worker = worker_of(settings, key, kvEvents={"transports": ["nats", "zmq"], **given})
    assert json.loads(flags(worker)["--kv-events-config"]) == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5558",
        "topic": "kv@{pod_ip}:{port}@{model}",
        "format": form,
    }
    assert {port["name"]: port["containerPort"] for port in worker["ports"]} == {
        "http": 8000,
        "kv-events": 5557,
        "kv-replay": 5558,
    }


def test_every_rank_has_its_own_ports(key, settings):
    worker = worker_of(
        settings, key, kvEvents={"transports": ["zmq"]}, engine={"dataParallelSize": 3}
    )
    config = json.loads(flags(worker)["--kv-events-config"])
    assert (config["endpoint"], config["replay_endpoint"]) == ("tcp://*:5557", "tcp://*:5560")
    ports = {port["name"]: port["containerPort"] for port in worker["ports"]}
    assert ports == {
        "http": 8000,
        "kv-events": 5557,
        "kv-events-1": 5558,
        "kv-events-2": 5559,
        "kv-replay": 5560,
        "kv-replay-1": 5561,
        "kv-replay-2": 5562,
    }
    assert all(len(name) <= 15 for name in ports)


@pytest.mark.parametrize(
    ("role", "engine"),
    [
        ("decode", {}),
        ("prefill", {"enablePrefixCaching": False}),
        ("aggregated", {"extraEngineArgs": {"publish_kv_events": False}}),
    ],
)
def test_who_publishes_nothing_is_told_nothing(key, settings, role, engine):
    events = {"transports": ["zmq"]}
    silent = worker_of(settings, key, role=role, kvEvents=events, engine=engine)
    assert silent == worker_of(settings, key, role=role, engine=engine)
    assert not [flag for flag in silent["args"] if flag.startswith("--kv-events")]


def test_a_variable_may_come_from_a_secret(key, settings):
    source = {"secretKeyRef": {"name": "keys", "key": "api-key"}}
    template = {"env": [{"name": "MOCKER_API_KEY", "valueFrom": source}, {"name": "A"}]}
    worker = worker_of(settings, key, role="aggregated", aggregated={"template": template})
    assert worker["env"][-2:] == [
        {"name": "MOCKER_API_KEY", "valueFrom": source},
        {"name": "A"},
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_programs_take_what_is_rendered(path, settings, tmp_path):
    """Flags and variables of an example, judged by the programs that get them."""
    resource = yaml.safe_load(path.read_text())
    key = Key("team", resource["metadata"]["name"])
    manifests = render(key, "", parse_spec(resource), {}, settings)
    configs = by_kind(manifests, "ConfigMap")
    (tmp_path / "tokenizer.json").touch()
    for name, container in containers(manifests).items():
        if container["command"][0] != "mocker-worker":
            continue
        engine = tmp_path / f"{name}.json"
        engine.write_text(configs[name]["data"]["engine.json"])
        args = [arg.replace("/etc/mocker/engine.json", str(engine)) for arg in container["args"]]
        ran = subprocess.run(
            [BIN / "mocker-worker", "serve", *args, "--print-engine-args"],
            env={
                item["name"]: item.get("value", "from-elsewhere").replace(
                    "/etc/mocker-tokenizer", str(tmp_path)
                )
                for item in container["env"]
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        printed = json.loads(ran.stdout)
        assert json.loads(engine.read_text()).items() <= printed.items()
