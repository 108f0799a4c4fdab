"""Routing policies: choose one of the workers that are equally fit.

A policy sees candidates of one role in the order of their keys and remembers at most the last
choice, so the choice stays fair when workers come and go.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from mocker_frontend.registry import Worker


class RoutingMode(StrEnum):
    """Names of the policies on the command line."""

    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"


class RoutingPolicy(Protocol):
    """Chooses among workers of one role."""

    def choose(self, candidates: Sequence[Worker], outstanding: Mapping[str, int]) -> Worker:
        """Return one of the candidates.

        Args:
            candidates: At least one worker, ordered by key.
            outstanding: Requests that this frontend has sent and not seen finished, by key;
                absent means none.
        """


class RoundRobin:
    """Takes turns by key: the first worker after the last choice."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Sequence[Worker], outstanding: Mapping[str, int]) -> Worker:
        """Return the worker whose turn it is."""
        chosen = next((w for w in candidates if w.key > self._last), candidates[0])
        self._last = chosen.key
        return chosen


class LeastLoaded:
    """Takes the worker with the fewest outstanding requests; equals take turns."""

    def __init__(self) -> None:
        self._turns = RoundRobin()

    def choose(self, candidates: Sequence[Worker], outstanding: Mapping[str, int]) -> Worker:
        """Return the least loaded worker."""
        least = min(outstanding.get(worker.key, 0) for worker in candidates)
        idle = [worker for worker in candidates if outstanding.get(worker.key, 0) == least]
        return self._turns.choose(idle, outstanding)


def make_policy(mode: RoutingMode) -> RoutingPolicy:
    """Return a fresh policy."""
    return RoundRobin() if mode is RoutingMode.ROUND_ROBIN else LeastLoaded()
