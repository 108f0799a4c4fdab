"""The worker's one NATS connection: it comes and goes, and users of it wait or drop.

A worker runs without NATS; whatever NATS is needed for happens when it is back. Changes of the
connection are logged once each.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext

log = logging.getLogger(__name__)

_RECONNECT_WAIT_S = 0.5
_CONNECT_TIMEOUT_S = 5
_REQUEST_TIMEOUT_S = 3.0
_MAX_IN_FLIGHT = 1024


class NatsConnection:
    """Connects in the background and reconnects for ever."""

    def __init__(self, url: str, *, name: str) -> None:
        self._url = url
        self._address = url.rpartition("@")[2]
        """Without credentials."""
        self._name = name
        self._client = Client()
        self._up = asyncio.Event()
        self._complained = False
        self._closing = False
        self.jetstream: JetStreamContext = self._client.jetstream(
            timeout=_REQUEST_TIMEOUT_S, publish_async_max_pending=_MAX_IN_FLIGHT
        )
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_up(self) -> bool:
        """Whether the server can be reached as far as is known."""
        return self._client.is_connected

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

    async def publish(self, subject: str, payload: bytes) -> bool:
        """Publish on NATS core; return False if that was not possible at once."""
        if not self.is_up:
            return False
        try:
            await self._client.publish(subject, payload)
        except nats.errors.Error:
            return False
        return True

    async def _on_connected(self) -> None:
        self._complained = False
        self._up.set()
        for listener in self._listeners:
            listener()
        log.info("connected to NATS at %s", self._address)

    async def _on_disconnected(self) -> None:
        if not self._closing:
            log.warning("lost the connection to NATS at %s", self._address)

    async def _on_error(self, error: Exception) -> None:
        if not self._complained and not self.is_up:
            self._complained = True
            log.warning("cannot reach NATS at %s, trying on: %s", self._address, _reason(error))


def _reason(error: Any) -> str:  # noqa: ANN401 - whatever the client reports
    return str(error) or type(error).__name__
