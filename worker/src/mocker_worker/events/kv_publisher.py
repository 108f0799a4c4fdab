"""Publishes KV events to JetStream: in order, numbered per rank, never in the engine's way.

Events wait in a bounded queue. The head of the queue is sent as one batch and leaves the queue
when the stream has acknowledged it, so an outage of NATS repeats a batch (the stream drops
duplicates by message id) and loses nothing that fits the queue. When the queue overflows, or when
the stream lost or reordered something, the rank is told anew: `cleared`, then a snapshot.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import nats.errors
from nats.js.api import Header, PubAck
from nats.js.errors import NotFoundError

from mocker_protocol.kv_events import AllBlocksCleared, KvCacheEvent, encode_router_event
from mocker_protocol.names import Component
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.sink import CacheSnapshot

log = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 8192
STREAM_MAX_AGE_S = 3600
_BATCH_EVENTS = 256
_ACK_TIMEOUT_S = 3.0
_RETRY_S = 0.5


class _Queued(NamedTuple):
    message_id: str
    payload: bytes


class KvEventPublisher:
    """Sends the KV events of one worker to the stream of its component."""

    def __init__(
        self,
        connection: NatsConnection,
        component: Component,
        *,
        worker_id: int,
        snapshot: CacheSnapshot | None = None,
        max_queued_events: int = MAX_QUEUED_EVENTS,
    ) -> None:
        self._connection = connection
        self._component = component
        self._worker_id = worker_id
        self._snapshot = snapshot
        self._max_queued_events = max_queued_events
        self._nonce = secrets.token_hex(8)
        """Keeps the message ids apart from those of an earlier process of the same worker."""
        self._queue: deque[_Queued] = deque()
        self._num_sent = 0
        """Events at the head of the queue that were sent before and may be stored already."""
        self._queued = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._next_id: dict[int, int] = {}
        self._lost_ranks: set[int] = set()
        self._last_sequence = 0
        self._has_stream = False
        self.dropped_events = 0
        self.published_events = 0
        connection.on_connected(self._check_stream)

    def publish(self, dp_rank: int, events: Sequence[KvCacheEvent]) -> None:
        """Queue events of a rank; from an overflow until its snapshot they are dropped."""
        if dp_rank in self._lost_ranks:
            self.dropped_events += len(events)
            return
        if len(self._queue) + len(events) > self._max_queued_events:
            self._lost_ranks.add(dp_rank)
            self.dropped_events += len(events)
            log.warning("KV event queue is full: events of rank %d are dropped", dp_rank)
            return
        self._append(dp_rank, events)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._connection.wait_until_up()
            try:
                if not self._has_stream:
                    await self._ensure_stream()
                self._resynchronize()
                await self._wait_for_events()
                await self._send_batch()
            except (nats.errors.Error, TimeoutError) as error:
                self._has_stream = False
                log.debug("KV events wait: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def flush(self, timeout_s: float) -> None:
        """Wait until the stream has everything, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._flushed.wait()
        except TimeoutError:
            log.warning("%d KV events were not published", len(self._queue))

    def _append(self, dp_rank: int, events: Sequence[KvCacheEvent]) -> None:
        event_id = self._next_id.get(dp_rank, 0)
        for event in events:
            self._queue.append(
                _Queued(
                    f"{self._worker_id:x}-{self._nonce}-{dp_rank}-{event_id}",
                    encode_router_event(self._worker_id, event_id, event, dp_rank=dp_rank),
                )
            )
            event_id += 1
        self._next_id[dp_rank] = event_id
        if events:
            self._queued.set()
            self._flushed.clear()

    async def _wait_for_events(self) -> None:
        if not self._queue:
            self._flushed.set()
            self._queued.clear()
            await self._queued.wait()

    def _check_stream(self) -> None:
        """Look after the stream even if nothing is queued: NATS may have lost its storage."""
        self._has_stream = False
        self._queued.set()

    async def _ensure_stream(self) -> None:
        self._has_stream = True
        name = self._component.kv_event_stream
        jetstream = self._connection.jetstream
        try:
            await jetstream.stream_info(name)
        except NotFoundError:
            await jetstream.add_stream(
                name=name, subjects=[f"{name}.*"], max_age=float(STREAM_MAX_AGE_S)
            )
            log.info("created the KV event stream %s", name)
            if self.published_events:
                self._lost_ranks.update(self._next_id)

    def _resynchronize(self) -> None:
        """Tell lost ranks anew once there is room; ids go on where they were."""
        if not self._lost_ranks or len(self._queue) > self._max_queued_events // 2:
            return
        for dp_rank in sorted(self._lost_ranks):
            blocks = self._snapshot(dp_rank) if self._snapshot is not None else ()
            self._append(dp_rank, [AllBlocksCleared(), *blocks])
            log.info("KV events of rank %d start anew: cleared, then a snapshot", dp_rank)
        self._lost_ranks.clear()

    async def _send_batch(self) -> None:
        """Send the head of the queue and take off what was acknowledged.

        Raises:
            nats.errors.Error: if something was not acknowledged; it is still queued.
        """
        batch = list(islice(self._queue, _BATCH_EVENTS))
        acks: list[asyncio.Future[PubAck]] = []
        if not batch:
            return
        sent_before = self._num_sent
        try:
            for message_id, payload in batch:
                self._num_sent = max(self._num_sent, len(acks) + 1)
                ack = await self._connection.jetstream.publish_async(
                    self._component.kv_event_subject,
                    payload,
                    wait_stall=_ACK_TIMEOUT_S,
                    headers={Header.MSG_ID: message_id},
                )
                acks.append(ack)
            await asyncio.wait(acks, timeout=_ACK_TIMEOUT_S)
        finally:
            self._take_off(acks, sent_before)
        if len(acks) < len(batch) or any(not _is_acknowledged(ack) for ack in acks):
            raise nats.errors.TimeoutError

    def _take_off(self, acks: list["asyncio.Future[PubAck]"], sent_before: int) -> None:
        acknowledged = [_is_acknowledged(ack) for ack in acks]
        head = acknowledged.index(False) if False in acknowledged else len(acks)
        for index, ack in enumerate(acks[:head]):
            self._queue.popleft()
            self.published_events += 1
            self._check(ack.result(), is_repeated=index < sent_before)
        self._num_sent -= head
        for ack in acks:
            ack.cancel()

    def _check(self, ack: PubAck, *, is_repeated: bool) -> None:
        """Start anew after an ack that shows a loss.

        A sequence that goes down means a stream made anew, or a batch stored out of order; a
        duplicate of something sent only once means that another message was stored in its place.
        """
        if ack.seq <= self._last_sequence or (ack.duplicate and not is_repeated):
            self._lost_ranks.update(self._next_id)
        self._last_sequence = ack.seq


def _is_acknowledged(ack: "asyncio.Future[PubAck]") -> bool:
    return ack.done() and not ack.cancelled() and ack.exception() is None
