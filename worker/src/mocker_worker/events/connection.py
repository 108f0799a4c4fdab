"""The worker's one NATS connection: it comes and goes, and users of it wait or drop.

A worker runs without NATS; whatever NATS is needed for happens when it is back. Changes of the
connection are logged once each.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

log = logging.getLogger(__name__)

_RECONNECT_WAIT_S = 0.5
_CONNECT_TIMEOUT_S = 5
_REQUEST_TIMEOUT_S = 3.0
_PING_INTERVAL_S = 10
"""A connection that is dead without having been closed is given up after three of them."""
_STALE_BYTES = 1_000_000
"""So much that the server has not taken: it hangs."""


class NatsConnection:
    """Connects in the background and reconnects for ever."""

    def __init__(self, url: str, *, name: str) -> None:
        self._url = url
        self._address = url.rpartition("@")[2]
        """Without credentials."""
        self._name = name
        self._client = Client()
        self._up = asyncio.Event()
        self._num_connections = 0
        self._is_announced = False
        self._echo_subject = ""
        self._num_asked = 0
        self._num_echoed = 0
        self._heard = asyncio.Event()
        """Set when an echo came, or the connection."""
        self._complained = False
        self._closing = False
        self.jetstream: JetStreamContext = self._client.jetstream(timeout=_REQUEST_TIMEOUT_S)
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_up(self) -> bool:
        """Whether the server can be reached as far as is known, and listeners know it."""
        return self._is_announced and self._client.is_connected

    @property
    def client(self) -> Client:
        """The client itself; what is published while it is not up may be lost."""
        return self._client

    def on_connected(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time that the connection is made; it must not block."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Connect, however long that takes, and stay connected until cancelled."""
        try:
            await self._client.connect(
                self._url,
                name=self._name,
                connect_timeout=_CONNECT_TIMEOUT_S,
                ping_interval=_PING_INTERVAL_S,
                skip_subject_validation=True,  # all are made in `mocker_protocol.names`
                reconnect_time_wait=_RECONNECT_WAIT_S,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_connected,
            )
            await self._on_connected()
            await asyncio.Event().wait()
        finally:
            self._closing = True
            await self._client.close()

    async def wait_until_up(self) -> None:
        """Wait for the connection, without a limit: only shutdown ends the wait."""
        while not self.is_up:
            self._up.clear()
            await self._up.wait()

    async def publish(self, subject: str, payload: bytes, *, is_fresh: bool = False) -> bool:
        """Publish on NATS core; return False if that was not possible at once.

        What is worthless when it is old (`is_fresh`) is not added to a long backlog.
        """
        if not self.is_up or (is_fresh and self._client.pending_data_size > _STALE_BYTES):
            return False
        try:
            await self._client.publish(subject, payload)
        except nats.errors.Error:
            return False
        return True

    async def confirm(self) -> bool:
        """Wait until the server has read all that was published before.

        It sends this client a message back; a PING that is given up would, when answered late,
        end the client's reading (nats-py 2.16).

        Returns:
            False if the connection broke, so that nobody knows.
        """
        connection = self._num_connections
        self._num_asked += 1
        number = self._num_asked
        with contextlib.suppress(nats.errors.Error):
            if not self._echo_subject:
                self._echo_subject = self._client.new_inbox()
                await self._client.subscribe(self._echo_subject, cb=self._on_echo)
            if self.is_up:
                await self._client.publish(self._echo_subject, b"%d" % number)
        while self.is_up and connection == self._num_connections:
            if self._num_echoed >= number:
                return True
            self._heard.clear()
            await self._heard.wait()
        return False

    async def _on_echo(self, message: Msg) -> None:
        self._num_echoed = int(message.data)
        self._heard.set()

    async def _on_connected(self) -> None:
        self._complained = False
        self._is_announced = True
        self._num_connections += 1
        self._heard.set()
        self._up.set()
        for listener in self._listeners:
            listener()
        log.info("connected to NATS at %s", self._address)

    async def _on_disconnected(self) -> None:
        self._is_announced = False
        self._heard.set()
        self._forget_unsent()
        if not self._closing:
            log.warning("lost the connection to NATS at %s", self._address)

    def _forget_unsent(self) -> None:
        """Empty the client's buffer, which it would send first when it is connected again.

        What was sent before it may be lost, and users send that again: events would be out of
        order. The client has no other way to say so.
        """
        self._client._pending.clear()
        self._client._pending_data_size = 0

    async def _on_error(self, error: Exception) -> None:
        if not self._complained and not self.is_up:
            self._complained = True
            log.warning("cannot reach NATS at %s, trying on: %s", self._address, _reason(error))


def _reason(error: Any) -> str:  # noqa: ANN401 - whatever the client reports
    return str(error) or type(error).__name__
