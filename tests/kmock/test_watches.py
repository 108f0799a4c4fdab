"""How a whole operator takes what a scripted API server does to its watches."""

import asyncio
from pathlib import Path
from typing import Any

import kmock as km
import pytest
import yaml
from operator_thread import start_operator
from waiting import PATIENCE_S, until

from mocker_operator.config import OperatorConfig
from mocker_operator.errors import OperatorFailed

pytestmark = [
    pytest.mark.kmock(cls=km.RawHandler),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in.*(Transport|socket):pytest.PytestUnraisableExceptionWarning"
    ),
]

RESOURCES = "/apis/mocker.dev/v1alpha1/namespaces/ns/mockerdeployments"
CORE = ("pods", "services", "configmaps")


def _kind(plural: str) -> dict[str, Any]:
    singular = plural.removesuffix("s")
    return {
        "name": plural,
        "singularName": singular,
        "kind": singular.capitalize(),
        "namespaced": True,
        "verbs": ["list", "watch", "patch"],
    }


def _group(name: str, version: str) -> dict[str, Any]:
    versions = {"versions": [{"version": version}], "preferredVersion": {"version": version}}
    return {"name": name, **versions}


def serve(kmock: km.RawHandler) -> None:
    """Answer discovery, lists without items and watches without events."""
    kmock["get /api"] << {"versions": ["v1"]}
    kmock["get /apis"] << {"groups": [_group("apps", "v1"), _group("mocker.dev", "v1alpha1")]}
    kmock["get /api/v1"] << {"resources": [_kind(plural) for plural in (*CORE, "namespaces")]}
    kmock["get /apis/apps/v1"] << {"resources": [_kind("deployments")]}
    kmock["get /apis/mocker.dev/v1alpha1"] << {"resources": [_kind("mockerdeployments")]}
    kmock["get ?watch=true"] << (b"", ...)
    kmock["get"] << {"metadata": {"resourceVersion": "1"}, "items": []}


def broken(code: int) -> tuple[dict[str, Any]]:
    status = {"kind": "Status", "code": code, "reason": "Scripted", "message": "as the test wants"}
    return ({"type": "ERROR", "object": status},)


@pytest.fixture
def config(kmock: km.RawHandler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OperatorConfig:
    """Settings of a whole operator on the scripted server."""
    kubeconfig = tmp_path / "kubeconfig"
    server = str(kmock.url).rstrip("/")
    content = {
        "clusters": [{"name": "test", "cluster": {"server": server}}],
        "users": [{"name": "test", "user": {"token": "t"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    kubeconfig.write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return OperatorConfig(worker_image="image", nats_url="nats://127.0.0.1:1", namespaces=("ns",))


def lists(kmock: km.RawHandler) -> int:
    return sum("watch" not in request.params for request in kmock[f"get {RESOURCES}"])


async def test_a_watch_that_is_gone_is_begun_anew_from_a_list(
    kmock: km.RawHandler, config: OperatorConfig
) -> None:
    kmock[f"get {RESOURCES}?watch=true"][:1] << broken(410)
    serve(kmock)
    operator = await start_operator(config)
    await until(lambda: lists(kmock) >= 2)
    assert not operator.ended.done()
    operator.stop()
    async with asyncio.timeout(PATIENCE_S):
        await operator.ended


async def test_a_watch_that_fails_otherwise_ends_the_process(
    kmock: km.RawHandler, config: OperatorConfig
) -> None:
    kmock[f"get {RESOURCES}?watch=true"] << broken(500)
    serve(kmock)
    operator = await start_operator(config)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(OperatorFailed, match="as the test wants"):
            await operator.ended
