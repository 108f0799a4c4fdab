"""One namespace of the API server as a test sees it, with stand-ins for absent controllers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from api_client import Api
from waiting import until

CHILDREN = ("deployments", "services", "configmaps")


def mocker_deployment(name: str = "demo", **spec: Any) -> dict[str, Any]:
    roles = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}
    return {
        "apiVersion": "mocker.dev/v1alpha1",
        "kind": "MockerDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"name": "mock-model"}, **roles, **spec},
    }


def condition(resource: dict[str, Any], kind: str) -> dict[str, Any]:
    found = [c for c in resource.get("status", {}).get("conditions", []) if c["type"] == kind]
    return found[0] if found else {}


@dataclass(frozen=True, slots=True)
class World:
    """A namespace, and what a test does in it."""

    api: Api
    namespace: str

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return await self.api.create(
            "mockerdeployments", manifest, self.namespace, fieldValidation="Strict"
        )

    async def resource(self, name: str = "demo") -> dict[str, Any]:
        return await self.api.get("mockerdeployments", name, self.namespace)

    async def edit(self, spec: dict[str, Any], name: str = "demo") -> dict[str, Any]:
        return await self.api.merge("mockerdeployments", name, {"spec": spec}, self.namespace)

    async def children(self, name: str = "demo") -> dict[str, dict[str, Any]]:
        """Return all children by `plural/name`."""
        selector = f"mocker.dev/deployment={name}"
        return {
            f"{plural}/{item['metadata']['name']}": item
            for plural in CHILDREN
            for item in await self.api.list(plural, self.namespace, labelSelector=selector)
        }

    async def replicas(self, role: str, name: str = "demo") -> int:
        deployment = await self.api.get("deployments", f"{name}-{role}", self.namespace)
        count: int = deployment["spec"]["replicas"]
        return count

    async def has_children(self, name: str = "demo", count: int = 6) -> dict[str, dict[str, Any]]:
        """Wait for all children of a prefill/decode/frontend deployment."""

        async def all_there() -> dict[str, dict[str, Any]]:
            children = await self.children(name)
            assert len(children) == count, sorted(children)
            return children

        return await until(all_there)

    async def is_condition(
        self, kind: str, status: str, name: str = "demo", *, reason: str | None = None
    ) -> dict[str, Any]:
        async def holds() -> dict[str, Any]:
            resource = await self.resource(name)
            found = condition(resource, kind)
            assert found.get("status") == status, resource.get("status")
            assert found["observedGeneration"] == resource["metadata"]["generation"], found
            assert reason in (None, found["reason"]), found
            return found

        return await until(holds)

    async def event(self, reason: str) -> dict[str, Any]:
        async def posted() -> dict[str, Any]:
            events = await self.api.list("events", self.namespace)
            found = [event for event in events if event["reason"] == reason]
            assert found, [event["reason"] for event in events]
            return found[0]

        return await until(posted)

    async def carry_out(self) -> None:
        """Do once what the Deployment controller and a kubelet would do."""
        for deployment in await self.api.list("deployments", self.namespace):
            await self._make_pods(deployment)
            await self.report(deployment)

    @contextlib.asynccontextmanager
    async def carried_out(self) -> AsyncIterator[None]:
        """Do so over and over."""

        async def loop() -> None:
            while True:
                await self.carry_out()
                await asyncio.sleep(0.05)

        task = asyncio.create_task(loop(), name="deployment-controller")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _pods(self, deployment: dict[str, Any]) -> list[dict[str, Any]]:
        labels = deployment["spec"]["selector"]["matchLabels"]
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        return await self.api.list("pods", self.namespace, labelSelector=selector)

    async def _make_pods(self, deployment: dict[str, Any]) -> None:
        wanted, existing = deployment["spec"]["replicas"], await self._pods(deployment)
        template = deployment["spec"]["template"]
        for pod in existing[wanted:]:
            await self.api.delete("pods", pod["metadata"]["name"], self.namespace)
        for _ in range(wanted - len(existing)):
            metadata = {
                **template["metadata"],
                "generateName": f"{deployment['metadata']['name']}-",
            }
            body = {"metadata": metadata, "spec": template["spec"]}
            pod = await self.api.create("pods", body, self.namespace)
            ready = {"type": "Ready", "status": "True"}
            status = {"status": {"phase": "Running", "conditions": [ready]}}
            name = pod["metadata"]["name"]
            await self.api.merge("pods", name, status, self.namespace, "status")

    async def report(self, deployment: dict[str, Any]) -> None:
        count = deployment["spec"]["replicas"]
        status: dict[str, Any] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": count,
            "readyReplicas": count,
            "availableReplicas": count,
            "updatedReplicas": count,
        }
        current = deployment.get("status", {})
        if any(current.get(field, 0) != value for field, value in status.items()):
            name = deployment["metadata"]["name"]
            await self.api.merge("deployments", name, {"status": status}, self.namespace, "status")
