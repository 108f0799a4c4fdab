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
from typing import NamedTuple

from mocker_protocol.kv_events import AllBlocksCleared, BlockStored, count_blocks
from mocker_worker.events.hub import NumberedEvent

log = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 8192
BLOCKS_PER_PLACE = 16
"""An event with more blocks takes more places: events of long prompts need memory, too."""


class _Queued(NamedTuple):
    event: NumberedEvent
    num_blocks: int
    places: int
    is_counted: bool
    """Whether its places are taken from others; those of a snapshot are not."""


class Outbox:
    """Events of all ranks on their way out, oldest first."""

    def __init__(self, max_events: int = MAX_QUEUED_EVENTS) -> None:
        self._max_places = max_events
        self._queue: deque[_Queued] = deque()
        self._num_places = 0
        self._num_counted_places = 0
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
        if self._num_counted_places > self._max_places // 2:
            return ()
        return sorted(self._lost_ranks)

    def put(self, events: Sequence[NumberedEvent]) -> None:
        """Append events, or drop them if their rank is lost or there is no room.

        Events of more than one rank begin with `cleared`.
        """
        if not events:
            return
        if isinstance(events[0].event, AllBlocksCleared):
            self._put_anew(events)
        elif events[0].dp_rank in self._lost_ranks:
            self.dropped_events += len(events)
        else:
            self._put_next(events)

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

    def head(self, max_events: int, max_blocks: int) -> list[NumberedEvent]:
        """Return the oldest events; they stay until `take_off`, whatever else is dropped.

        The first one is among them even if it has more blocks.
        """
        events: list[NumberedEvent] = []
        for queued in self._queue:
            max_blocks -= queued.num_blocks
            if len(events) == max_events or (events and max_blocks < 0):
                break
            events.append(queued.event)
        self._num_pinned = max(self._num_pinned, len(events))
        return events

    def take_off(self, count: int) -> None:
        """Remove the oldest events, which `head` returned."""
        for _ in range(count):
            self._count(self._queue.popleft(), -1)
        self._num_pinned = max(self._num_pinned - count, 0)

    def _put_anew(self, events: Sequence[NumberedEvent]) -> None:
        dp_ranks = {event.dp_rank for event in events}
        queued = [_queued(event, is_counted=False) for event in events]
        is_full = self._num_places + _places(queued) > self._max_places
        if is_full or not dp_ranks.isdisjoint(self._lost_ranks):
            self._drop_waiting(dp_ranks)
        self._lost_ranks -= dp_ranks
        self._append(queued)

    def _put_next(self, events: Sequence[NumberedEvent]) -> None:
        dp_rank = events[0].dp_rank
        queued = [_queued(event, is_counted=True) for event in events]
        if self._num_counted_places + _places(queued) <= self._max_places:
            self._append(queued)
            return
        log.warning("the KV event queue is full: events of rank %d are dropped", dp_rank)
        self.dropped_events += len(events)
        self.lose([dp_rank])

    def _append(self, queued: Sequence[_Queued]) -> None:
        for item in queued:
            self._count(item, 1)
        self._queue.extend(queued)
        self.changed.set()

    def _count(self, queued: _Queued, sign: int) -> None:
        places = sign * queued.places
        self._num_places += places
        if queued.is_counted:
            self._num_counted_places += places

    def _drop_waiting(self, dp_ranks: set[int]) -> None:
        kept: deque[_Queued] = deque()
        for index, queued in enumerate(self._queue):
            if index < self._num_pinned or queued.event.dp_rank not in dp_ranks:
                kept.append(queued)
            else:
                self._count(queued, -1)
        self.dropped_events += len(self._queue) - len(kept)
        self._queue = kept


def _queued(numbered: NumberedEvent, *, is_counted: bool) -> _Queued:
    """Leave tokens out: nobody behind a queue needs them, and they are most of an event."""
    dp_rank, event_id, event = numbered
    if isinstance(event, BlockStored):
        numbered = NumberedEvent(dp_rank, event_id, BlockStored(event.parent_hash, event.blocks))
    num_blocks = count_blocks(event)
    places = max(-(-num_blocks // BLOCKS_PER_PLACE), 1)
    return _Queued(numbered, num_blocks, places, is_counted)


def _places(queued: Iterable[_Queued]) -> int:
    return sum([item.places for item in queued])
