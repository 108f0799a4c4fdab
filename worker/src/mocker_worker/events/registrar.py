"""Keeps the worker's record in the registration bucket, from readiness until it is gone.

It makes the bucket if it is missing, renews the record at every heartbeat, and puts it again after
NATS came back, with or without its storage. NATS need not be there: it tries on, and says so once.
"""

import asyncio
import logging

import nats.errors
from msgspec.structs import replace
from nats.js.errors import BucketNotFoundError
from nats.js.kv import KeyValue

from mocker_protocol.registration import (
    BUCKET,
    EXPIRY_S,
    HEARTBEAT_S,
    WorkerRegistration,
    WorkerState,
)
from mocker_worker.events.connection import NatsConnection

log = logging.getLogger(__name__)

_RETRY_S = 0.5


class Registrar:
    """Registers one worker while `run` runs."""

    def __init__(
        self,
        connection: NatsConnection,
        record: WorkerRegistration,
        *,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._connection = connection
        self._record = record
        self._heartbeat_s = heartbeat_s
        self._changed = asyncio.Event()
        self._written: WorkerRegistration | None = None
        self._complained = False
        self._is_leaving = False
        self.registered = asyncio.Event()
        """Set once the first record is in the bucket."""
        connection.on_connected(self._changed.set)

    async def run(self) -> None:
        """Put the record at once, at every heartbeat and after changes, until told to leave."""
        bucket: KeyValue | None = None
        while not self._is_leaving:
            await self._connection.wait_until_up()
            self._changed.clear()
            try:
                bucket = bucket or await self._open_bucket()
                await bucket.put(self._record.key, self._record.encode())
            except (nats.errors.Error, TimeoutError) as error:
                bucket = None
                self._complain(error)
                await asyncio.sleep(_RETRY_S)
                continue
            self._confirm()
            await self._pause()

    def drain(self) -> None:
        """Tell frontends to send nothing new."""
        self._record = replace(self._record, state=WorkerState.DRAINING)
        self._changed.set()

    def leave(self) -> None:
        """End `run`, unless it waits for NATS: then cancel it.

        A cancellation alone is lost if the answer to a put comes at the same time.
        """
        self._is_leaving = True
        self._changed.set()

    async def remove(self, timeout_s: float) -> None:
        """Delete the record if NATS can be reached; else it expires. Stop `run` before."""
        if not self._connection.is_up:
            log.warning("NATS is away: the registration is left to expire")
            return
        try:
            async with asyncio.timeout(timeout_s):
                bucket = await self._open_bucket()
                await bucket.delete(self._record.key)
        except (nats.errors.Error, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            log.warning("the registration is left to expire: %s", reason)

    async def _open_bucket(self) -> KeyValue:
        jetstream = self._connection.jetstream
        try:
            return await jetstream.key_value(BUCKET)
        except BucketNotFoundError:
            log.info("creating the bucket %s", BUCKET)
            return await jetstream.create_key_value(bucket=BUCKET, ttl=EXPIRY_S)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._heartbeat_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _confirm(self) -> None:
        if self._written != self._record or self._complained:
            log.info("registered as %s (%s)", self._record.key, self._record.state)
        self._written = self._record
        self._complained = False
        self.registered.set()

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            log.warning("cannot register, trying on: %s", str(error) or type(error).__name__)
        self._complained = True
