"""The simulator against Dynamo 1.6.1's offline replay (see data/README.md)."""

import json
from pathlib import Path

import pytest

from mocker_simulator.cli import main
from mocker_simulator.fidelity import Tolerance, agrees, errors, tolerance_of

DATA = Path(__file__).parent / "data"
CUT = json.loads((DATA / "dynamo_cut.json").read_text())
WHOLE = json.loads((DATA / "dynamo_replay_1_6_1.json").read_text())
SYNTHETIC = [run for run in WHOLE["runs"] if "--trace" not in run["args"]]
APPROXIMATE = {
    "small cache, fifo": Tolerance(0.0005, 0.0),
}
"""Cases in which one request differs for a reason that docs/fidelity.md gives."""


def run(args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict, list]:
    rows = tmp_path / "rows.jsonl"
    assert main(["run", "--json", "--per-request", str(rows), *args]) == 0
    figures = json.loads(capsys.readouterr().out)
    return figures, [json.loads(line) for line in rows.read_text().splitlines()]


@pytest.mark.parametrize("name", CUT["cases"])
def test_every_request_of_a_real_trace_has_the_times_that_dynamo_gives_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CUT["cases"][name]
    figures, rows = run(["--trace", str(DATA / CUT["trace"]), *case["args"]], tmp_path, capsys)
    keys = ("arrival_ms", "first_token_ms", "finish_ms", "input_tokens", "output_tokens")
    ours = sorted([*(row[key] for key in keys), row["reused_input_tokens"]] for row in rows)
    if name in APPROXIMATE:
        assert agrees(figures, case, APPROXIMATE[name]), errors(figures, case)
        return
    for mine, theirs in zip(ours, case["requests"], strict=True):
        assert mine == [pytest.approx(value, rel=1e-9, abs=1e-3) for value in theirs]
    assert agrees(figures, case, tolerance_of([]))


@pytest.mark.parametrize("golden", SYNTHETIC, ids=lambda run: " ".join(run["args"]))
def test_a_synthetic_load_has_the_figures_that_dynamo_gives_it(
    golden: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = golden["args"]
    if "arrivals_ms" in golden:
        args = [*same_arrivals(golden, tmp_path), *args[args.index("--workers") :]]
    figures, _ = run(args, tmp_path, capsys)
    assert agrees(figures, golden, tolerance_of(args)), errors(figures, golden)


def same_arrivals(golden: dict, tmp_path: Path) -> list[str]:
    """A trace with the random arrivals that Dynamo drew."""
    trace = tmp_path / "arrivals.jsonl"
    rows = [
        {
            "timestamp": at,
            "input_length": 1000,
            "output_length": 100,
            "hash_ids": [2 * index, 2 * index + 1],
        }
        for index, at in enumerate(golden["arrivals_ms"])
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    return ["--trace", str(trace)]


@pytest.mark.parametrize(("blocks", "admitted_ms"), [(10, 1275.253323), (11, 108.333939)])
def test_a_block_that_two_requests_computed_takes_room_twice(
    blocks: int, admitted_ms: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two equal prompts of two whole blocks, and when Dynamo 1.6.1 admits a third request."""
    trace = tmp_path / "twins.jsonl"
    rows = [(0, 128, 50, [1, 2]), (0, 128, 50, [1, 2]), (100, 384, 5, [11, 12, 13, 14, 15, 16])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    trace.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    args = ["--trace", str(trace), "--trace-block-size", "64", "--num-gpu-blocks", str(blocks)]
    _, found = run(args, tmp_path, capsys)
    assert found[2]["first_admit_ms"] == pytest.approx(admitted_ms, abs=1e-5)
