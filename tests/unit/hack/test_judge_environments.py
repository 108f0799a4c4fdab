"""hack/testbed/judges.py: what is pinned, what a cached environment stands for, and refusals."""

import io
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hack"))

from testbed import judges, judges_cli, workshop
from testbed.console import Console
from testbed.errors import Unavailable
from testbed.golang import GoProgram


@pytest.fixture
def shop(tmp_path: Path) -> workshop.Workshop:
    return workshop.Workshop.at(tmp_path, Console(io.StringIO()))


@pytest.mark.parametrize(
    "judge", [*judges.PYTHON_JUDGES, *judges.PYTHON_RIVALS], ids=lambda judge: judge.name
)
def test_a_lock_has_what_was_asked_for_and_a_hash_for_every_package(judge: judges.PythonJudge):
    asked = (judges.LOCKS / f"{judge.name}.in").read_text().split()
    packages = [part for part in re.split(r"\n(?=\S)", judge.lock.read_text()) if "==" in part]
    names = [package.split()[0] for package in packages]
    assert set(asked) <= set(names)
    assert all("--hash=sha256:" in package for package in packages)


def test_another_lock_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judges, "LOCKS", tmp_path)
    judge = judges.PythonJudge("example")
    judge.lock.write_text("example==1")
    before = judge.folder
    judge.lock.write_text("example==2")
    assert before.startswith("example-cpython-3")
    assert judge.folder != before


def test_where_a_judge_has_no_package_nothing_is_installed(
    shop: workshop.Workshop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(judges.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(judges.platform, "libc_ver", lambda: ("", ""))
    with pytest.raises(Unavailable, match=r"dynamo-1\.6\.1 has packages for Linux .* has Darwin"):
        judges.install(shop)
    assert list((shop.cache / "artefacts").iterdir()) == []


def test_a_python_that_a_judge_refuses_is_named(
    shop: workshop.Workshop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(judges.sys, "version_info", (3, 14, 0))
    with pytest.raises(Unavailable, match=r"aiperf needs a Python below 3\.14, and this is 3\.14"):
        judges.install(shop, ["aiperf"])


def test_all_judges_are_found_below_one_folder(
    shop: workshop.Workshop, monkeypatch: pytest.MonkeyPatch
):
    def make(judge: judges.PythonJudge, environment: Path, _log: Path) -> None:
        (environment / "bin").mkdir(parents=True)
        (environment / "bin" / "python").write_text(judge.name)

    def compiled(shop: workshop.Workshop, _title: str, programs: list[GoProgram]) -> None:
        target = judges.built(shop, programs[0])
        target.parent.mkdir(parents=True)
        target.write_text("promtool")

    monkeypatch.setattr(judges, "_require_platform", lambda _judge: None)
    monkeypatch.setattr(judges, "_make", make)
    monkeypatch.setattr(judges, "ensure_programs", compiled)
    folder = judges.install_all(shop)
    assert {path.name for path in folder.iterdir()} == set(judges.NAMES)
    for judge in judges.PYTHON_JUDGES:
        assert (folder / judge.name / "bin" / "python").read_text() == judge.name
    assert (folder / "promtool" / "promtool").read_text() == "promtool"


def test_rivals_are_installed_by_name_alone(
    shop: workshop.Workshop, monkeypatch: pytest.MonkeyPatch
):
    made: list[str] = []

    def make(judge: judges.PythonJudge, environment: Path, _log: Path) -> None:
        environment.mkdir()
        made.append(judge.name)

    def compiled(_shop: workshop.Workshop, _title: str, programs: list[GoProgram]) -> None:
        made.extend(program.name for program in programs)

    monkeypatch.setattr(judges, "_require_platform", lambda _judge: None)
    monkeypatch.setattr(judges, "_make", make)
    monkeypatch.setattr(judges, "ensure_programs", compiled)
    judges.install_all(shop)
    assert not set(made) & set(judges.RIVALS)
    made.clear()
    places = judges.install(shop, judges.RIVALS)
    assert sorted(made) == sorted(judges.RIVALS)
    names = [place.name for place in places]
    assert all(name.startswith(rival) for name, rival in zip(names, judges.RIVALS, strict=True))


def test_a_judge_that_there_is_none_of_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("MOCKER_CACHE", str(tmp_path))
    monkeypatch.setattr("testbed.cli.signal.signal", lambda *_: None)
    assert judges_cli.main(["install", "guidellm"]) == 1
    assert "no judge is called guidellm: aiperf, dynamo-1.6.1" in capsys.readouterr().out
