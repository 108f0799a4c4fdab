"""What is deleted or edited comes back, and what must go goes, whatever else is down."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import chart
from kubectl import Kubectl, until
from mocker_planner.client import PlannerClient

OPERATOR = "mocker-operator"
NATS = "mocker-nats"


@contextmanager
def scaled_to_zero(deployment: str) -> Iterator[None]:
    """Take one of the chart's Deployments away while the block runs."""
    system = Kubectl(chart.NAMESPACE)
    target = f"deployment/{deployment}"
    system.run("scale", target, "--replicas=0")
    try:
        until("its pods are gone", lambda: not pods_of(system, deployment))
        yield
    finally:
        system.run("scale", target, "--replicas=1")
        system.run("rollout", "status", target, "--timeout=90s", timeout_s=100)


def pods_of(system: Kubectl, deployment: str) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in system.items("pods")
        if pod["metadata"]["name"].startswith(f"{deployment}-")
    ]


def started(pods: list[dict[str, Any]]) -> set[str]:
    """Names of the pods that may stay and whose container runs, whether it is ready or not."""
    return {
        pod["metadata"]["name"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        for status in pod["status"].get("containerStatuses", [])
        if "running" in status["state"]
    }


def kill_operator() -> None:
    system = Kubectl(chart.NAMESPACE)
    for pod in pods_of(system, OPERATOR):
        system.run("delete", "pod", pod, "--grace-period=0", "--force")


@pytest.mark.parametrize(
    "child", ["deployment/mock-decode", "configmap/mock-prefill", "service/mock-frontend"]
)
def test_a_deleted_child_is_back_long_before_the_next_resync(deploy: Any, child: str) -> None:
    kubectl = deploy().kubectl
    uid = kubectl.get(child)["metadata"]["uid"]
    kubectl.run("delete", child, "--wait=false")
    until("it is back", lambda: kubectl.get(child)["metadata"]["uid"] != uid)


def test_an_edited_field_of_ours_is_back_long_before_the_next_resync(deploy: Any) -> None:
    kubectl = deploy().kubectl
    target = "deployment/mock-decode"
    kubectl.run("scale", target, "--replicas=4")
    until("it is back", lambda: kubectl.get(target)["spec"]["replicas"] == 1)


def test_deleting_the_resource_removes_everything(
    deploy: Any, no_children: Callable[[str], None]
) -> None:
    deployment = deploy()
    deployment.kubectl.run("delete", "mockerdeployment", "mock", "--timeout=30s")
    no_children("mock")


async def test_pods_that_must_go_while_they_start_do_not_wait_for_their_grace_period(
    deploy: Any, planner: PlannerClient, no_children: Callable[[str], None]
) -> None:
    deployment = deploy()
    kubectl = deployment.kubectl
    for _ in range(3):
        await planner.decide("mock", kubectl.namespace, decode=4)
        until("a new pod's container runs", lambda: len(started(deployment.pods("decode"))) > 1)
        await planner.decide("mock", kubectl.namespace, decode=1)
        until("the others must go", lambda: len(deployment.running_pods("decode")) == 1)
    kubectl.run("delete", "mockerdeployment", "mock", "--timeout=30s")
    grace_s = 70
    until("all pods are gone", lambda: not kubectl.items("pods"), timeout_s=grace_s / 2)
    no_children("mock")


def test_deleting_works_with_the_operator_dead_and_nats_down(
    deploy: Any, no_children: Callable[[str], None]
) -> None:
    deployment = deploy()
    with scaled_to_zero(OPERATOR), scaled_to_zero(NATS):
        deployment.kubectl.run("delete", "mockerdeployment", "mock", "--timeout=30s")
        no_children("mock")


def test_an_operator_killed_in_the_middle_of_a_scale_up_finishes_it(
    deploy: Any, nats_url: str
) -> None:
    deployment = deploy()
    kubectl = deployment.kubectl
    patch = json.dumps({"spec": {"scaling": {"source": "manual"}, "decode": {"replicas": 3}}})
    kubectl.run("patch", "mockerdeployment", "mock", "--type=merge", "--patch", patch)
    kill_operator()
    until("three workers run", lambda: len(deployment.running_pods("decode")) == 3, timeout_s=90)
    generation = deployment.resource["metadata"]["generation"]
    until(
        "the status is that of the new spec",
        lambda: deployment.condition("Ready")["observedGeneration"] == generation,
        timeout_s=90,
    )
    deployment.wait_ready()


async def test_a_restarted_operator_keeps_what_a_planner_decided(
    deploy: Any, planner: PlannerClient
) -> None:
    deployment = deploy()
    namespace = deployment.kubectl.namespace
    first = await planner.decide("mock", namespace, decode=2)
    await planner.wait("mock", first.decision_id, namespace, timeout_s=90)
    pods = set(deployment.running_pods("decode"))
    kill_operator()
    second = await planner.decide("mock", namespace, prefill=2)
    await planner.wait("mock", second.decision_id, namespace, timeout_s=90)
    assert set(deployment.running_pods("decode")) == pods


def test_a_bad_spec_leaves_running_pods_as_they_are(deploy: Any) -> None:
    deployment = deploy()
    pods = set(deployment.running_pods("decode"))
    patch = json.dumps({"spec": {"engine": {"extraEngineArgs": {"no_such_argument": 1}}}})
    deployment.kubectl.run("patch", "mockerdeployment", "mock", "--type=merge", "--patch", patch)
    until("it is not ready", lambda: deployment.condition("Ready")["status"] == "False")
    condition = deployment.condition("Ready")
    assert condition["reason"] == "InvalidSpec"
    assert "no_such_argument" in condition["message"]
    assert set(deployment.running_pods("decode")) == pods


async def test_requests_are_answered_while_nats_is_away(deploy: Any) -> None:
    deployment = deploy()
    async with deployment.client() as client:
        with scaled_to_zero(NATS):
            answer = await client.completions.create(model="mock/model", prompt="hi", max_tokens=3)
            assert answer.usage.completion_tokens == 3


def test_a_quota_that_is_used_up_shows_as_degraded(deploy: Any) -> None:
    deployment = deploy()
    kubectl = deployment.kubectl
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full"},
        "spec": {"hard": {"pods": "3"}},
    }
    kubectl.apply(json.dumps(quota))
    patch = json.dumps({"spec": {"scaling": {"source": "manual"}, "decode": {"replicas": 2}}})
    kubectl.run("patch", "mockerdeployment", "mock", "--type=merge", "--patch", patch)
    until(
        "it is degraded",
        lambda: (deployment.condition("Degraded") or {}).get("status") == "True",
        timeout_s=60,
    )
    assert "quota" in deployment.condition("Degraded")["message"]
