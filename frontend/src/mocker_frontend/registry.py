"""What is known about the workers of one Dynamo namespace: a pure state machine.

Fed by the watch of the registration bucket. Time is an argument (monotonic seconds). A worker that
stops renewing its record is dropped after `expiry_s`, but only while NATS is connected: an outage
of NATS silences every worker at once and says nothing about any of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mocker_protocol.names import WorkerType
from mocker_protocol.registration import EXPIRY_S, HEARTBEAT_S, WorkerRegistration, WorkerState


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as the frontend sees it."""

    key: str
    """Key of its record in the bucket."""
    worker_type: WorkerType
    url: str
    state: WorkerState = WorkerState.READY
    suspect_until_s: float = 0.0
    """Until then it is the last choice: a connection to it has just failed."""
    max_model_len: int | None = None
    """Longest prompt plus answer in tokens, if it is known."""


@dataclass(slots=True)
class _Record:
    worker: Worker
    revision: int
    renewed_s: float


class Registry:
    """Workers by key; static workers never expire."""

    def __init__(self, static: Iterable[Worker] = (), *, expiry_s: float = EXPIRY_S) -> None:
        self._static = {worker.key: worker for worker in static}
        self._records: dict[str, _Record] = {}
        self._expired_revisions: dict[str, int] = {}
        self._expiry_s = expiry_s
        self._connected_since_s: float | None = None
        self._prefill_seen = any(
            worker.worker_type is WorkerType.PREFILL for worker in self._static.values()
        )

    @property
    def workers(self) -> list[Worker]:
        """All known workers, in the order of their keys."""
        found = [*self._static.values(), *(record.worker for record in self._records.values())]
        return sorted(found, key=lambda worker: worker.key)

    @property
    def max_model_len(self) -> int | None:
        """What fits into every worker, as far as they say; None if none does."""
        known = (worker.max_model_len for worker in self.workers)
        return min((length for length in known if length is not None), default=None)

    @property
    def prefill_seen(self) -> bool:
        """Whether a prefill worker has ever been known: then requests are meant to be split."""
        return self._prefill_seen

    @property
    def is_connected(self) -> bool:
        """Whether NATS is known to be reachable."""
        return self._connected_since_s is not None

    def put(self, key: str, registration: WorkerRegistration, *, revision: int, now: float) -> bool:
        """Take a record; return whether the worker is new or changed.

        A revision that was seen before is a replay after a new watch, not a sign of life.
        """
        record = self._records.get(key)
        if record is not None and record.revision == revision:
            return False
        if self._expired_revisions.get(key) == revision:
            return False
        self._expired_revisions.pop(key, None)
        worker = Worker(
            key,
            registration.worker_type,
            registration.url,
            registration.state,
            max_model_len=registration.max_model_len,
        )
        changed = record is None or replace(record.worker, suspect_until_s=0.0) != worker
        self._records[key] = _Record(worker, revision, now)
        self._prefill_seen |= worker.worker_type is WorkerType.PREFILL
        return changed

    def delete(self, key: str) -> bool:
        """Forget a worker that said goodbye; return whether it was known."""
        self._expired_revisions.pop(key, None)
        return self._records.pop(key, None) is not None

    def connected(self, now: float) -> None:
        """Note that NATS is reachable (again): records get one whole expiry to be renewed."""
        self._connected_since_s = now

    def disconnected(self) -> None:
        """Note that NATS is not reachable: nothing expires."""
        self._connected_since_s = None

    def expire(self, now: float) -> list[str]:
        """Drop workers that died without a word; return their keys."""
        since = self._connected_since_s
        if since is None or now - since < self._expiry_s:
            return []
        dead = [
            key for key, record in self._records.items() if now - record.renewed_s >= self._expiry_s
        ]
        for key in dead:
            self._expired_revisions[key] = self._records.pop(key).revision
        return dead

    def suspect(self, key: str, now: float) -> None:
        """Make a worker that could not be reached the last choice until it renews its record."""
        until = now + HEARTBEAT_S
        if key in self._records:
            record = self._records[key]
            record.worker = replace(record.worker, suspect_until_s=until)
        elif key in self._static:
            self._static[key] = replace(self._static[key], suspect_until_s=until)
