"""Compares the simulator with golden runs of Dynamo's offline replay, run by run.

    .venv/bin/python benchmarks/fidelity.py --traces DIR

DIR holds mooncake_conversation_trace.jsonl and mooncake_synthetic_trace.jsonl of
kvcache-ai/Mooncake (FAST25-release/traces, commit 3b5a594). Exit code 1 if a run is not within
its tolerance.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

from mocker_simulator.cli import main as simulator
from mocker_simulator.fidelity import RATIO, RELATIVE, agrees, errors, tolerance_of

GOLDEN = Path(__file__).parent.parent / "tests/unit/simulator/data/dynamo_replay_1_6_1.json"
HEAD = (
    "| run | duration s | TTFT ms | TPOT ms | ITL ms | reused | "
    "worst error | points | within |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    print(HEAD, flush=True)
    missed = 0
    for golden in json.loads(GOLDEN.read_text())["runs"]:
        args = flags(golden, arguments.traces)
        ours = simulate(args)
        tolerance = tolerance_of(args)
        wrong = errors(ours, golden)
        good = agrees(ours, golden, tolerance)
        missed += not good
        print(row(golden, ours, wrong, tolerance.relative if good else None), flush=True)
    return int(missed > 0)


def flags(golden: dict, traces: Path) -> list[str]:
    """The golden run's flags, with the trace's path, or with the arrivals that Dynamo drew."""
    args: list[str] = list(golden["args"])
    if "--trace" in args:
        at = args.index("--trace") + 1
        args[at] = str(traces / args[at])
    if "arrivals_ms" in golden:
        args = [*same_arrivals(golden), *args[args.index("--workers") :]]
    return args


def same_arrivals(golden: dict) -> list[str]:
    file = Path(tempfile.mkdtemp()) / "arrivals.jsonl"
    rows = (
        {
            "timestamp": at,
            "input_length": 1000,
            "output_length": 100,
            "hash_ids": [2 * i, 2 * i + 1],
        }
        for i, at in enumerate(golden["arrivals_ms"])
    )
    file.write_text("\n".join(map(json.dumps, rows)))
    return ["--trace", str(file)]


def simulate(args: list[str]) -> dict:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = simulator(["run", "--json", *args])
    if code:
        raise SystemExit(code)
    return json.loads(output.getvalue())


def row(golden: dict, ours: dict, wrong: dict[str, float], within: float | None) -> str:
    name = " ".join(golden["args"]).replace("--", "").replace("mooncake_", "").replace(".jsonl", "")
    pairs = [
        f"{ours[key] / scale:,.{digits}f} / {golden[key] / scale:,.{digits}f}"
        for key, scale, digits in (
            ("duration_ms", 1000, 3),
            ("mean_ttft_ms", 1, 3),
            ("mean_tpot_ms", 1, 4),
            ("mean_itl_ms", 1, 4),
            (RATIO, 1, 4),
        )
    ]
    worst = max(wrong[key] for key in RELATIVE)
    verdict = "**no**" if within is None else f"{within:.2%}"
    cells = [name, *pairs, f"{worst:.4%}", f"{wrong[RATIO] * 100:.2f}", verdict]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
