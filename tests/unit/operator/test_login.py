"""Where the operator finds the API server."""

from pathlib import Path

import pytest
import yaml

from mocker_operator.errors import InvalidConfig
from mocker_operator.kube.login import connection_info, load_configuration

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("pod-token")
    (tmp_path / "ca.crt").write_text("a certificate")
    return tmp_path


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://elsewhere:6443"}}],
        "users": [{"name": "u", "user": {"token": "file-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def test_a_pod_uses_its_service_account(service_account: Path) -> None:
    configuration = await load_configuration(IN_CLUSTER, service_account)
    info = await connection_info(configuration)
    assert (info.server, info.token) == ("https://10.0.0.1:443", "pod-token")
    assert info.ca_path == str(service_account / "ca.crt")


async def test_a_token_that_was_rotated_is_read_afresh(service_account: Path) -> None:
    await load_configuration(IN_CLUSTER, service_account)
    (service_account / "token").write_text("rotated")
    info = await connection_info(await load_configuration(IN_CLUSTER, service_account))
    assert info.token == "rotated"


async def test_an_explicit_kubeconfig_wins_over_the_service_account(
    service_account: Path, kubeconfig: Path
) -> None:
    environ = {**IN_CLUSTER, "KUBECONFIG": str(kubeconfig)}
    info = await connection_info(await load_configuration(environ, service_account))
    assert (info.server, info.token) == ("https://elsewhere:6443", "file-token")


async def test_an_absent_kubeconfig_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="set KUBECONFIG"):
        await load_configuration({"KUBECONFIG": str(tmp_path / "absent")})


async def test_a_pod_without_a_token_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="token file does not exist"):
        await load_configuration(IN_CLUSTER, tmp_path)
