"""Which workers are candidates at all, and how much each of them has to do.

Ready workers come first. One that drains still finishes what it gets, so it is taken rather than
failing a request; one that has just refused a connection is the last resort.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from mocker_frontend.registry import Worker
from mocker_frontend.routing.policies import RoutingMode, RoutingPolicy, make_policy
from mocker_protocol.names import WorkerType
from mocker_protocol.registration import WorkerState


def best_tier(workers: Sequence[Worker], now: float) -> list[Worker]:
    """Return the workers of the best tier that is not empty: ready, draining, suspect."""
    tiers: tuple[list[Worker], list[Worker], list[Worker]] = ([], [], [])
    for worker in workers:
        if worker.suspect_until_s > now:
            tiers[2].append(worker)
        else:
            tiers[0 if worker.state is WorkerState.READY else 1].append(worker)
    return next((tier for tier in tiers if tier), [])


class Selector:
    """Chooses workers of a role with one policy per role, and counts outstanding requests."""

    def __init__(self, mode: RoutingMode) -> None:
        self._policies: dict[WorkerType, RoutingPolicy] = {
            role: make_policy(mode) for role in WorkerType
        }
        self._outstanding: Counter[str] = Counter()

    @property
    def outstanding(self) -> Counter[str]:
        """Requests sent and not finished, by worker key."""
        return self._outstanding

    def choose(
        self, workers: Sequence[Worker], role: WorkerType, *, tried: Collection[str], now: float
    ) -> Worker | None:
        """Return the worker to try next; None when every worker of the role was tried.

        Args:
            workers: All known workers, ordered by key.
            role: What the worker must be.
            tried: Keys of workers that have failed this request.
            now: Monotonic seconds.
        """
        fit = [w for w in workers if w.worker_type is role and w.key not in tried]
        candidates = best_tier(fit, now)
        if not candidates:
            return None
        return self._policies[role].choose(candidates, self._outstanding)

    @contextmanager
    def sending(self, worker: Worker) -> Iterator[None]:
        """Count one request against a worker for as long as it lasts."""
        self._outstanding[worker.key] += 1
        try:
            yield
        finally:
            self._outstanding[worker.key] -= 1
            if not self._outstanding[worker.key]:
                del self._outstanding[worker.key]
