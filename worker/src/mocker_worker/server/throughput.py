"""Tokens per second, for dialects that have gauges of them."""

from collections import deque
from collections.abc import Callable

from mocker_worker.driver import EngineDriver
from mocker_worker.server.rank_families import Read

WINDOW_S = 5.0
_SPACING_S = 0.5


class Throughput:
    """Mean rate of a counter since the scrape that is `WINDOW_S` old, or the latest one if older.

    So it is right for scrapes at any interval, and 0 after a while of idleness.
    """

    def __init__(self, count: Read, now_s: Callable[[], float]) -> None:
        self._count = count
        self._now_s = now_s
        self._seen: dict[int, deque[tuple[float, float]]] = {}
        """Times and counts by rank, oldest first."""

    def tokens_per_s(self, rank: EngineDriver) -> float:
        """Return a rank's rate; 0 at the first call."""
        now_s, count = self._now_s(), self._count(rank)
        seen = self._seen.setdefault(rank.dp_rank, deque())
        while len(seen) > 1 and now_s - seen[1][0] >= WINDOW_S:
            seen.popleft()
        if not seen:
            seen.append((now_s, count))
        began_s, began = seen[0]
        if now_s - seen[-1][0] >= _SPACING_S:
            seen.append((now_s, count))
        return (count - began) / (now_s - began_s) if now_s > began_s else 0.0
