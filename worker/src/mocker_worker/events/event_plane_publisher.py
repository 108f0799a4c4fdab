"""Publishes KV events on the event plane as Dynamo 1.6 reads them.

The server keeps nothing and acknowledges nothing: what was sent into a connection that broke is
lost, and a router that missed an event, and cannot ask for it (`kv_recovery`), forgets the rank. So
each connection after the first begins with the ranks told anew, once more when routers that lost
the same server should be back, too; and nothing is sent before the server has read what was sent
before it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

import nats.errors

from mocker_protocol.event_plane import (
    KV_EVENTS_TOPIC,
    MAX_BLOCKS,
    MAX_EVENTS,
    encode_router_events,
)
from mocker_protocol.names import Component
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.envelopes import Envelopes
from mocker_worker.events.hub import NumberedEvent
from mocker_worker.events.outbox import MAX_QUEUED_EVENTS, Outbox

log = logging.getLogger(__name__)

_BATCH_EVENTS = 512
_RETRY_S = 0.5
_LATE_ROUTERS_S = 5.0
"""By then the clients that Dynamo's routers use have connected again (they pause up to 4 s)."""


class EventPlanePublisher:
    """Sends the KV events of one worker to whoever listens."""

    name = "event-plane"

    def __init__(
        self,
        connection: NatsConnection,
        component: Component,
        *,
        worker_id: int,
        envelopes: Envelopes,
        resynchronize: Callable[[int], None],
        max_queued_events: int = MAX_QUEUED_EVENTS,
    ) -> None:
        self._connection = connection
        self._subject = component.endpoint_subject(KV_EVENTS_TOPIC)
        self._worker_id = worker_id
        self._envelopes = envelopes
        self._resynchronize = resynchronize
        self._outbox = Outbox(max_queued_events)
        self._idle = asyncio.Event()
        self._idle.set()
        self._was_connected = False
        self._once_more: asyncio.TimerHandle | None = None
        self.published_events = 0
        connection.on_connected(self._begin)

    @property
    def dropped_events(self) -> int:
        """Events that nobody gets."""
        return self._outbox.dropped_events

    def publish(self, events: Sequence[NumberedEvent]) -> None:
        """Queue events."""
        self._idle.clear()
        self._outbox.put(events)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._connection.wait_until_up()
            for dp_rank in self._outbox.lost_ranks:
                self._resynchronize(dp_rank)
            if len(self._outbox) == 0:
                self._idle.set()
                self._outbox.changed.clear()
                await self._outbox.changed.wait()
                continue
            batch = self._outbox.head(_BATCH_EVENTS, MAX_BLOCKS)
            self._outbox.take_off(len(batch))
            if await self._send(batch):
                self.published_events += len(batch)
            else:
                self._outbox.lose({event.dp_rank for event in batch})
                await asyncio.sleep(_RETRY_S)

    async def flush(self, timeout_s: float) -> None:
        """Wait until the server has read everything, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s if self._connection.is_up else 0):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d KV events were not published", len(self._outbox))

    def _begin(self) -> None:
        """Begin anew on a connection that is not the first."""
        if self._was_connected:
            self._lose_all()
            if self._once_more is not None:
                self._once_more.cancel()
            loop = asyncio.get_running_loop()
            self._once_more = loop.call_later(_LATE_ROUTERS_S, self._lose_all)
        self._was_connected = True

    def _lose_all(self) -> None:
        self._outbox.lose(range(self._envelopes.num_ranks))

    async def _send(self, batch: Sequence[NumberedEvent]) -> bool:
        """Return whether the server has read the batch."""
        try:
            for part in messages_of(batch):
                dp_rank = part[0].dp_rank
                payload = encode_router_events(
                    self._worker_id, [(item.event_id, item.event) for item in part], dp_rank=dp_rank
                )
                message = self._envelopes.wrap(dp_rank, KV_EVENTS_TOPIC, payload)
                if not await self._connection.publish(self._subject, message):
                    return False
            return await self._connection.confirm()
        except nats.errors.Error as error:
            log.warning("KV events were refused: %s", error)
            return False


def messages_of(events: Sequence[NumberedEvent]) -> Iterator[list[NumberedEvent]]:
    """Cut a batch, within Dynamo's limit of blocks, into messages of one rank each, in order."""
    part: list[NumberedEvent] = []
    for event in events:
        if part and (event.dp_rank != part[0].dp_rank or len(part) == MAX_EVENTS):
            yield part
            part = []
        part.append(event)
    if part:
        yield part
