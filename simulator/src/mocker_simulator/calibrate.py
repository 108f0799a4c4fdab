"""`mocker-simulator calibrate`: a timing model from measured requests, and how well it predicts."""

import argparse
import csv
import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import fmean

from mocker_protocol.engine_args import EngineArgs, load_engine_args
from mocker_simulator.calibration import calibrate, relative, simulate
from mocker_simulator.engine_flags import engine_flags, read_text
from mocker_simulator.fleet import Outcome
from mocker_simulator.measured import Measured, read_measured, replay_of
from mocker_simulator.plots import Line, Point, plot
from mocker_simulator.records import RequestRecord
from mocker_simulator.traces import InvalidTrace

_SERIES = ("running", "waiting")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of the requests that were not fitted, or a curve of the whole run."""

    name: str
    simulated: float
    measured: float
    error: float
    """Relative; of a curve: the mean distance over the mean, alone if the mean is 0."""


def run(arguments: argparse.Namespace) -> str:
    """Calibrate, compare, and return what is to be printed.

    Raises:
        InvalidTrace: if a file of measurements is not what it should be.
        InvalidEngineArgs: if an engine argument is wrong.
        OSError: if a file cannot be read or written.
    """
    requests = read_measured(Path(arguments.requests))
    _check_answers(arguments.requests, requests)
    args = engine_args(arguments)
    timing = calibrate(requests, args, rounds=arguments.rounds)
    outcome = simulate(args, timing, replay_of(requests), sampling=True)
    _check_served(arguments.requests, outcome)
    found = compare_requests(outcome, requests)
    curves: list[Comparison] = []
    if arguments.timeseries:
        measured = read_series(Path(arguments.timeseries))
        curves = [compare_curves(outcome, measured, name) for name in _SERIES]
        if arguments.plot:
            Path(arguments.plot).write_text(picture(outcome, measured))
    model = timing.model_dump()
    if arguments.output:
        Path(arguments.output).write_text(json.dumps({"timing_model": model}) + "\n")
    if arguments.json:
        parts = {"held_out": _figures(found), "whole_run": _figures(curves)}
        return json.dumps({"timing_model": model} | parts)
    lines = [f"timing model  {json.dumps(model)}", "", *_table("not fitted", found)]
    if curves:
        lines += ["", *_table("whole run", curves)]
    return "\n".join(lines)


def _figures(found: list[Comparison]) -> dict[str, list[float]]:
    return {c.name: [c.simulated, c.measured, c.error] for c in found}


def _table(head: str, found: list[Comparison]) -> list[str]:
    return [
        f"{head:24}{'simulated':>14}{'measured':>14}{'error':>10}",
        *(f"{c.name:24}{c.simulated:14,.3f}{c.measured:14,.3f}{c.error:10.2%}" for c in found),
    ]


def _check_answers(file: str, requests: list[Measured]) -> None:
    if not all(any(r.output_tokens > 1 for r in requests[half::2]) for half in (0, 1)):
        raise InvalidTrace(
            f"{file}: half of the requests have no answer of two tokens; measure longer answers"
        )


def _check_served(file: str, outcome: Outcome) -> None:
    for record in outcome.records:
        if record.refused:
            raise InvalidTrace(
                f"{file}: an engine with these arguments refuses request {record.index + 1}: "
                f"{record.refused}"
            )


def engine_args(arguments: argparse.Namespace) -> EngineArgs:
    """Return the measured engine's arguments, from flags and an optional file."""
    file = arguments.extra_engine_args
    text = read_text(Path(file)) if file else "{}"
    args = load_engine_args(text, engine_flags(arguments))
    return args.model_copy(update={"publish_kv_events": False})


def compare_requests(outcome: Outcome, requests: list[Measured]) -> list[Comparison]:
    """Compare the requests that calibration did not look at: every second one."""
    ours, theirs = outcome.records[1::2], requests[1::2]

    def of(name: str, mine: Callable[[RequestRecord], float], real: list[float]) -> Comparison:
        simulated, measured = _mean([mine(record) for record in ours]), _mean(real)
        return Comparison(name, simulated, measured, relative(simulated, measured))

    return [
        of("mean TTFT, ms", lambda record: record.ttft_ms, [r.ttft_ms for r in theirs]),
        of("mean TPOT, ms", lambda record: record.tpot_ms, [r.tpot_ms for r in theirs]),
    ]


def read_series(path: Path) -> dict[str, list[Point]]:
    """Read a CSV with columns t (seconds), running and waiting.

    Raises:
        InvalidTrace: if a column is missing or no number, or there are no rows.
        OSError: if the file cannot be read.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        found = {name: [(float(row["t"]), float(row[name])) for row in rows] for name in _SERIES}
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidTrace(f"{path}: not a time series of t, running, waiting: {error}") from error
    if not rows:
        raise InvalidTrace(f"{path}: has no rows; give a CSV of t, running, waiting")
    return found


def compare_curves(outcome: Outcome, measured: dict[str, list[Point]], name: str) -> Comparison:
    """Compare a curve at the moments at which it was measured."""
    real = measured[name]
    ours = curve(outcome, name, [at for at, _ in real])
    distance = fmean(abs(a - b) for (_, a), (_, b) in zip(ours, real, strict=True))
    mean = fmean(value for _, value in real)
    return Comparison(
        f"{name} over time", fmean(y for _, y in ours), mean, distance / (mean or 1.0)
    )


def curve(outcome: Outcome, name: str, moments_s: list[float]) -> list[Point]:
    """Return how many requests were running or waiting at some moments."""
    rows = outcome.samples[0].rows
    ends, column = [row[0] for row in rows], 1 + _SERIES.index(name)
    at = [(moment, bisect_right(ends, moment * 1000) - 1) for moment in moments_s]
    return [(moment, float(rows[max(i, 0)][column])) for moment, i in at]


def picture(outcome: Outcome, measured: dict[str, list[Point]]) -> str:
    """Return the curves, measured and simulated, as a page of plots."""
    plots = (
        plot(
            f"{name.capitalize()} requests",
            [
                Line("measured", real),
                Line("simulated", curve(outcome, name, [at for at, _ in real])),
            ],
        )
        for name, real in measured.items()
    )
    return "<!doctype html><meta charset=utf-8>" + "".join(plots) + "\n"


def _mean(values: list[float]) -> float:
    return fmean(value for value in values if not isnan(value))
