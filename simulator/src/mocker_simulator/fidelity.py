"""How far a simulation is from another engine's figures for the same input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

EQUAL = ("num_requests", "total_input_tokens", "total_output_tokens")
RELATIVE = ("duration_ms", "mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms")
RATIO = "prefix_cache_reused_ratio"
_ROUNDING = 5e-5
"""Figures are compared as they are printed, with four digits after the point."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What counts as agreement: a relative error, and points of the reused ratio."""

    relative: float
    ratio: float


def tolerance_of(args: list[str]) -> Tolerance:
    """Return what is asked of a run: routing by KV draws lots, a hand-over has more steps."""
    if "kv" in args:
        return Tolerance(0.03, 0.005)
    return Tolerance(0.005 if "--prefill" in args else 0.0001, 0.001)


def mean_of(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each figure over runs that drew different lots."""
    return {name: fmean(run[name] for run in runs) for name in (*EQUAL, *RELATIVE, RATIO)}


def errors(ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, float]:
    """Return the relative error of each duration, and the difference of the reused ratio."""
    found: dict[str, float] = {}
    for name in RELATIVE:
        difference = max(abs(ours[name] - theirs[name]) - _ROUNDING, 0.0)
        found[name] = difference / theirs[name] if theirs[name] else difference
    found[RATIO] = max(abs(ours[RATIO] - theirs[RATIO]) - _ROUNDING, 0.0)
    return found


def agrees(ours: Mapping[str, float], theirs: Mapping[str, float], tolerance: Tolerance) -> bool:
    """Whether a run is within what is asked of it."""
    wrong = errors(ours, theirs)
    return (
        all(ours[name] == theirs[name] for name in EQUAL)
        and all(wrong[name] <= tolerance.relative for name in RELATIVE)
        and wrong[RATIO] <= tolerance.ratio
    )
