"""Numbers the KV events of every rank once, for all transports.

Every transport speaks of the same event by the same number, from 0 without a gap per rank. The
first event of a process and its last one are `cleared`: what an earlier process of the same worker
left behind is forgotten, and so is what this one leaves behind. A transport that lost events asks
for `cleared` and a snapshot, which are numbered and go out on all transports.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvCacheEvent
from mocker_worker.events.sink import CacheSnapshot

log = logging.getLogger(__name__)

MAX_EVENT_BLOCKS = 1024
"""Blocks of one event: a longer one is split, so that it fits any message."""


class NumberedEvent(NamedTuple):
    """One event of one rank."""

    dp_rank: int
    event_id: int
    event: KvCacheEvent


class CacheDump(NamedTuple):
    """What a rank has cached."""

    events: Sequence[KvCacheEvent]
    """They build it from nothing, parents first; they have no numbers."""
    last_event_id: int
    """Number of the newest event that is part of it; who has the dump applies those after it."""


class KvTransport(Protocol):
    """One way out for KV events; it neither blocks nor raises."""

    @property
    def name(self) -> str:
        """What metrics call it: `jetstream`, `event-plane` or `zmq`."""
        ...

    @property
    def published_events(self) -> int:
        """Events that were handed over."""
        ...

    @property
    def dropped_events(self) -> int:
        """Events that were not, since they found no place or nobody was there to take them."""
        ...

    def publish(self, events: Sequence[NumberedEvent]) -> None:
        """Take events, in order.

        A call that begins with `cleared` makes its ranks right again whatever was lost before, so
        all of it must find a place; only such calls have events of more than one rank.
        """
        ...

    async def run(self) -> None:
        """Hand events over until cancelled."""
        ...

    async def flush(self, timeout_s: float) -> None:
        """Return when everything taken was handed over, at most after `timeout_s`."""
        ...


class KvEventHub:
    """The one source of event numbers of a worker."""

    def __init__(
        self,
        snapshot: CacheSnapshot,
        num_ranks: int,
        *,
        settle: Callable[[int], None] = lambda dp_rank: None,
    ) -> None:
        """Take the caches that events are about.

        Args:
            snapshot: Gives what a rank has cached, events included that were not published yet.
            num_ranks: Ranks that events are numbered for.
            settle: Publishes those events of a rank.
        """
        self._snapshot = snapshot
        self._settle = settle
        self._next_ids = [0] * num_ranks
        self._transports: list[KvTransport] = []
        self._publishing = False
        self._requested: list[int] = []
        """Ranks that a transport wants to be told anew while events are being handed out."""
        self._withdrawn = False
        self._cleared_takes_all_ranks = False
        self.resynchronizations = 0

    @property
    def transports(self) -> Sequence[KvTransport]:
        """Who gets every event."""
        return self._transports

    @property
    def num_ranks(self) -> int:
        """Ranks that events are numbered for."""
        return len(self._next_ids)

    def attach(self, transport: KvTransport, *, cleared_takes_all_ranks: bool = False) -> None:
        """Add a transport; do so before `start`.

        Args:
            transport: Who gets every event from now on.
            cleared_takes_all_ranks: Whether its consumers take `cleared` of one rank for the whole
                worker; the other ranks are told anew then.
        """
        self._transports.append(transport)
        self._cleared_takes_all_ranks |= cleared_takes_all_ranks and self.num_ranks > 1

    def start(self) -> None:
        """Publish event 0 of each rank: `cleared`."""
        self._hand_out([(dp_rank, AllBlocksCleared()) for dp_rank in range(self.num_ranks)])

    def publish(self, dp_rank: int, events: Sequence[KvCacheEvent]) -> None:
        """Number events of a rank and hand them to every transport."""
        if self._withdrawn or not self._transports or not events:
            return
        self._hand_out([(dp_rank, event) for event in _split(events)])
        if self._cleared_takes_all_ranks and AllBlocksCleared() in events:
            self.resynchronize(dp_rank)

    def resynchronize(self, dp_rank: int) -> None:
        """Tell a rank anew on all transports: `cleared`, then what it has cached.

        A transport may ask for it at any time, also while it takes events, and after the
        withdrawal, when `cleared` is all there is to tell.
        """
        if self._publishing:
            if dp_rank not in self._requested:
                self._requested.append(dp_rank)
            return
        if not self._transports:
            return
        dp_ranks = range(self.num_ranks) if self._cleared_takes_all_ranks else [dp_rank]
        cleared = [(rank, AllBlocksCleared()) for rank in dp_ranks]
        cached = [(rank, event) for rank in dp_ranks for event in self._cached(rank)]
        self.resynchronizations += len(dp_ranks)
        self._requested = [rank for rank in self._requested if rank not in dp_ranks]
        self._hand_out([*cleared, *cached])
        for rank in dp_ranks:
            log.info("KV events of rank %d start anew: cleared, then what is cached", rank)

    def dump(self, dp_rank: int) -> CacheDump:
        """Return what a rank has cached once all that it went through is numbered.

        Events up to `last_event_id` may still wait in transports. Not to be called by one that
        takes events.
        """
        self._settle(dp_rank)
        return CacheDump(list(self._cached(dp_rank)), self._next_ids[dp_rank] - 1)

    def withdraw(self) -> None:
        """Publish `cleared` for each rank; nothing else is published after it."""
        self._withdrawn = True
        self.start()

    def _cached(self, dp_rank: int) -> Iterator[KvCacheEvent]:
        return iter(()) if self._withdrawn else _split(self._snapshot(dp_rank))

    def _hand_out(self, events: Sequence[tuple[int, KvCacheEvent]]) -> None:
        numbered = []
        for dp_rank, event in events:
            numbered.append(NumberedEvent(dp_rank, self._next_ids[dp_rank], event))
            self._next_ids[dp_rank] += 1
        self._publishing = True
        for transport in self._transports:
            transport.publish(numbered)
        self._publishing = False
        while self._requested:
            self.resynchronize(self._requested[0])


def _split(events: Sequence[KvCacheEvent]) -> Iterator[KvCacheEvent]:
    """Yield the events, long ones in parts of at most `MAX_EVENT_BLOCKS` blocks."""
    for event in events:
        match event:
            case BlockStored(blocks=blocks) if len(blocks) > MAX_EVENT_BLOCKS:
                yield from _parts(event)
            case BlockRemoved(hashes) if len(hashes) > MAX_EVENT_BLOCKS:
                for start in range(0, len(hashes), MAX_EVENT_BLOCKS):
                    yield BlockRemoved(hashes[start : start + MAX_EVENT_BLOCKS])
            case _:
                yield event


def _parts(event: BlockStored) -> Iterator[BlockStored]:
    """Cut a chain; each part's parent is the last block of the part before."""
    blocks, parent = event.blocks, event.parent_hash
    block_tokens = len(event.token_ids) // len(blocks)
    for start in range(0, len(blocks), MAX_EVENT_BLOCKS):
        end = start + MAX_EVENT_BLOCKS
        token_ids = event.token_ids[start * block_tokens : end * block_tokens]
        yield BlockStored(parent, blocks[start:end], token_ids, event.cache_salt)
        parent = blocks[start:end][-1].sequence
