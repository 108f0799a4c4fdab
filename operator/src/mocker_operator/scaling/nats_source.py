"""Planner decisions from a JetStream key-value bucket, followed by a watch.

Every session is a new connection, a new look for the bucket and a new watch; whatever goes wrong
ends the session and begins the next one. So a NATS server that is away at the start, restarts, or
comes back without its storage is one and the same case. Reads are answered from the watch; between
sessions nothing is known, and `state` says so by None.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import BucketNotFoundError
from nats.js.kv import KeyValue

from mocker_operator.errors import OperatorError, SourceUnavailable
from mocker_operator.reconcile.model import DecisionState, Key
from mocker_operator.tasks import end
from mocker_operator.work_queue import BackOff
from mocker_protocol.decisions import (
    BUCKET,
    DeploymentKey,
    InvalidDecision,
    encode_acknowledgement,
    parse_acknowledgement,
    parse_decision,
    parse_key,
)

_log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5
PING_INTERVAL_S = 10
_SCALED_SUFFIX = ".scaled"
_EMPTY = DecisionState()


class SessionLost(OperatorError):
    """The watch no longer shows what is in the bucket."""


class NatsDecisionSource:
    """The latest decision and acknowledgement of every MockerDeployment.

    Args:
        url: NATS server.
        on_change: Called with the key of whatever changed.
        on_sync: Called when everything may have changed: at the begin and end of a session.
        check_interval_s: How often the bucket is compared with what the watch delivered.
    """

    def __init__(
        self,
        url: str,
        *,
        on_change: Callable[[Key], None],
        on_sync: Callable[[], None],
        check_interval_s: float = 5.0,
    ) -> None:
        self._url = url
        self._on_change = on_change
        self._on_sync = on_sync
        self._check_interval_s = check_interval_s
        self._back_off = BackOff(first_s=0.2, most_s=3.0)
        self._states: dict[Key, DecisionState] = {}
        self._bucket: KeyValue | None = None
        self._revision = 0
        self._tried = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether the bucket is known."""
        return self._bucket is not None

    async def tried(self) -> None:
        """Wait until the bucket is known, or cannot be for the time being.

        A pass before that would report a bucket that cannot be read, only to take it back at once.
        """
        await self._tried.wait()

    def state(self, key: Key) -> DecisionState | None:
        """Return what the bucket says about a resource; None while the bucket is not known."""
        return self._states.get(key, _EMPTY) if self.synced else None

    async def acknowledge(self, key: Key, decision_id: int) -> None:
        """Write that the decision was carried out.

        Raises:
            SourceUnavailable: if it was not stored.
        """
        if self._bucket is None:
            raise SourceUnavailable("not connected to NATS")
        payload = encode_acknowledgement(decision_id)
        decided = self._states.get(key, _EMPTY)
        try:
            await self._bucket.put(DeploymentKey(*key).scaled, payload)
        except (NatsError, TimeoutError, OSError) as error:
            raise SourceUnavailable(f"acknowledgement not stored: {_reason(error)}") from error
        if self._states.get(key, _EMPTY) is decided:
            # The watch says so too, but the next pass may come before that.
            self._states[key] = replace(decided, acknowledged_id=decision_id)

    async def run(self) -> None:
        """Follow the bucket until cancelled."""
        failures = 0
        while True:
            try:
                await self._session()
            except (NatsError, SessionLost, TimeoutError, OSError) as error:
                was_synced = self.synced
                self._forget()
                self._tried.set()
                failures = 1 if was_synced else failures + 1
                if failures == 1:
                    _log.warning(
                        "planner decisions are not followed: NATS %s: %s", self._url, _reason(error)
                    )
            await asyncio.sleep(self._back_off.delay_s(failures))

    def _forget(self) -> None:
        was_synced, self._bucket, self._states = self.synced, None, {}
        if was_synced:
            self._on_sync()

    async def _session(self) -> None:
        closed = asyncio.Event()
        client = await _connect(self._url, closed)
        try:
            context = client.jetstream(timeout=REQUEST_TIMEOUT_S)
            bucket = await _open_bucket(context)
            info = (await bucket.status()).stream_info
            # The newest message may have been purged since: then no entry brings its revision.
            self._revision = info.state.last_seq
            await _until_one_fails(
                asyncio.create_task(self._follow(bucket), name="decisions-watch"),
                asyncio.create_task(self._check(bucket, info.created), name="decisions-check"),
                asyncio.create_task(_raise_when(closed), name="decisions-connection"),
            )
        finally:
            await client.close()

    async def _follow(self, bucket: KeyValue) -> None:
        states: dict[Key, DecisionState] = {}
        async with _watch(bucket) as watcher:
            async for entry in watcher:
                if entry is None:
                    self._states, self._bucket = states, bucket
                    self._tried.set()
                    _log.info("planner decisions are followed: %d keys", len(states))
                    self._on_sync()
                    continue
                self._revision = max(self._revision, entry.revision or 0)
                if (key := _apply(states, entry)) is not None and self.synced:
                    self._on_change(key)
        raise SessionLost("the watch ended")

    async def _check(self, bucket: KeyValue, created: object) -> None:
        """Notice a bucket that was replaced, and a watch that has gone silent."""
        while True:
            seen = self._revision
            await asyncio.sleep(self._check_interval_s)
            info = (await bucket.status()).stream_info
            if info.created != created:
                raise SessionLost("the bucket was replaced")
            if info.state.last_seq > self._revision == seen and info.state.messages:
                raise SessionLost("the watch is behind the bucket")


async def _connect(url: str, closed: asyncio.Event) -> Client:
    async def on_closed() -> None:
        closed.set()

    async def on_error(error: Exception) -> None:
        _log.debug("NATS: %s", error)

    return await nats.connect(
        url,
        name="mocker-operator",
        allow_reconnect=False,
        # The client would try the first connection 60 times, 2 s apart, before it says anything.
        max_reconnect_attempts=1,
        reconnect_time_wait=0.1,
        connect_timeout=CONNECT_TIMEOUT_S,
        ping_interval=PING_INTERVAL_S,
        max_outstanding_pings=2,
        closed_cb=on_closed,
        error_cb=on_error,
    )


async def _open_bucket(context: JetStreamContext) -> KeyValue:
    try:
        return await context.key_value(BUCKET)
    except BucketNotFoundError:
        return await context.create_key_value(KeyValueConfig(bucket=BUCKET, history=1))


@contextlib.asynccontextmanager
async def _watch(bucket: KeyValue) -> AsyncIterator[KeyValue.KeyWatcher]:
    watcher = await bucket.watchall()
    try:
        yield watcher
    finally:
        # Ends the subscription's heartbeat task, which outlives a closed connection by 10 s.
        with contextlib.suppress(NatsError):
            await watcher.stop()  # type: ignore[no-untyped-call]


async def _until_one_fails(*tasks: asyncio.Task[None]) -> None:
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await end(tasks)


async def _raise_when(closed: asyncio.Event) -> None:
    await closed.wait()
    raise SessionLost("the connection was closed")


def _apply(states: dict[Key, DecisionState], entry: KeyValue.Entry) -> Key | None:
    """Put one entry of the bucket into `states`; return whose state it changed, if any."""
    payload = entry.value or b"" if entry.operation is None else None
    scaled = entry.key.endswith(_SCALED_SUFFIX)
    owner = parse_key(entry.key.removesuffix(_SCALED_SUFFIX))
    if owner is None:
        return None
    key = Key(*owner)
    old = states.get(key, _EMPTY)
    if scaled:
        new = replace(old, acknowledged_id=parse_acknowledgement(payload) if payload else None)
    else:
        # Entries come in the order of their revisions: an acknowledgement before this decision was
        # for an earlier one, even if a restarted planner has used the same id again.
        new = _decided(payload, entry.created)
    if new == old:
        return None
    states[key] = new
    return key


def _decided(payload: bytes | None, created: Any) -> DecisionState:  # noqa: ANN401 - see _instant
    if payload is None:
        return _EMPTY
    try:
        return DecisionState(decision=parse_decision(payload), written_at=_instant(created))
    except InvalidDecision as error:
        return DecisionState(invalid=str(error), written_at=_instant(created))


def _instant(created: Any) -> datetime | None:  # noqa: ANN401 - annotated int, yet a datetime
    if not isinstance(created, datetime):
        return None
    return created if created.tzinfo else created.replace(tzinfo=UTC)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
