"""Faults that a real API server cannot be asked for: the gateway and whole passes against a script.

The script is kmock's raw handler. Its emulator of Kubernetes has no server-side apply, so it would
answer a pass that creates children with 404.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import kmock as km
import pytest
from kubernetes.aio.client import Configuration
from waiting import PATIENCE_S

from mocker_operator.controller import Controller
from mocker_operator.kube.errors import Transient
from mocker_operator.kube.gateway import Gateway
from mocker_operator.reconcile.model import DecisionState, Key, Manifest
from mocker_operator.render import RenderSettings
from mocker_operator.telemetry import Metrics
from mocker_operator.work_queue import BackOff, WorkQueue

pytestmark = pytest.mark.kmock(cls=km.RawHandler)

KEY = Key("ns", "demo")
RESOURCES = "/apis/mocker.dev/v1alpha1/namespaces/ns/mockerdeployments"
DEPLOYMENTS = "/apis/apps/v1/namespaces/ns/deployments"
COLLECTIONS = (
    DEPLOYMENTS,
    *(f"/api/v1/namespaces/ns/{plural}" for plural in ("services", "configmaps", "pods")),
)
RESOURCE: Manifest = {
    "apiVersion": "mocker.dev/v1alpha1",
    "kind": "MockerDeployment",
    "metadata": {
        "name": "demo",
        "namespace": "ns",
        "uid": "u-1",
        "resourceVersion": "7",
        "generation": 1,
    },
    "spec": {"model": {"name": "mock"}, "prefill": {}, "decode": {}},
}
CHILD: Manifest = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "demo-decode", "namespace": "ns"},
}


class NoDecisions:
    def state(self, key: Key) -> DecisionState | None:
        return None

    async def acknowledge(self, key: Key, decision_id: int) -> None:
        raise AssertionError("there is nothing to acknowledge")


@pytest.fixture
async def gateway(kmock: km.RawHandler) -> AsyncIterator[Gateway]:
    gateway = Gateway(Configuration(host=str(kmock.url).rstrip("/")), Metrics())
    yield gateway
    await gateway.close()


@pytest.fixture
def controller(gateway: Gateway) -> Controller:
    settings = RenderSettings("image", "IfNotPresent", "nats://nats:4222")
    return Controller(
        gateway,
        NoDecisions(),
        settings,
        now=lambda: datetime.now(UTC),
        resync_s=lambda: 300.0,
    )


def serve(kmock: km.RawHandler) -> None:
    """Answer as an API server that holds the resource and no child, and accepts all writes."""
    kmock[f"get {RESOURCES}/demo"] << RESOURCE
    for collection in COLLECTIONS:
        kmock[f"get {collection}"] << {"items": []}
    kmock["get"] << 404 << {"message": "there is no such child yet"}
    kmock["patch"] << {}
    kmock["post"] << {}


def patched(kmock: km.RawHandler) -> list[str]:
    return [request.url.path.rpartition("/")[2] for request in kmock["patch"]]


async def reconcile_until(controller: Controller, done: Callable[[], bool]) -> float:
    """Run passes from a real queue until `done()`; return how long that took."""
    queue = WorkQueue[Key](controller.reconcile, back_off=BackOff(first_s=0.05))
    began = time.monotonic()
    worker = asyncio.create_task(queue.run())
    queue.wake(KEY)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if done():
                break
            await asyncio.sleep(0.01)
    worker.cancel()
    await asyncio.wait([worker])
    return time.monotonic() - began


async def test_a_server_that_is_busy_says_how_long_to_wait(
    kmock: km.RawHandler, gateway: Gateway
) -> None:
    kmock["patch"] << 429 << km.headers({"Retry-After": "7"}) << {"message": "slow down"}
    with pytest.raises(Transient, match="slow down") as caught:
        await gateway.apply(CHILD)
    assert caught.value.retry_after_s == 7


async def test_a_pass_waits_as_long_as_a_busy_server_asks(
    kmock: km.RawHandler, controller: Controller
) -> None:
    busy = {"message": "slow down"}
    kmock[f"get {RESOURCES}/demo"][:1] << 429 << km.headers({"Retry-After": "1"}) << busy
    serve(kmock)
    assert await reconcile_until(controller, lambda: "status" in patched(kmock)) >= 1


async def test_a_pass_that_breaks_off_is_completed_by_the_next(
    kmock: km.RawHandler, controller: Controller
) -> None:
    kmock[f"patch {DEPLOYMENTS}/demo-prefill"][:1] << 500 << {"message": "etcd is away"}
    serve(kmock)
    await reconcile_until(controller, lambda: "status" in patched(kmock))
    assert patched(kmock) == [
        *("demo-prefill", "demo-prefill"),
        *("demo-prefill", "demo-prefill", "demo-decode", "demo-decode"),
        *("demo-frontend", "demo-frontend", "status"),
    ]


async def test_a_manifest_that_does_not_fit_the_schema_is_reported_and_not_retried(
    kmock: km.RawHandler, controller: Controller
) -> None:
    message = "failed to create typed patch object (ns/demo-decode): field not declared in schema"
    kmock[f"patch {DEPLOYMENTS}/demo-decode"] << 500 << {"message": message}
    serve(kmock)
    for _ in range(3):
        await controller.reconcile(KEY)
    assert len(kmock[f"patch {DEPLOYMENTS}/demo-decode"]) == 1
    assert "demo-frontend" in patched(kmock)
    status = next(iter(kmock[f"patch {RESOURCES}/demo/status"])).data["status"]
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ApplyFailed")
    assert "field not declared in schema" in ready["message"]


async def test_a_namespace_that_is_going_away_ends_the_pass_without_an_error(
    kmock: km.RawHandler, controller: Controller
) -> None:
    cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace"}
    answer = {"message": "forbidden: namespace is being terminated", "details": {"causes": [cause]}}
    kmock["patch"] << 403 << answer
    serve(kmock)
    assert await controller.reconcile(KEY) == 300
    assert patched(kmock) == ["demo-prefill"]


async def test_a_stale_status_is_not_written_and_the_pass_tried_again(
    kmock: km.RawHandler, controller: Controller
) -> None:
    status = f"patch {RESOURCES}/demo/status"
    kmock[status][:1] << 409 << {"message": "the object has been modified"}
    serve(kmock)
    await reconcile_until(controller, lambda: len(kmock[status]) == 2)
    assert all(r.data["metadata"]["resourceVersion"] == "7" for r in kmock[status])


async def test_a_server_that_cannot_be_reached_is_a_transient_error() -> None:
    gateway = Gateway(Configuration(host="http://127.0.0.1:1"), Metrics())
    try:
        with pytest.raises(Transient, match="no answer"):
            await gateway.get_resource(KEY)
    finally:
        await gateway.close()
