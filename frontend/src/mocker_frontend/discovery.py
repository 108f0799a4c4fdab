"""Feeds the registry from the key-value bucket in which workers register.

One watch at a time. A watch that falls silent is started again, so that a bucket that was lost
with its server heals by itself. What a new listing lacks is not dropped at once: records age out of
the bucket during an outage, and workers need a moment to put them again.
"""

import asyncio
import logging
import time
from collections.abc import Callable

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.kv import KeyValue

from mocker_frontend.registry import Registry
from mocker_protocol.registration import (
    BUCKET,
    EXPIRY_S,
    HEARTBEAT_S,
    decode_registration,
    watch_filter,
)

log = logging.getLogger(__name__)

_RETRY_S = 0.5
_TICK_S = 0.25
_SILENCE_S = HEARTBEAT_S * 2
_DELETIONS = ("DEL", "PURGE")
_NATS_ERRORS = (nats.errors.Error, OSError, TimeoutError)


async def discover(
    registry: Registry, *, url: str, namespace: str, on_listed: Callable[[], None]
) -> None:
    """Keep the registry true until cancelled.

    Args:
        registry: Where workers are noted.
        url: NATS server.
        namespace: Dynamo namespace.
        on_listed: Called whenever the registry has seen a complete listing of the bucket.
    """
    client = await _connect(registry, url)
    try:
        while True:
            try:
                bucket = await _bucket(client)
                if not registry.is_connected:
                    registry.connected(time.monotonic())
                await _Watch(registry, namespace, on_listed).follow(bucket)
            except _NATS_ERRORS as error:
                log.debug("watch of %s failed: %r", BUCKET, error)
                registry.disconnected()
                await asyncio.sleep(_RETRY_S)
    finally:
        await client.close()


async def _connect(registry: Registry, url: str) -> Client:
    """Connect, waiting for a server that is not there yet."""

    async def on_disconnected() -> None:
        log.warning("NATS disconnected url=%s", url)
        registry.disconnected()

    async def on_reconnected() -> None:
        log.info("NATS reconnected url=%s", url)
        registry.connected(time.monotonic())

    async def on_error(error: Exception) -> None:
        log.debug("NATS error: %r", error)

    reported = False
    while True:
        try:
            client = await nats.connect(
                url,
                name="mocker-frontend",
                allow_reconnect=True,
                connect_timeout=2,
                max_reconnect_attempts=-1,
                reconnect_time_wait=_RETRY_S,
                ping_interval=5,
                max_outstanding_pings=2,
                disconnected_cb=on_disconnected,
                reconnected_cb=on_reconnected,
                error_cb=on_error,
            )
        except _NATS_ERRORS as error:
            if not reported:
                log.warning("waiting for NATS url=%s error=%r", url, error)
                reported = True
            await asyncio.sleep(_RETRY_S)
        else:
            log.info("NATS connected url=%s", url)
            return client


async def _bucket(client: Client) -> KeyValue:
    stream = client.jetstream(timeout=2)
    try:
        return await stream.key_value(BUCKET)
    except nats.js.errors.NotFoundError:
        pass
    try:
        return await stream.create_key_value(bucket=BUCKET, ttl=EXPIRY_S)
    except nats.js.errors.BadRequestError:  # a worker was faster
        return await stream.key_value(BUCKET)


class _Watch:
    """One watch of the bucket, from its listing until it falls silent."""

    def __init__(self, registry: Registry, namespace: str, on_listed: Callable[[], None]) -> None:
        self._registry = registry
        self._namespace = namespace
        self._on_listed = on_listed

    async def follow(self, bucket: KeyValue) -> None:
        """Apply updates; return when the watch should be started again."""
        watcher = await bucket.watch(watch_filter(self._namespace))
        heard_s = time.monotonic()
        try:
            while time.monotonic() - heard_s < _SILENCE_S:
                try:
                    entry = await watcher.updates(timeout=_TICK_S)  # type: ignore[no-untyped-call]
                except nats.errors.TimeoutError:
                    pass
                else:
                    heard_s = time.monotonic()
                    self._apply(entry)
                self._expire()
        finally:
            await watcher.stop()  # type: ignore[no-untyped-call]

    def _apply(self, entry: KeyValue.Entry | None) -> None:
        if entry is None:
            self._on_listed()
        elif entry.operation in _DELETIONS:
            if self._registry.delete(entry.key):
                log.info("worker left key=%s", entry.key)
        else:
            self._put(entry)

    def _put(self, entry: KeyValue.Entry) -> None:
        try:
            registration = decode_registration(entry.value or b"")
        except ValueError as error:
            log.warning("ignoring a registration key=%s error=%s", entry.key, error)
            return
        if self._registry.put(
            entry.key, registration, revision=entry.revision or 0, now=time.monotonic()
        ):
            log.info(
                "worker registered key=%s role=%s state=%s url=%s",
                entry.key,
                registration.worker_type,
                registration.state,
                registration.url,
            )

    def _expire(self) -> None:
        for key in self._registry.expire(time.monotonic()):
            log.warning("worker expired key=%s after_s=%g", key, EXPIRY_S)
