"""The pure parts of hack/testbed: keys, parsers, and what is removed from a firewall."""

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hack"))

from testbed import golang, host_state, images, tools, workshop
from testbed.console import Console, clock_text, status_line
from testbed.errors import CommandFailed, TestbedError
from testbed.image_archive import ImageArchive, ImageSettings

TestbedError.__test__ = False  # the name is not a test's


def test_a_recipe_hash_changes_with_a_files_content_name_and_executable_bit(tmp_path: Path):
    script = tmp_path / "script"
    script.write_text("a")
    seen = {workshop.recipe_hash(tmp_path)}
    script.write_text("b")
    seen.add(workshop.recipe_hash(tmp_path))
    script.chmod(0o755)
    seen.add(workshop.recipe_hash(tmp_path))
    script.rename(tmp_path / "renamed")
    seen.add(workshop.recipe_hash(tmp_path))
    assert len(seen) == 4


def test_a_recipe_hash_does_not_depend_on_times(tmp_path: Path):
    script = tmp_path / "script"
    script.write_text("a")
    before = workshop.recipe_hash("v1", tmp_path)
    script.touch()
    assert workshop.recipe_hash("v1", tmp_path) == before


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"MOCKER_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/mocker-testbed")),
        ({}, Path.home() / ".cache/mocker-testbed"),
    ],
)
def test_the_cache_folder_follows_the_environment(environ: dict[str, str], folder: Path):
    assert workshop.cache_folder(environ) == folder


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("kind v0.33.0 go1.26.8 linux/amd64", (0, 33)),
        ("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0", (1, 32)),
        ("v3.22.0+g1a2b3c", (3, 22)),
        ("unknown", None),
    ],
)
def test_a_tools_version_is_read_from_what_it_says(said: str, version: tuple[int, int] | None):
    assert tools.parse_version(said) == version


def test_staging_modules_are_found_in_either_form_of_replace():
    go_mod = (
        "replace k8s.io/api => ./staging/src/k8s.io/api\n"
        "replace (\n\tk8s.io/client-go => ./staging/src/k8s.io/client-go\n"
        "\texample.com/x => ./staging/src/x\n\tk8s.io/utils => k8s.io/utils v1.0.0\n)\n"
    )
    assert golang.staging_modules(go_mod) == ["k8s.io/api", "k8s.io/client-go"]


def test_only_new_rules_of_docker_and_of_our_bridges_are_removed_rules_before_chains():
    before = ["-P FORWARD ACCEPT", "-N KUBE-FORWARD", "-A FORWARD -j KUBE-FORWARD"]
    after = [
        *before,
        "-N DOCKER",
        "-N OTHER",
        "-A FORWARD -o mocker0 -j ACCEPT",
        "-A FORWARD -j DOCKER",
        "-A FORWARD -o mocker01 -j OTHER",
    ]
    assert list(host_state.removals(before, after, bridges=["mocker0"], shared=False)) == [
        ["-D", "FORWARD", "-o", "mocker0", "-j", "ACCEPT"],
        ["-D", "FORWARD", "-j", "DOCKER"],
        ["-F", "DOCKER"],
        ["-X", "DOCKER"],
    ]


def test_beside_another_daemon_only_rules_of_our_bridges_are_removed():
    after = ["-N DOCKER", "-A FORWARD -j DOCKER", "-A DOCKER -i mocker0 -j RETURN"]
    assert list(host_state.removals([], after, bridges=["mocker0"], shared=True)) == [
        ["-D", "DOCKER", "-i", "mocker0", "-j", "RETURN"]
    ]


def test_another_daemons_chains_stay():
    rules = ["-N DOCKER", "-A FORWARD -o docker0 -j DOCKER"]
    assert list(host_state.removals(rules, rules, bridges=["mocker0"], shared=False)) == []


def test_a_locked_requirement_keeps_its_hashes_and_nothing_else():
    lock = (
        "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n    # via x\nb==2 \\\n    --hash=3\n"
    )
    assert images.locked_version(lock, "a") == "1"
    assert images.locked_requirement(lock, "a") == (
        "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"
    )


def test_a_package_that_no_lock_pins_is_named():
    with pytest.raises(TestbedError, match="does not pin c"):
        images.locked_version("a==1\n", "c")


def test_an_image_archive_names_its_layer_by_digest_and_its_image_by_configuration(tmp_path: Path):
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    file = io.BytesIO()
    archive = ImageArchive(file)
    archive.add("localhost/x:1", layer, ImageSettings("amd64", entrypoint=["/x"], user="1:1"))
    archive.close()
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        manifest = json.load(tar.extractfile("manifest.json"))
        document = json.load(tar.extractfile(manifest[0]["Config"]))
        content = tar.extractfile(manifest[0]["Layers"][0]).read()
    assert manifest[0]["RepoTags"] == ["localhost/x:1"]
    assert content == layer.read_bytes()
    assert document["config"]["User"] == "1:1"
    assert document["rootfs"]["diff_ids"] == [f"sha256:{manifest[0]['Layers'][0].split('/')[0]}"]


def test_an_artefact_that_could_not_be_made_leaves_nothing(tmp_path: Path):
    shop = workshop.Workshop.at(tmp_path, silent_console())

    def fail(target: Path, _log: Path) -> None:
        target.write_text("half")
        raise TestbedError("no")

    with pytest.raises(TestbedError):
        shop.ensure(shop.artefact("thing"), "make thing", fail)
    assert list((tmp_path / "artefacts").iterdir()) == []
    assert list((tmp_path / "scratch").iterdir()) == []


def test_an_artefact_is_made_once(tmp_path: Path):
    shop = workshop.Workshop.at(tmp_path, silent_console())
    made: list[str] = []

    def make(target: Path, _log: Path) -> None:
        made.append(target.name)
        target.write_text("whole")

    for _ in range(2):
        assert shop.ensure(shop.artefact("thing"), "make thing", make).read_text() == "whole"
    assert made == ["thing"]


def test_the_first_failure_in_the_lanes_is_raised():
    def fail() -> None:
        raise TestbedError("broken")

    with pytest.raises(TestbedError, match="broken"):
        workshop.in_lanes([fail, lambda: None])


def test_a_failed_command_shows_the_end_of_what_it_wrote():
    error = CommandFailed(["go", "build"], "ended with status 1", log=None, tail="a\nb")
    assert str(error) == "`go build` ended with status 1; its last lines:\n  | a\n  | b"


def test_the_status_line_names_every_running_step_and_its_age():
    line = status_line({"compile": 0.0, "fetch": 60.0}, 65.0)
    assert line == "... compile (1:05), fetch (5 s)"
    assert clock_text(3601) == "60:01"


def silent_console():
    return Console(io.StringIO())
