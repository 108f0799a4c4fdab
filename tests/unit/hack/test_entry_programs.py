"""hack/test.py, hack/run.py and hack/chart.py: verdicts, clean-up, and parsing."""

import importlib.util
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import chart

HACK = Path(__file__).resolve().parents[3] / "hack"


def load(name: str) -> ModuleType:
    """A program of hack/ as a module, under a name that the standard library does not have."""
    spec = importlib.util.spec_from_file_location(f"hack_{name}", HACK / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


story, runner = load("run"), load("test")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that the runner starts: hack/cluster.py's commands, and `pytest TIER ...`."""
    started: list[str] = []

    def run(command: list[str], **_: Any) -> tuple[int, str]:
        if command[1] == "-m":
            started.append(" ".join(["pytest", *(Path(folder).name for folder in command[3:])]))
        else:
            started.append(command[2])
        return 0, ""

    monkeypatch.setattr(runner, "_run", run)
    monkeypatch.setattr(runner, "_assets", dict)
    monkeypatch.setattr(runner, "_judges", dict)
    monkeypatch.setattr(runner, "_cluster", dict)
    monkeypatch.setattr(runner.signal, "signal", lambda *_: None)
    monkeypatch.delenv("CI", raising=False)
    return started


@pytest.mark.parametrize(
    ("failure", "in_ci", "code"),
    [("PreparationFailed", "", 1), ("NotToBeHad", "", 0), ("NotToBeHad", "true", 1)],
)
def test_a_tier_that_cannot_be_prepared_leaves_the_others_and_is_named_with_its_reason(
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: str,
    in_ci: str,
    code: int,
):
    def fail() -> dict[str, str]:
        raise getattr(runner, failure)("no room")

    monkeypatch.setattr(runner, "_assets", fail)
    monkeypatch.setenv("CI", in_ci)
    assert runner.main(["unit", "apiserver", "cluster"]) == code
    assert calls == ["pytest unit cluster", "down"]
    assert "NOT RUN: the apiserver tier: no room" in capsys.readouterr().out


def test_an_interrupted_preparation_is_followed_by_the_clean_up(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
):
    def interrupted() -> dict[str, str]:
        raise runner.Terminated

    monkeypatch.setattr(runner, "_cluster", interrupted)
    assert runner.main(["cluster"]) == 130
    assert calls == ["down"]


def test_a_terminated_runner_waits_until_its_program_has_cleaned_up(tmp_path: Path):
    done = tmp_path / "done"
    inner = (
        "import os, pathlib, signal, time\n"
        # A shell's background job, which CI may be, ignores SIGINT and so would its children.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    os.kill(os.getppid(), signal.SIGTERM)\n    time.sleep(60)\n"
        f"except KeyboardInterrupt:\n    time.sleep(0.2)\n    pathlib.Path({str(done)!r}).touch()\n"
    )
    before = signal.signal(signal.SIGTERM, runner._terminate)
    try:
        with pytest.raises(runner.Terminated):
            runner._run([sys.executable, "-c", inner])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exists()


def test_a_shell_line_becomes_a_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/bin")
    assert runner.exported("export PATH='/my tools':\"$PATH\"") == ("PATH", "/my tools:/bin")
    assert runner.exported("export KUBECONFIG='/a b'") == ("KUBECONFIG", "/a b")


GOOD = {
    "ready": True,
    "requests_ok": story.REQUESTS,
    "kv_events": 4,
    "decision_id": 7,
    "scaled_decision_id": 7,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"ready": False}, ["the resource is not Ready"]),
        ({"requests_ok": story.REQUESTS - 1}, ["not all 8 requests were answered"]),
        ({"kv_events": 0}, ["no KV event was seen"]),
        ({"scaled_decision_id": 6}, ["the acknowledgement is of another decision"]),
    ],
)
def test_the_story_succeeds_only_when_every_part_of_it_did(change: dict[str, Any], said: list[str]):
    assert story.shortcomings(GOOD | change) == said


def test_prompts_share_a_prefix_within_a_run_and_none_between_runs():
    first, second, later = story.prompt("a", 1), story.prompt("a", 2), story.prompt("b", 1)
    shared = len(story.PREFIX) - len("{run}") + 1
    assert first[:shared] == second[:shared]
    assert first != second
    assert first[:8] != later[:8]


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("localhost/mocker:dev", ("localhost/mocker", "dev")),
        ("host:5000/mocker", ("host:5000/mocker", "latest")),
        ("host:5000/mocker:1", ("host:5000/mocker", "1")),
        ("mocker", ("mocker", "latest")),
        ("mocker@sha256:ab", ("mocker@sha256", "ab")),
    ],
)
def test_an_image_reference_is_split_at_its_tag(image: str, parts: tuple[str, str]):
    assert chart.split_reference(image) == parts
