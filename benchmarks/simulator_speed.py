"""Measures the simulator as a whole process: against Dynamo's replay, and against longer answers.

    .venv/bin/python benchmarks/simulator_speed.py --traces DIR [--dynamo-python PYTHON]

DIR holds mooncake_conversation_trace.jsonl; PYTHON is an interpreter with ai-dynamo 1.6.1 (see
dynamo_golden.py). Both run the whole trace on four aggregated workers, round-robin, in turns. The
ratio of CPU seconds counts: wall time depends on what else the machine does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
SIMULATOR = [sys.executable, "-m", "mocker_simulator", "run", "--json"]


@dataclass
class Cost:
    """Of one process, from its start to its end."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR")
    parser.add_argument("--dynamo-python", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    trace = arguments.traces / "mooncake_conversation_trace.jsonl"
    load = ["--trace", str(trace), "--workers", "4"]
    ours, theirs = [], []
    for _ in range(arguments.rounds):
        ours.append(run([*SIMULATOR, *load]))
        if arguments.dynamo_python:
            script = str(HERE / "dynamo_golden.py")
            theirs.append(run([arguments.dynamo_python, script, "one", "--", *load]))
    show("simulator", ours)
    if theirs:
        show("Dynamo's replay", theirs)
        ratio = median(a.cpu_s / b.cpu_s for a, b in zip(ours, theirs, strict=True))
        wall = median(a.wall_s / b.wall_s for a, b in zip(ours, theirs, strict=True))
        print(f"ratio: CPU {ratio:.2f}, wall {wall:.2f}")
    print("\nfour workers, the first 2000 requests, answers n times as long:")
    for times in (1, 2, 4, 8):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.writelines(longer(trace, times))
            file.flush()
            cost = run([*SIMULATOR, "--trace", file.name, "--workers", "4"])
        print(f"  n = {times}: {cost.cpu_s:.2f} s CPU", flush=True)
    return 0


def longer(trace: Path, times: int) -> list[str]:
    """Requests with longer answers, as much further apart, so that the load stays the same."""
    rows = [json.loads(line) for line in trace.read_text().splitlines()[:2000]]
    for row in rows:
        row["output_length"] *= times
        row["timestamp"] *= times
    return [json.dumps(row) + "\n" for row in rows]


def run(command: list[str]) -> Cost:
    began = time.perf_counter()
    quiet = os.environ | {"DYN_LOG": "error"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=quiet)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} failed")
    process.returncode = 0
    return Cost(
        time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    )


def show(name: str, costs: list[Cost]) -> None:
    runs = ", ".join(
        f"{c.cpu_s:.2f} s CPU ({c.wall_s:.2f} wall, {c.peak_mb:.0f} MB)" for c in costs
    )
    print(f"{name}: {runs}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
