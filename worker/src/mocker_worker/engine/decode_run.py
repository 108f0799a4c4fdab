"""Passes that differ in nothing but the length of the contexts, taken as one.

While nobody comes or goes, each pass decodes one token for the same requests, so the sum of their
contexts grows by the same amount and the time of a pass is a quadratic in its number. The time of
any stretch of such passes is then a sum in closed form: its cost does not grow with the tokens.
"""

import sys
from dataclasses import dataclass

FOREVER = sys.maxsize
"""Passes for which a cost holds that nothing but an event ends."""


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Milliseconds of pass number i = 0, 1, ...: constant + linear * i + quadratic * i**2."""

    constant: float
    linear: float
    quadratic: float
    num_passes: int
    """Passes for which it holds, at least 1."""

    def scaled(self, factor: float) -> "DecodeCost":
        """Return the cost with every pass `factor` times as long."""
        return DecodeCost(
            self.constant * factor, self.linear * factor, self.quadratic * factor, self.num_passes
        )


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """What the coming passes have in common; nothing has been computed yet."""

    num_requests: int
    """Requests that get a token in every pass."""
    num_passes: int
    """Passes until something else happens: a request ends, blocks run out, the formula changes."""
    cost: DecodeCost

    def pass_ms(self, index: int) -> float:
        """Return the length of pass number `index`, from 0."""
        cost = self.cost
        return cost.constant + index * (cost.linear + index * cost.quadratic)

    def elapsed_ms(self, passes: int) -> float:
        """Return the length of the first `passes` passes together."""
        cost, n = self.cost, passes
        ones = n * cost.constant
        if n < 2:
            return ones
        sums = n * (n - 1) / 2
        return ones + sums * (cost.linear + (2 * n - 1) / 3 * cost.quadratic)

    def passes_until(self, elapsed_ms: float) -> int:
        """Return how many passes start before `elapsed_ms`: at least 1, at most `num_passes`."""
        low, high = 1, self.num_passes
        if self.cost.constant > 0:
            guess = int(elapsed_ms / self.cost.constant)
            low, high = self._bracket(elapsed_ms, guess)
        while low < high:
            middle = (low + high) // 2
            if self.elapsed_ms(middle) < elapsed_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _bracket(self, elapsed_ms: float, guess: int) -> tuple[int, int]:
        """Return bounds near a guess that is right for passes of equal length."""
        guess = min(max(guess, 1), self.num_passes)
        if self.elapsed_ms(guess) < elapsed_ms:
            return guess, self.num_passes
        step = 1
        while guess - step > 1 and self.elapsed_ms(guess - step) >= elapsed_ms:
            step *= 2
        return max(guess - step, 1), guess
