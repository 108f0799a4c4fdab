"""Events of `events.k8s.io/v1`: deterministic names, so that a repetition is a count and not a row.

After creation the server lets only `series` change. Counts are kept in memory, for the latest names
only; after a restart a repetition counts from two.
"""

import hashlib
from collections import OrderedDict
from datetime import UTC, datetime

from mocker_operator import constants
from mocker_operator.reconcile.model import Event, Manifest

CONTROLLER = f"{constants.GROUP}/{constants.FIELD_MANAGER}"
MAX_NOTE_LENGTH = 1024
_REMEMBERED = 1024


class EventSeries:
    """How often each event was posted; remembers the latest names only."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def count(self, name: str) -> int:
        """Count one more occurrence and return how many there were: 1 for the first."""
        count = self._counts.pop(name, 0) + 1
        self._counts[name] = count
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)
        return count

    def forget(self, name: str) -> None:
        """Begin a new series with the next occurrence."""
        self._counts[name] = 1


def event_manifest(resource: Manifest, event: Event, now: datetime) -> Manifest:
    """Return the event as the API server wants it created."""
    metadata = resource["metadata"]
    identity = "\0".join((metadata["uid"], event.type, event.reason, event.message))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "eventTime": _micro_time(now),
        "type": str(event.type),
        "reason": event.reason,
        "action": "Reconcile",
        "note": event.message[:MAX_NOTE_LENGTH],
        "reportingController": CONTROLLER,
        "reportingInstance": constants.FIELD_MANAGER,
        "regarding": {
            "apiVersion": constants.API_VERSION,
            "kind": constants.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
    }


def series_patch(count: int, now: datetime) -> Manifest:
    """Return the merge patch that says how often the event has happened (at least twice)."""
    return {"series": {"count": max(2, count), "lastObservedTime": _micro_time(now)}}


def _micro_time(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
