import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kubernetes import client

from mocker_operator.cli import _parser

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts/mocker-operator"

VALUE_SETS = {
    "defaults": (),
    "two namespaces": ("watch.namespaces={team-a,team-b}", "networkPolicy.enabled=true"),
    "foreign nats": ("nats.enabled=false", "nats.externalUrl=tls://nats.example:4222"),
    "everything set": (
        f"image.digest=sha256:{'0' * 64}",
        "workers.image.repository=registry.example/worker",
        "workers.image.tag=v2",
        "workers.natsUrl=nats://elsewhere:4222",
        "imagePullSecrets[0].name=pull",
        "tolerations[0].operator=Exists",
        "nodeSelector.disk=ssd",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
        ".preference.matchExpressions[0].key=zone",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
        ".preference.matchExpressions[0].operator=Exists",
        "priorityClassName=high",
        "podAnnotations.note=x",
        "podLabels.team=a",
        "serviceAccount.annotations.note=x",
        "networkPolicy.enabled=true",
        "networkPolicy.natsFrom[0].podSelector.matchLabels.app=planner",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring",
    ),
}


def one(objects, kind, name):
    (found,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def pod_specs(objects):
    return [o["spec"]["template"]["spec"] for o in objects if o["kind"] == "Deployment"]


def operator_arguments(objects):
    deployment = one(objects, "Deployment", "mocker-operator")
    return deployment["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())
def test_every_object_is_one_that_kubernetes_knows(render, values):
    for manifest in render(*values):
        getattr(client, f"V1{manifest['kind']}").model_validate(manifest)


def test_the_linter_has_nothing_to_say(run_helm):
    done = run_helm("lint", "--strict", "--kube-version", "1.34.0", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())
def test_pod_security_restricted_accepts_every_pod(render, values):
    for spec in pod_specs(render(*values)):
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] >= 10000
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {kind for volume in spec["volumes"] for kind in volume} <= {
            "name",
            "emptyDir",
            "configMap",
        }
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


def test_only_one_operator_runs_at_a_time(render):
    spec = one(render(), "Deployment", "mocker-operator")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_operator_finds_the_charts_own_nats_from_any_namespace(render):
    objects = render()
    service = one(objects, "Service", "mocker-nats")
    assert "--nats-url=nats://mocker-nats.mocker-system.svc:4222" in operator_arguments(objects)
    nats = one(objects, "Deployment", "mocker-nats")
    labels = nats["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_a_foreign_nats_takes_the_place_of_the_charts(render):
    objects = render(*VALUE_SETS["foreign nats"])
    assert "--nats-url=tls://nats.example:4222" in operator_arguments(objects)
    assert [o for o in objects if "nats" in o["metadata"]["name"]] == []


def test_watching_all_namespaces_needs_one_cluster_role_and_no_more(render):
    objects = render()
    assert "--all-namespaces" in operator_arguments(objects)
    kinds = [o["kind"] for o in objects]
    assert kinds.count("ClusterRole") == 1
    assert "Role" not in kinds


def test_watching_some_namespaces_needs_no_cluster_role(render):
    objects = render("watch.namespaces={team-a,team-b}")
    arguments = operator_arguments(objects)
    assert "--namespace=team-a" in arguments
    assert "--namespace=team-b" in arguments
    assert "--all-namespaces" not in arguments
    roles = {o["metadata"]["namespace"] for o in objects if o["kind"] == "Role"}
    bindings = {o["metadata"]["namespace"] for o in objects if o["kind"] == "RoleBinding"}
    assert roles == bindings == {"team-a", "team-b"}
    assert not [o for o in objects if o["kind"].startswith("ClusterRole")]


def test_the_operator_may_do_what_it_needs_and_nothing_else(render):
    (role,) = [o for o in render() if o["kind"] == "ClusterRole"]
    needed = yaml.safe_load((ROOT / "tests/data/operator_rules.yaml").read_text())
    assert role["rules"] == needed


def test_workers_run_the_operators_image_unless_told_otherwise(render):
    digest = f"sha256:{'0' * 64}"
    same = operator_arguments(render("image.repository=r/m", f"image.digest={digest}"))
    assert f"--worker-image=r/m@{digest}" in same
    other = operator_arguments(render("workers.image.repository=r/w", "workers.image.tag=v2"))
    assert "--worker-image=r/w:v2" in other


def test_the_operators_command_line_takes_what_the_chart_gives_it(render):
    for values in VALUE_SETS.values():
        parsed = _parser({}).parse_args(operator_arguments(render(*values)))
        assert parsed.worker_nats_url
        assert parsed.liveness_port == 8080


def test_metrics_can_be_switched_off(render):
    assert one(render(), "Service", "mocker-operator-metrics")
    objects = render("metrics.enabled=false")
    assert not [a for a in operator_arguments(objects) if "metrics" in a]
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "Service"] == ["mocker-nats"]


def test_only_known_pods_reach_nats_behind_the_network_policy(render):
    objects = render("networkPolicy.enabled=true")
    (rule,) = one(objects, "NetworkPolicy", "mocker-nats")["spec"]["ingress"]
    deployments = {
        "namespaceSelector": {},
        "podSelector": {
            "matchExpressions": [{"key": "mocker.dev/deployment", "operator": "Exists"}]
        },
    }
    assert deployments in rule["from"]
    assert "ingress" not in one(objects, "NetworkPolicy", "mocker-operator")["spec"]


def test_the_nats_server_takes_the_configuration_it_is_given(render, tmp_path):
    server = Path(sys.executable).parent / "nats-server"
    text = one(render(), "ConfigMap", "mocker-nats")["data"]["nats.conf"]
    config = tmp_path / "nats.conf"
    config.write_text(text.replace("/data", str(tmp_path)))
    done = subprocess.run([server, "-t", "-c", config], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("nats.enabeld=false", "enabeld"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("watch.namespaces={Team_A}", "namespaces"),
        ("nats.externalUrl=http://x", "externalUrl"),
        ("nats.jetstream.maxFileStore=1G", "maxFileStore"),
    ],
)
def test_a_wrong_value_is_refused_by_name(run_helm, value, field):
    done = run_helm("template", str(CHART), "--kube-version", "1.34.0", "--set", value)
    assert done.returncode != 0
    assert field in done.stderr


def test_no_nats_at_all_is_refused_with_the_remedy(run_helm):
    off = ("--set", "nats.enabled=false")
    done = run_helm("template", str(CHART), "--kube-version", "1.34.0", *off)
    assert done.returncode != 0
    assert "nats.externalUrl: set it" in done.stderr


def test_the_workflow_for_users_sets_only_values_that_exist():
    workflow = (CHART.parents[1] / "examples/ci/github-actions.yaml").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    paths = re.findall(r"--set ([A-Za-z.]+)=", workflow)
    assert paths
    for path in paths:
        found = values
        for key in path.split("."):
            found = found[key]


def test_the_schema_names_every_value_and_no_others():
    def names(values, schema, path=""):
        if "$ref" in schema or not isinstance(values, dict) or "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, path
        known = schema["properties"].keys() - {"global"}
        assert values.keys() == known, path
        for key, value in values.items():
            names(value, schema["properties"][key], f"{path}.{key}")

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    names(values, json.loads((CHART / "values.schema.json").read_text()))
