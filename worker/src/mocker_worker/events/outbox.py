"""A bounded queue of numbered events that knows which ranks have a hole in it.

From the loss of a rank's event until its next `cleared`, further events of the rank would only
mislead, so they are dropped; those that wait are taken out too. What begins with `cleared` makes
the rank whole, and always finds a place. So the queue holds at most its limit and the latest
snapshot of each rank.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from mocker_protocol.kv_events import AllBlocksCleared
from mocker_worker.events.hub import NumberedEvent

log = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 8192


class _Queued(NamedTuple):
    event: NumberedEvent
    is_counted: bool
    """Whether it takes a place of the limit; a snapshot does not."""


class Outbox:
    """Events of all ranks on their way out, oldest first."""

    def __init__(self, max_events: int = MAX_QUEUED_EVENTS) -> None:
        self._max_events = max_events
        self._queue: deque[_Queued] = deque()
        self._num_counted = 0
        self._num_pinned = 0
        self._lost_ranks: set[int] = set()
        self.dropped_events = 0
        self.changed = asyncio.Event()
        """Set when there may be something to do."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def lost_ranks(self) -> Sequence[int]:
        """Ranks that miss events and wait for their `cleared`; none while there is no room."""
        if self._num_counted > self._max_events // 2:
            return ()
        return sorted(self._lost_ranks)

    def put(self, events: Sequence[NumberedEvent]) -> None:
        """Append events, or drop them if their rank is lost or there is no room.

        Events of more than one rank begin with `cleared`.
        """
        if not events:
            return
        dp_rank = events[0].dp_rank
        begins_anew = isinstance(events[0].event, AllBlocksCleared)
        is_full = self._num_counted + len(events) > self._max_events
        if begins_anew:
            dp_ranks = {event.dp_rank for event in events}
            if is_full or not dp_ranks.isdisjoint(self._lost_ranks):
                self._drop_waiting(dp_ranks)
            self._lost_ranks -= dp_ranks
        elif dp_rank in self._lost_ranks:
            self.dropped_events += len(events)
            return
        elif is_full:
            log.warning("the KV event queue is full: events of rank %d are dropped", dp_rank)
            self.dropped_events += len(events)
            self.lose([dp_rank])
            return
        self._queue.extend(_Queued(event, not begins_anew) for event in events)
        self._num_counted += 0 if begins_anew else len(events)
        self.changed.set()

    def lose(self, dp_ranks: Iterable[int], *, even_sent: bool = False) -> None:
        """Note that consumers miss events of these ranks.

        Args:
            dp_ranks: Ranks that wait for their `cleared` now.
            even_sent: Whether to drop what `head` returned, too; not while that is being sent.
        """
        lost = set(dp_ranks)
        self._lost_ranks |= lost
        if even_sent:
            self._num_pinned = 0
        self._drop_waiting(lost)
        self.changed.set()

    def head(self, count: int) -> list[NumberedEvent]:
        """Return the oldest events; they stay until `take_off`, whatever else is dropped."""
        events = [queued.event for queued in islice(self._queue, count)]
        self._num_pinned = max(self._num_pinned, len(events))
        return events

    def take_off(self, count: int) -> None:
        """Remove the oldest events, which `head` returned."""
        for _ in range(count):
            self._num_counted -= self._queue.popleft().is_counted
        self._num_pinned = max(self._num_pinned - count, 0)

    def _drop_waiting(self, dp_ranks: set[int]) -> None:
        kept = [
            queued
            for index, queued in enumerate(self._queue)
            if index < self._num_pinned or queued.event.dp_rank not in dp_ranks
        ]
        self.dropped_events += len(self._queue) - len(kept)
        self._queue = deque(kept)
        self._num_counted = sum(queued.is_counted for queued in kept)
