"""Counts and latencies of one data-parallel rank, kept as plain numbers.

Observing must cost next to nothing per token: latencies of one pass are observed together, and
text is made when somebody asks for it (`server.metrics`).
"""

from bisect import bisect_left
from collections.abc import Sequence

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
"""Values of the label `finished_reason` in vLLM."""


class Latencies:
    """A histogram of seconds with vLLM's bounds."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        """Observations per bucket, not cumulative; the last bucket has no upper bound."""
        self.sum_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add `count` observations of the same length."""
        self.counts[bisect_left(self.bounds_s, seconds)] += count
        self.sum_s += seconds * count


class RankStats:
    """What vLLM's metrics count, for one rank."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.ttft = Latencies(TTFT_BUCKETS_S)
        self.itl = Latencies(ITL_BUCKETS_S)
        self.e2e = Latencies(LATENCY_BUCKETS_S)
