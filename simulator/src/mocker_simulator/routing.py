"""How a request finds its worker."""

from enum import StrEnum
from typing import Protocol

from mocker_simulator.records import SimulatedRequest
from mocker_simulator.virtual_worker import VirtualWorker


class RoutingMode(StrEnum):
    """Names of the policies on the command line."""

    ROUND_ROBIN = "round-robin"
    KV = "kv"


class Router(Protocol):
    """Chooses among the workers of one role."""

    looks_at_caches: bool
    """Whether the choice depends on what the workers have cached."""

    def choose(self, request: SimulatedRequest, now_ms: float) -> VirtualWorker:
        """Return the worker to send a request to."""

    def prefilled(self, request: SimulatedRequest) -> None:
        """Hear that a request has its first token."""

    def completed(self, request: SimulatedRequest) -> None:
        """Hear that a worker is done with a request."""


class RoundRobin:
    """Takes turns."""

    looks_at_caches = False

    def __init__(self, workers: list[VirtualWorker]) -> None:
        self._workers = workers
        self._turn = 0

    def choose(self, request: SimulatedRequest, now_ms: float) -> VirtualWorker:
        """Return the worker whose turn it is."""
        worker = self._workers[self._turn]
        self._turn = (self._turn + 1) % len(self._workers)
        return worker

    def prefilled(self, request: SimulatedRequest) -> None:
        """Nothing depends on it."""

    def completed(self, request: SimulatedRequest) -> None:
        """Nothing depends on it."""
