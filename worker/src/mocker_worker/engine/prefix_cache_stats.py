"""Figures of the prefix cache: token counters since the start, and a running mean."""

from collections import deque


class PrefixCacheStats:
    """Counts every request once, when it is first admitted; a preemption does not count again."""

    def __init__(self, window: int = 1000) -> None:
        """Average over the latest `window` admissions (Dynamo's figure)."""
        self.queries_tokens = 0
        self.hits_tokens = 0
        self._rates: deque[float] = deque(maxlen=window)
        self._sum = 0.0

    @property
    def hit_rate(self) -> float:
        """Mean share of cached prompt tokens over the window, 0..1; 0 while it is empty."""
        return min(max(self._sum / len(self._rates), 0.0), 1.0) if self._rates else 0.0

    def record(self, cached_tokens: int, prompt_tokens: int) -> None:
        """Count an admission; the oldest rate drops out of a full window."""
        self.queries_tokens += prompt_tokens
        self.hits_tokens += cached_tokens
        if len(self._rates) == self._rates.maxlen:
            self._sum -= self._rates[0]
        self._rates.append(cached_tokens / prompt_tokens)
        self._sum += self._rates[-1]
