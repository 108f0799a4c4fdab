"""The command line, but for `run`."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mocker_operator.cli import main
from mocker_operator.config import OperatorConfig
from mocker_operator.errors import InvalidConfig

GOOD: dict[str, Any] = {
    "apiVersion": "mocker.dev/v1alpha1",
    "kind": "MockerDeployment",
    "metadata": {"name": "demo"},
    "spec": {"model": {"name": "mock"}, "prefill": {}, "decode": {}},
}


def write(path: Path, *documents: object) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def test_crd_prints_the_definition(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crd"]) == 0
    definition = yaml.safe_load(capsys.readouterr().out)
    assert definition["metadata"]["name"] == "mockerdeployments.mocker.dev"


def test_crd_loads_neither_kopf_nor_the_kubernetes_client() -> None:
    program = (
        "import sys; from mocker_operator.cli import main; main(['crd'])\n"
        "assert not {'kopf', 'kubernetes', 'nats'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_render_prints_manifests_without_an_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a.yaml", {"kind": "Namespace"}, GOOD)
    assert main(["render", file, "--worker-image", "image:1"]) == 0
    manifests = list(yaml.safe_load_all(capsys.readouterr().out))
    assert len(manifests) == 6
    assert all("ownerReferences" not in manifest["metadata"] for manifest in manifests)
    images = {
        container["image"]
        for manifest in manifests
        if manifest["kind"] == "Deployment"
        for container in manifest["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"image:1"}


def test_validate_says_nothing_about_a_good_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", write(tmp_path / "a.yaml", GOOD)]) == 0
    assert capsys.readouterr() == ("", "")


def test_validate_names_file_and_field_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {**GOOD, "spec": {**GOOD["spec"], "decode": {"replica": 3}}}
    worse = {**GOOD, "spec": {**GOOD["spec"], "prefill": {"replicas": -1}}}
    files = [write(tmp_path / "a.yaml", bad), write(tmp_path / "b.yaml", GOOD, worse)]
    assert main(["validate", *files]) == 1
    complaints = capsys.readouterr().err.splitlines()
    assert [complaint.split(": ")[:2] for complaint in complaints] == [
        [files[0], "spec.decode.replica"],
        [files[1], "spec.prefill.replicas"],
    ]


def test_a_file_without_a_resource_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", write(tmp_path / "a.yaml", {"kind": "Pod"})]) == 1
    assert "holds no MockerDeployment" in capsys.readouterr().err


def test_wrong_usage_ends_with_two() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "--all-namespaces", "--namespace", "a"])
    assert caught.value.code == 2


@pytest.mark.parametrize("name", ["team-*", "!a", "a,b", "A"])
def test_a_pattern_is_no_namespace_for_kopf_would_watch_nothing(name: str) -> None:
    with pytest.raises(InvalidConfig, match="--namespace"):
        OperatorConfig(worker_image="image", namespaces=(name,))
