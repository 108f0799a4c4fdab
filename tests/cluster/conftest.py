"""A real cluster with the chart installed; each test lives in a namespace of its own.

The namespaces enforce the pod security level `restricted`, so every pod of every test proves that
it is accepted there.
"""

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import yaml

import chart
from kubectl import Kubectl, KubectlError, until
from mocker_planner.client import PlannerClient


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.cluster)
        item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="session")
def installed_chart() -> str:
    """The helm command that was run; the chart is up."""
    if "KUBECONFIG" not in os.environ or "IMAGE" not in os.environ:
        reason = "no cluster: run `make test`, or set KUBECONFIG and IMAGE"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return chart.install()


@pytest.fixture
def nats_url(installed_chart: str) -> Iterator[str]:
    with Kubectl(chart.NAMESPACE).forwarded(chart.NATS_SERVICE, 4222) as port:
        yield f"nats://127.0.0.1:{port}"


@pytest.fixture
async def planner(nats_url: str) -> AsyncIterator[PlannerClient]:
    async with PlannerClient(nats_url) as client:
        yield client


@pytest.fixture
def kubectl(installed_chart: str) -> Iterator[Kubectl]:
    """kubectl in a fresh namespace that enforces the `restricted` level."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    whole = Kubectl("default")
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }
    whole.apply(yaml.safe_dump(namespace))
    yield Kubectl(name)
    whole.run("delete", "namespace", name, "--wait=false")


@dataclass(frozen=True, slots=True)
class Deployment:
    """A MockerDeployment in the test's namespace."""

    kubectl: Kubectl
    name: str

    @property
    def resource(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kubectl.get("mockerdeployment", self.name)
        return found

    def pods(self, role: str) -> list[dict[str, Any]]:
        return self.kubectl.items(
            "pods", f"mocker.dev/deployment={self.name},mocker.dev/role={role}"
        )

    def running_pods(self, role: str) -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self.pods(role)
            if "deletionTimestamp" not in pod["metadata"]
        ]

    def wait_ready(self, timeout_s: int = 90) -> None:
        self.kubectl.run(
            "wait",
            f"mockerdeployment/{self.name}",
            "--for=condition=Ready",
            f"--timeout={timeout_s}s",
        )

    def condition(self, kind: str) -> dict[str, Any] | None:
        conditions = self.resource.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), None)

    def events(self) -> list[str]:
        """Reasons of the Kubernetes events about the resource."""
        return [
            event["reason"]
            for event in self.kubectl.items("events.events.k8s.io")
            if event["regarding"]["name"] == self.name
        ]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[openai.AsyncOpenAI]:
        """Yield the real client, talking to the frontend."""
        with self.kubectl.forwarded(f"service/{self.name}-frontend", 8000) as port:
            url = f"http://127.0.0.1:{port}/v1"
            async with openai.AsyncOpenAI(
                base_url=url, api_key="none", max_retries=0, timeout=90
            ) as client:
                yield client


FAST = {"timing": {"fixed": {"prefillMs": 5, "decodeMs": 2}}, "blockSize": 16}


@pytest.fixture
def deploy(kubectl: Kubectl) -> Any:
    """Apply a MockerDeployment and wait until it is Ready."""

    def apply(
        name: str = "mock",
        *,
        prefill: int = 1,
        decode: int = 1,
        engine: dict[str, Any] | None = None,
        decode_bounds: dict[str, int] | None = None,
    ) -> Deployment:
        resource = {
            "apiVersion": "mocker.dev/v1alpha1",
            "kind": "MockerDeployment",
            "metadata": {"name": name},
            "spec": {
                "model": {"name": "mock/model"},
                "engine": engine or FAST,
                "prefill": {"replicas": prefill},
                "decode": {"replicas": decode, "scaling": decode_bounds or {}},
                "scaling": {"source": "planner"},
            },
        }
        kubectl.apply(yaml.safe_dump(resource))
        deployment = Deployment(kubectl, name)
        deployment.wait_ready()
        return deployment

    return apply


def gone(kubectl: Kubectl, kind: str, name: str) -> bool:
    """Whether an object is not there any more."""
    try:
        kubectl.get(kind, name)
    except KubectlError as error:
        return "NotFound" in error.stderr
    return False


@pytest.fixture(name="gone")
def _gone() -> Any:
    return gone


@pytest.fixture
def no_children(kubectl: Kubectl) -> Any:
    """Wait until nothing of a deployment is left in the namespace."""

    def wait(name: str) -> None:
        kinds = "deployments,services,configmaps,pods"
        until(
            "all children are gone",
            lambda: not kubectl.items(kinds, f"mocker.dev/deployment={name}"),
            timeout_s=90,
        )

    return wait
