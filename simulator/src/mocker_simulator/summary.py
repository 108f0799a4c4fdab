"""What a simulation found, in figures.

Percentiles interpolate linearly between ranks. Those of the inter-token latency come from
stretches of gaps that grow evenly, so they cost by events and not by tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean

from mocker_simulator.fleet import Outcome
from mocker_simulator.records import RequestRecord

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency in ms; all 0 when nothing was measured."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "Latency":
        """Describe the values that are not NaN."""
        ordered = sorted(value for value in values if not isnan(value))
        if not ordered:
            return cls()
        return cls(fmean(ordered), *(percentile(ordered, share / 100) for share in PERCENTILES))


@dataclass(frozen=True, slots=True)
class Summary:
    """A simulation's figures."""

    num_requests: int
    """Finished ones."""
    num_refused: int
    total_input_tokens: int
    total_output_tokens: int
    duration_ms: float
    """From time 0 to the last token."""
    ttft: Latency
    tpot: Latency
    """Per request: mean time between its tokens."""
    itl: Latency
    """Over all gaps between tokens."""
    e2e: Latency
    prefix_cache_reused_ratio: float
    """Share of the prompt tokens found in the cache, at each request's latest admission."""
    first_admission_prefix_cache_reused_ratio: float
    preemptions: int

    def to_json(self) -> dict[str, float | int]:
        """Return the figures under flat names."""
        seconds = self.duration_ms / 1000 or float("inf")
        figures: dict[str, float | int] = {
            "num_requests": self.num_requests,
            "num_refused": self.num_refused,
            "total_input_tokens": self.total_input_tokens,
            "total_output_tokens": self.total_output_tokens,
            "duration_ms": round(self.duration_ms, 4),
            "request_throughput_rps": round(self.num_requests / seconds, 4),
            "output_throughput_tok_s": round(self.total_output_tokens / seconds, 4),
        }
        for name in ("ttft", "tpot", "itl", "e2e"):
            latency: Latency = getattr(self, name)
            for figure in ("mean", "p50", "p90", "p99"):
                figures[f"{figure}_{name}_ms"] = round(getattr(latency, figure), 4)
        figures["prefix_cache_reused_ratio"] = round(self.prefix_cache_reused_ratio, 6)
        figures["first_admission_prefix_cache_reused_ratio"] = round(
            self.first_admission_prefix_cache_reused_ratio, 6
        )
        figures["preemptions"] = self.preemptions
        return figures


def summarize(outcome: Outcome) -> Summary:
    """Sum an outcome up."""
    records = [record for record in outcome.records if record.finish_ms is not None]
    prompts = sum(record.prompt_tokens for record in records)
    gaps = sum(record.received_tokens - 1 for record in records)
    spans = sum((record.finish_ms or 0) - (record.first_token_ms or 0) for record in records)
    itl = stretch_percentiles(outcome.gaps.stretches, PERCENTILES)

    def mean_of(tokens: Callable[[RequestRecord], int]) -> float:
        return sum(map(tokens, records)) / prompts if prompts else 0.0

    return Summary(
        num_requests=len(records),
        num_refused=sum(bool(record.refused) for record in outcome.records),
        total_input_tokens=prompts,
        total_output_tokens=sum(record.received_tokens for record in records),
        duration_ms=max((record.finish_ms or 0 for record in records), default=0.0),
        ttft=Latency.of([record.ttft_ms for record in records]),
        tpot=Latency.of([record.tpot_ms for record in records]),
        itl=Latency(spans / gaps, *itl) if gaps else Latency(),
        e2e=Latency.of([record.e2e_ms for record in records]),
        prefix_cache_reused_ratio=mean_of(lambda record: record.reused_tokens),
        first_admission_prefix_cache_reused_ratio=mean_of(lambda r: r.first_reused_tokens),
        preemptions=outcome.preemptions,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of ascending values lie, interpolated."""
    rank = share * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def stretch_percentiles(
    stretches: Sequence[tuple[float, float, int]], shares: Sequence[int]
) -> list[float]:
    """Return percentiles of values that are given as evenly growing stretches.

    Args:
        stretches: First value, last value (not smaller), and number of values.
        shares: Ascending, in percent.
    """
    total = sum(count for _, _, count in stretches)
    if not total:
        return [0.0 for _ in shares]
    edges: list[tuple[float, int, float]] = []
    for first, last, count in stretches:
        if count <= 0:
            continue
        if last - first > 1e-9 * last:
            density = count / (last - first)
            edges.append((first, 0, density))
            edges.append((last, 0, -density))
        else:
            edges.append((last, count, 0.0))
    edges.sort()
    return _sweep(edges, [share / 100 * total for share in shares])


def _sweep(edges: list[tuple[float, int, float]], wanted: list[float]) -> list[float]:
    """Walk up the values and note where the number of values passed reaches each wanted one."""
    found: list[float] = []
    passed, density, at = 0.0, 0.0, edges[0][0]
    for value, jump, change in edges:
        while len(found) < len(wanted) and passed + density * (value - at) >= wanted[len(found)]:
            found.append(at + (wanted[len(found)] - passed) / density if density > 0 else value)
        passed += density * (value - at)
        at, density = value, density + change
        while len(found) < len(wanted) and passed + jump >= wanted[len(found)]:
            found.append(value)
        passed += jump
    return found + [at] * (len(wanted) - len(found))
