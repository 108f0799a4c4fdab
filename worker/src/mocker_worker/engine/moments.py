"""Exact count, sum and variance of lengths in tokens, kept up to date one value at a time."""

import msgspec


class Moments(msgspec.Struct):
    """Integers throughout, so that adding and removing the same values gives exactly nothing."""

    count: int = 0
    total: int = 0
    squares: int = 0

    def add(self, value: int) -> None:
        """Count `value` in."""
        self.count += 1
        self.total += value
        self.squares += value * value

    def remove(self, value: int) -> None:
        """Take out a value that was added."""
        self.count -= 1
        self.total -= value
        self.squares -= value * value

    @property
    def variance(self) -> float:
        """Population variance; 0 of nothing."""
        if self.count == 0:
            return 0.0
        return (self.count * self.squares - self.total**2) / self.count**2
