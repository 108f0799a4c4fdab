"""Latency jitter: factors around 1 for the durations of passes. Pure."""

import random

MAX_SHARE = 1.0
_MAX_DEVIATION = 0.7
_MAX_SIGMAS = 3.0


class Jitter:
    """Draws from a normal distribution with mean 1, seeded."""

    def __init__(self, share: float = 0.0, *, seed: int = 0) -> None:
        self.share = share
        self._random = random.Random(seed)

    @property
    def share(self) -> float:
        """Standard deviation, 0 (none) to 1; may be set while running."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        if not 0 <= share <= MAX_SHARE:
            raise ValueError(f"must be a number from 0 to {MAX_SHARE:g}, not {share!r}")
        self._share = share
        self._bound = min(_MAX_DEVIATION, _MAX_SIGMAS * share)

    def factor(self) -> float:
        """Return the next factor, at most three deviations and at most 0.7 away from 1."""
        if not self._share:
            return 1.0
        deviation = self._random.gauss(0.0, self._share)
        return 1.0 + max(-self._bound, min(self._bound, deviation))
