"""A real API server for the session, a namespace per test, and operators in it.

Every operator runs as a ServiceAccount with nothing but the rules of `RULES`, so each test is a
test of the permissions too.
"""

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from api_client import Api
from control_plane import ADMIN_TOKEN, ControlPlane
from nats_process import NatsProcess
from operator_account import ACCOUNT, ACCOUNT_NAMESPACE
from operators import OperatorProcess, Operators
from waiting import until
from world import World

from mocker_operator.api import crd

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
RULES = yaml.safe_load((Path(__file__).parent.parent / "data/operator_rules.yaml").read_text())
"""What the chart grants; a test of the chart compares."""

KOPF_LEAVES_STREAMS = pytest.mark.filterwarnings(
    "ignore:.*unclosed (transport|.socket):ResourceWarning",
    "ignore:Exception ignored in.*(Transport|socket):pytest.PytestUnraisableExceptionWarning",
)
"""Kopf cancels its watch streams at its end and leaves their sockets to the garbage collector."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.apiserver)
            item.add_marker(KOPF_LEAVES_STREAMS)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    assets = Path(os.environ.get("KUBEBUILDER_ASSETS", "/nonexistent"))
    if missing := [name for name in PROGRAMS if not (assets / name).is_file()]:
        reason = f"{', '.join(missing)} not found: run `make test`, or set KUBEBUILDER_ASSETS"
        if os.environ.get("CI") == "true" or os.environ.get("MOCKER_REQUIRE_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    plane = ControlPlane(assets, tmp_path_factory.mktemp("control-plane"))
    try:
        plane.start()
        asyncio.run(_install(plane))
        plane.start_controller_manager()
        yield plane
    finally:
        plane.stop()


async def _install(plane: ControlPlane) -> None:
    async with Api(plane.url, plane.ca_file, ADMIN_TOKEN) as api:
        await api.create("customresourcedefinitions", crd())
        await api.create("serviceaccounts", {"metadata": {"name": ACCOUNT}}, ACCOUNT_NAMESPACE)
        await api.create("clusterroles", {"metadata": {"name": ACCOUNT}, "rules": RULES})
        await api.create(
            "clusterrolebindings",
            {
                "metadata": {"name": ACCOUNT},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": ACCOUNT,
                },
                "subjects": [
                    {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": ACCOUNT_NAMESPACE}
                ],
            },
        )

        async def served() -> bool:
            return (await api.request("GET", "/apis/mocker.dev/v1alpha1")).status == 200

        await until(served)


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    async with Api(control_plane.url, control_plane.ca_file, ADMIN_TOKEN) as client:
        yield client


@pytest.fixture
async def world(api: Api) -> AsyncIterator[World]:
    """A fresh namespace."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await api.create("namespaces", {"metadata": {"name": name}})
    yield World(api, name)
    await api.delete("namespaces", name)


@pytest.fixture
async def nats_process(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    process = NatsProcess(tmp_path / "nats")
    yield process
    await process.stop()


@pytest.fixture
async def operator_kubeconfig(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Path:
    path = f"/api/v1/namespaces/{ACCOUNT_NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    answer = await api.request("POST", path, {"spec": {"expirationSeconds": 3600}})
    return control_plane.kubeconfig(
        answer.body["status"]["token"], tmp_path / "operator.kubeconfig"
    )


@pytest.fixture
async def operators(
    world: World, nats_process: NatsProcess, operator_kubeconfig: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Operators]:  # fmt: skip
    """Starts operators of the test's namespace, in this process."""
    monkeypatch.setenv("KUBECONFIG", str(operator_kubeconfig))
    running = Operators(world.namespace, nats_process.url)
    yield running
    await running.stop()


@pytest.fixture
async def operator_process(
    world: World, nats_process: NatsProcess, operator_kubeconfig: Path, tmp_path: Path
) -> AsyncIterator[OperatorProcess]:
    """An operator of the test's namespace as a process of its own, not yet started."""
    process = OperatorProcess(world.namespace, nats_process.url, operator_kubeconfig, tmp_path)
    yield process
    with contextlib.suppress(ProcessLookupError):
        await process.kill()
