"""How a request finds its worker: the frontend's own policies, among virtual workers."""

from collections import Counter
from enum import StrEnum
from typing import Protocol

from mocker_frontend.registry import Worker
from mocker_frontend.routing.policies import RoutingMode as FrontendMode
from mocker_frontend.routing.policies import make_policy
from mocker_simulator.records import SimulatedRequest
from mocker_simulator.virtual_worker import VirtualWorker


class RoutingMode(StrEnum):
    """Names of the policies on the command line."""

    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"
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


class FrontendRouter:
    """A policy of the live frontend, with the requests that it has sent and not seen finished."""

    looks_at_caches = False

    def __init__(self, workers: list[VirtualWorker], mode: FrontendMode) -> None:
        self._policy = make_policy(mode)
        self._workers = {f"{worker.number:09}": worker for worker in workers}
        self._candidates = [
            Worker(key, worker.engine.args.worker_type, url="")
            for key, worker in self._workers.items()
        ]
        self._outstanding: Counter[str] = Counter()
        self._sent: dict[int, str] = {}

    def choose(self, request: SimulatedRequest, now_ms: float) -> VirtualWorker:
        """Return the worker that the policy takes."""
        key = self._policy.choose(self._candidates, self._outstanding).key
        self._outstanding[key] += 1
        self._sent[request.record.index] = key
        return self._workers[key]

    def prefilled(self, request: SimulatedRequest) -> None:
        """Nothing depends on it."""

    def completed(self, request: SimulatedRequest) -> None:
        """Take a request off its worker's count."""
        self._outstanding[self._sent.pop(request.record.index)] -= 1


def round_robin(workers: list[VirtualWorker]) -> Router:
    """Return a router that takes turns."""
    return FrontendRouter(workers, FrontendMode.ROUND_ROBIN)


def least_loaded(workers: list[VirtualWorker]) -> Router:
    """Return a router that takes the worker with the fewest requests."""
    return FrontendRouter(workers, FrontendMode.LEAST_LOADED)
