"""What hack/cluster.py answers and whose clusters it touches; no daemon and no cluster is asked."""

import io
import os
import shlex
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hack"))

from testbed import cli, clusters, debian, docker, image_archive, workshop
from testbed.console import Console
from testbed.errors import TestbedError, Unavailable

TestbedError.__test__ = False  # the name is not a test's
AMBIENT = docker.Docker({}, private=False)


@pytest.fixture
def shop(tmp_path: Path) -> workshop.Workshop:
    return workshop.Workshop.at(tmp_path / "cache", Console(io.StringIO()))


@pytest.fixture
def ambient(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Clusters of a daemon that others use too; what is deleted leaves the list."""
    names = ["mocker"]
    monkeypatch.setattr(clusters.docker_daemon, "running", lambda _shop: AMBIENT)
    monkeypatch.setattr(clusters.docker_daemon, "ensure", lambda _shop: AMBIENT)
    monkeypatch.setattr(clusters.tools, "ensure", lambda _shop, name: Path(name))
    monkeypatch.setattr(clusters, "_names", lambda _shop, _docker: list(names))
    monkeypatch.setattr(clusters, "_delete", lambda _shop, _docker, name: names.remove(name))
    return names


def test_a_namesake_that_was_not_made_here_is_neither_adopted_nor_deleted(
    shop: workshop.Workshop, ambient: list[str]
):
    with pytest.raises(TestbedError, match="was not made here"):
        clusters.up(shop, "mocker")
    with pytest.raises(TestbedError, match="was not made here"):
        clusters.down(shop, "mocker", everything=False)
    clusters.down(shop, "mocker", everything=True)
    assert ambient == ["mocker"]
    assert not clusters.exists(shop, AMBIENT, "mocker")


def test_a_cluster_that_was_made_here_is_deleted(shop: workshop.Workshop, ambient: list[str]):
    ambient.append("made")
    clusters._remember(shop, AMBIENT, "made")
    clusters.down(shop, "mocker", everything=True)
    assert ambient == ["mocker"]


def test_marks_outlive_a_daemon_that_does_not_answer(
    shop: workshop.Workshop, monkeypatch: pytest.MonkeyPatch
):
    clusters._remember(shop, AMBIENT, "made")
    monkeypatch.setattr(clusters.docker_daemon, "running", lambda _shop: None)
    clusters.down(shop, "made", everything=True)
    assert clusters._is_ours(shop, AMBIENT, "made")


def test_shell_lines_quote_what_a_shell_would_split(
    shop: workshop.Workshop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(clusters.tools, "have", lambda _shop, _name: None)
    (line,) = clusters.shell_lines(shop, "mocker", "/my cluster's/config")
    assert shlex.split(line) == ["export", "KUBECONFIG=/my cluster's/config"]


def test_a_cluster_of_the_users_needs_an_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("MOCKER_CACHE", str(tmp_path))
    monkeypatch.setenv("MOCKER_KUBECONFIG", "/mine")
    monkeypatch.delenv("IMAGE", raising=False)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    assert cli.main(["build-image"]) == 1
    assert "IMAGE must name an image" in capsys.readouterr().out
    monkeypatch.setenv("IMAGE", "registry.example/mocker:1")
    assert cli.main(["build-image"]) == 0
    assert capsys.readouterr().out == "registry.example/mocker:1\n"


def test_system_folders_come_last_on_the_path_and_once():
    assert cli.with_system_folders("/usr/bin") == "/usr/bin:/usr/sbin:/sbin"
    assert cli.with_system_folders("/sbin:/usr/sbin") == "/sbin:/usr/sbin"


def test_a_root_file_system_is_not_begun_without_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(debian.os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="needs root"):
        debian.root_file_system(tmp_path / "x", [], variant="essential", log=tmp_path / "log")


def test_a_plain_image_file_starts_with_its_layer(tmp_path: Path):
    layer = tmp_path / "layer.tar"
    layer.write_bytes(b"content")
    target = tmp_path / "image.tar"
    image_archive.write_plain(
        target, {"localhost/x:1": (layer, image_archive.ImageSettings("amd64"))}
    )
    assert b"content" in target.read_bytes()
