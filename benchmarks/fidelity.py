"""Compares the simulator with golden runs of Dynamo's offline replay, run by run.

    .venv/bin/python benchmarks/fidelity.py --traces DIR

DIR holds mooncake_conversation_trace.jsonl and mooncake_synthetic_trace.jsonl of
kvcache-ai/Mooncake (FAST25-release/traces, commit 3b5a594). With kv routing both draw lots among
equal workers, so means over several runs are compared. Exit code 1 if a run is not within its
tolerance.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

from mocker_simulator.cli import main as simulator
from mocker_simulator.fidelity import RATIO, RELATIVE, agrees, errors, mean_of, tolerance_of

DATA = Path(__file__).parent.parent / "tests/unit/simulator/data"
HEAD = (
    "| run | duration s | TTFT ms | TPOT ms | ITL ms | reused | "
    "worst error | points | within |\n|---|---|---|---|---|---|---|---|---|"
)
KV_HEAD = (
    "| run | runs | TTFT ms | TPOT ms | ITL ms | reused | "
    "worst error | points | within |\n|---|---|---|---|---|---|---|---|---|"
)
FIGURES = (
    ("duration_ms", 1000, 3),
    ("mean_ttft_ms", 1, 3),
    ("mean_tpot_ms", 1, 4),
    ("mean_itl_ms", 1, 4),
    (RATIO, 1, 4),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="of kv routing")
    parser.add_argument("--kv-only", action="store_true", help="leave out the other runs")
    arguments = parser.parse_args()
    missed = 0 if arguments.kv_only else compare_exact(arguments.traces)
    missed += compare_kv(arguments.traces, arguments.seeds)
    return int(missed > 0)


def compare_exact(traces: Path) -> int:
    """Print a row per run that draws no lots; returns how many are not within tolerance."""
    print(HEAD, flush=True)
    missed = 0
    for golden in json.loads((DATA / "dynamo_replay_1_6_1.json").read_text())["runs"]:
        if "kv" in golden["args"]:
            continue
        args = flags(golden, traces)
        ours = simulate(args)
        good = agrees(ours, golden, tolerance_of(args))
        missed += not good
        cells = [
            f"{mine} / {theirs}" for mine, theirs in zip(*map(one, (ours, golden)), strict=True)
        ]
        print(row(golden, cells, errors(ours, golden), good), flush=True)
    return missed


def compare_kv(traces: Path, seeds: int) -> int:
    """Print a row per run with kv routing; returns how many means are not within tolerance."""
    print("\n" + KV_HEAD, flush=True)
    missed = 0
    for golden in json.loads((DATA / "dynamo_kv_1_6_1.json").read_text())["runs"]:
        args = flags(golden, traces)
        ours = [simulate([*args, "--routing-seed", str(seed)]) for seed in range(seeds)]
        theirs = golden["repeats"]
        wrong = errors(mean_of(ours), mean_of(theirs))
        good = agrees(mean_of(ours), mean_of(theirs), tolerance_of(args))
        missed += not good
        cells = [f"{seeds} / {len(theirs)}"]
        cells += [
            f"{mine} / {other}" for mine, other in zip(spread(ours), spread(theirs), strict=True)
        ]
        print(row(golden, cells, wrong, good), flush=True)
    return missed


def one(figures: dict) -> list[str]:
    return [f"{figures[key] / scale:,.{digits}f}" for key, scale, digits in FIGURES]


def spread(runs: list[dict]) -> list[str]:
    """Mean, smallest and largest of each figure but the duration, which the last request sets."""
    cells = []
    for key, scale, digits in FIGURES[1:]:
        values = [run[key] / scale for run in runs]
        low, high = min(values), max(values)
        mean = sum(values) / len(values)
        cells.append(f"{mean:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})")
    return cells


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


def row(golden: dict, cells: list[str], wrong: dict[str, float], good: bool) -> str:
    name = " ".join(golden["args"]).replace("--", "").replace("mooncake_", "").replace(".jsonl", "")
    worst = max(wrong[key] for key in RELATIVE)
    verdict = f"{tolerance_of(golden['args']).relative:.2%}" if good else "**no**"
    return (
        "| "
        + " | ".join([name, *cells, f"{worst:.4%}", f"{wrong[RATIO] * 100:.2f}", verdict])
        + " |"
    )


if __name__ == "__main__":
    sys.exit(main())
