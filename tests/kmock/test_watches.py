"""How a whole operator takes what a scripted API server does to its watches."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kmock as km
import pytest
import yaml

from mocker_operator.config import OperatorConfig
from mocker_operator.errors import OperatorFailed
from mocker_operator.program import run

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


class Operator:
    """A whole operator in a thread and an event loop of its own, as Kopf wants it."""

    def __init__(self, url: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kubeconfig = directory / "kubeconfig"
        config = {
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "test", "user": {"token": "t"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        kubeconfig.write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        self._stop: Callable[[], object] = lambda: None

    def start(self) -> asyncio.Task[None]:
        config = OperatorConfig(
            worker_image="image", nats_url="nats://127.0.0.1:1", namespaces=("ns",)
        )

        async def main() -> None:
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            self._stop = lambda: loop.call_soon_threadsafe(stop.set)
            await run(config, stop)

        return asyncio.create_task(asyncio.to_thread(asyncio.run, main()))

    def stop(self) -> None:
        self._stop()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while True:
            if done():
                return
            await asyncio.sleep(0.02)


@pytest.fixture
def operator(kmock: km.RawHandler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    return Operator(str(kmock.url).rstrip("/"), tmp_path, monkeypatch)


def lists(kmock: km.RawHandler) -> int:
    return sum("watch" not in request.params for request in kmock[f"get {RESOURCES}"])


async def test_a_watch_that_is_gone_is_begun_anew_from_a_list(
    kmock: km.RawHandler, operator: Operator
) -> None:
    kmock[f"get {RESOURCES}?watch=true"][:1] << broken(410)
    serve(kmock)
    running = operator.start()
    await until(lambda: lists(kmock) >= 2)
    assert not running.done()
    operator.stop()
    async with asyncio.timeout(15):
        await running


async def test_a_watch_that_fails_otherwise_ends_the_process(
    kmock: km.RawHandler, operator: Operator
) -> None:
    kmock[f"get {RESOURCES}?watch=true"] << broken(500)
    serve(kmock)
    async with asyncio.timeout(30):
        with pytest.raises(OperatorFailed, match="as the test wants"):
            await operator.start()
