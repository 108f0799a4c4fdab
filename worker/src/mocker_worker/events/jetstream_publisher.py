"""Publishes KV events to JetStream as Dynamo 0.7 reads them: in order, never in the engine's way.

The head of the queue is sent as one batch and leaves the queue when the stream has acknowledged
it, so an outage of NATS repeats a batch (the stream drops duplicates by message id) and loses
nothing that fits the queue. When the queue overflows, or when the stream lost or reordered
something, the ranks are told anew.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime

import nats.errors
from nats.js.api import Header
from nats.js.errors import NotFoundError

from mocker_protocol.kv_events import encode_router_event
from mocker_protocol.names import Component
from mocker_worker.events.connection import NatsConnection
from mocker_worker.events.hub import NumberedEvent
from mocker_worker.events.jetstream_acks import Ack, AckedPublisher
from mocker_worker.events.outbox import MAX_QUEUED_EVENTS, Outbox

log = logging.getLogger(__name__)

STREAM_MAX_AGE_S = 3600
_BATCH_EVENTS = 256
_BATCH_BLOCKS = 4096
"""About a millisecond's work, in which the engine waits."""
_ACK_TIMEOUT_S = 3.0
_RETRY_S = 0.5


class JetStreamPublisher:
    """Sends the KV events of one worker to the stream of its component."""

    name = "jetstream"

    def __init__(
        self,
        connection: NatsConnection,
        component: Component,
        *,
        worker_id: int,
        resynchronize: Callable[[int], None],
        max_queued_events: int = MAX_QUEUED_EVENTS,
    ) -> None:
        self._connection = connection
        self._stream = component.kv_event_stream
        self._subject = component.kv_event_subject
        self._worker_id = worker_id
        self._resynchronize = resynchronize
        self._nonce = secrets.token_hex(8)
        """Keeps the message ids apart from those of an earlier process of the same worker."""
        self._outbox = Outbox(max_queued_events)
        self._acked = AckedPublisher(connection.client)
        self._num_sent = 0
        """Events at the head of the queue that were sent before and may be stored already."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._ranks: set[int] = set()
        self._last_sequence = 0
        self._stream_created: datetime | None = None
        self._has_stream = False
        self._complained = False
        self.published_events = 0
        connection.on_connected(self._check_stream)

    @property
    def dropped_events(self) -> int:
        """Events that the stream does not get."""
        return self._outbox.dropped_events

    def publish(self, events: Sequence[NumberedEvent]) -> None:
        """Queue events."""
        self._ranks.update(event.dp_rank for event in events)
        self._idle.clear()
        self._outbox.put(events)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._connection.wait_until_up()
            try:
                if not self._has_stream:
                    await self._ensure_stream()
                for dp_rank in self._outbox.lost_ranks:
                    # To tell one rank anew may have told the others, too.
                    if dp_rank in self._outbox.lost_ranks:
                        self._resynchronize(dp_rank)
                await self._wait_for_events()
                await self._send_batch()
            except (nats.errors.Error, TimeoutError) as error:
                self._has_stream = False
                self._complain(error)
                await asyncio.sleep(_RETRY_S)
                # What a server that hangs has not read is not sent once more.
                await self._connection.confirm()

    async def flush(self, timeout_s: float) -> None:
        """Wait until the stream has everything, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s if self._connection.is_up else 0):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d KV events were not published", len(self._outbox))

    async def _wait_for_events(self) -> None:
        if len(self._outbox) == 0:
            self._idle.set()
            self._outbox.changed.clear()
            await self._outbox.changed.wait()

    def _check_stream(self) -> None:
        """Look after the stream even if nothing is queued: NATS may have lost its storage."""
        self._has_stream = False
        self._outbox.changed.set()

    async def _ensure_stream(self) -> None:
        """Create the stream if it is missing; tell everything anew if it is a new one."""
        self._has_stream = True
        await self._acked.prepare()
        name, jetstream = self._stream, self._connection.jetstream
        try:
            stream = await jetstream.stream_info(name)
        except NotFoundError:
            stream = await jetstream.add_stream(
                name=name, subjects=[f"{name}.*"], max_age=float(STREAM_MAX_AGE_S)
            )
            log.info("created the KV event stream %s", name)
        if stream.created == self._stream_created:
            return
        self._stream_created = stream.created
        self._last_sequence = 0
        if self.published_events:
            self._begin_anew()

    async def _send_batch(self) -> None:
        """Send the head of the queue and take off what was acknowledged.

        Raises:
            nats.errors.Error: if something was not acknowledged; it is still queued.
        """
        batch = self._outbox.head(_BATCH_EVENTS, _BATCH_BLOCKS)
        acks: list[asyncio.Future[Ack]] = []
        if not batch:
            return
        sent_before = self._num_sent
        try:
            for event in batch:
                self._num_sent = max(self._num_sent, len(acks) + 1)
                acks.append(await self._send(event))
            await asyncio.wait(acks, timeout=_ACK_TIMEOUT_S)
        finally:
            self._take_off(acks, sent_before)
        for ack in acks:
            if not _is_acknowledged(ack):
                raise _failure(ack)

    async def _send(self, numbered: NumberedEvent) -> "asyncio.Future[Ack]":
        # Nothing may wait between this and the client's buffer, which is emptied when a connection
        # breaks: what got into it afterwards would come before what is sent again.
        if not self._connection.is_up:
            raise nats.errors.ConnectionReconnectingError
        dp_rank, event_id, event = numbered
        return await self._acked.publish(
            self._subject,
            encode_router_event(self._worker_id, event_id, event, dp_rank=dp_rank),
            {Header.MSG_ID: f"{self._worker_id:x}-{self._nonce}-{dp_rank}-{event_id}"},
        )

    def _take_off(self, acks: list["asyncio.Future[Ack]"], sent_before: int) -> None:
        acknowledged = [_is_acknowledged(ack) for ack in acks]
        head = acknowledged.index(False) if False in acknowledged else len(acks)
        self._outbox.take_off(head)
        self._num_sent -= head
        self.published_events += head
        self._complained = self._complained and head == 0
        for index, ack in enumerate(acks[:head]):
            self._check(ack.result(), is_repeated=index < sent_before)
        for ack in acks:
            ack.cancel()

    def _check(self, ack: Ack, *, is_repeated: bool) -> None:
        """Start anew after an ack that shows a loss.

        A sequence that goes down means a stream made anew, or a batch stored out of order; a
        duplicate of something sent only once means that another message was stored in its place.
        """
        if ack.seq <= self._last_sequence or (ack.duplicate and not is_repeated):
            self._begin_anew()
        self._last_sequence = ack.seq

    def _complain(self, error: Exception) -> None:
        """Say once what NATS has against the events; that it is away is said already."""
        if self._connection.is_up and not self._complained:
            self._complained = True
            log.warning("KV events wait: %s", str(error) or type(error).__name__)

    def _begin_anew(self) -> None:
        """Drop what waits, between two batches: what comes instead needs none of it."""
        self._outbox.lose(self._ranks, even_sent=True)
        self._num_sent = 0


def _is_acknowledged(ack: "asyncio.Future[Ack]") -> bool:
    return ack.done() and not ack.cancelled() and ack.exception() is None


def _failure(ack: "asyncio.Future[Ack]") -> BaseException:
    return (None if ack.cancelled() else ack.exception()) or nats.errors.TimeoutError()
