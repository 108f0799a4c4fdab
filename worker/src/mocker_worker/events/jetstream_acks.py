"""Publishes to JetStream without waiting for each acknowledgement.

What nats-py offers for this costs twice as much per message, and may wait before the message is in
the client's buffer, so that a connection that breaks in the meantime puts messages out of order.
"""

import asyncio
from itertools import count

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NoStreamResponseError


class Ack(msgspec.Struct, frozen=True):
    """Where a message is in the stream."""

    seq: int
    duplicate: bool = False
    """The stream had a message with this id before, at this place."""


class _Answer(msgspec.Struct, frozen=True):
    seq: int = 0
    duplicate: bool = False
    error: dict[str, object] | None = None


_decoder = msgspec.json.Decoder(_Answer)


class AckedPublisher:
    """Publishes messages and hands out a future for each one's acknowledgement."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._numbers = count()
        self._waiting: dict[str, asyncio.Future[Ack]] = {}
        self._inbox = ""

    async def prepare(self) -> None:
        """Listen for acknowledgements; call this, connected, before `publish`."""
        if not self._inbox:
            inbox = self._client.new_inbox()
            await self._client.subscribe(f"{inbox}.*", cb=self._take)
            self._inbox = inbox

    async def publish(
        self, subject: str, payload: bytes, headers: dict[str, str]
    ) -> "asyncio.Future[Ack]":
        """Put a message into the client's buffer at once.

        The future fails with a `nats.errors.Error` when the stream refuses the message. Cancel it
        when nobody waits any more.

        Raises:
            nats.errors.Error: if the client takes no message.
        """
        token = str(next(self._numbers))
        ack = asyncio.get_running_loop().create_future()
        self._waiting[token] = ack
        ack.add_done_callback(lambda _: self._waiting.pop(token, None))
        try:
            await self._client.publish(subject, payload, f"{self._inbox}.{token}", headers)
        except BaseException:
            ack.cancel()
            raise
        return ack

    async def _take(self, message: Msg) -> None:
        ack = self._waiting.get(message.subject[len(self._inbox) + 1 :])
        if ack is None or ack.done():
            return
        if message.headers is not None:
            ack.set_exception(NoStreamResponseError())
            return
        try:
            answer = _decoder.decode(message.data)
        except msgspec.DecodeError as error:
            ack.set_exception(nats.errors.Error(f"no acknowledgement: {error}"))
            return
        if answer.error is None:
            ack.set_result(Ack(answer.seq, answer.duplicate))
        else:
            ack.set_exception(nats.errors.Error(str(answer.error.get("description"))))
