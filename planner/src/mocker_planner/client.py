"""An async client for planners and their tests: decide, wait, status.

    async with PlannerClient("nats://127.0.0.1:4222") as planner:
        decision = await planner.decide("chat", prefill=2, decode=3)
        await planner.wait("chat", decision.decision_id, timeout_s=60)

Writes carry the revision that was read, so two planners never overwrite each other unseen.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.kv import KeyValue
from pydantic import ValidationError

from mocker_planner.errors import (
    Contended,
    InvalidTarget,
    NatsUnreachable,
    NotScaledInTime,
    Superseded,
)
from mocker_planner.status import Status, read_status
from mocker_protocol.decisions import BUCKET, DeploymentKey, ScalingDecision

DEFAULT_NATS_URL = "nats://127.0.0.1:4222"
DEFAULT_NAMESPACE = "default"
_ATTEMPTS = 10
_CONNECT_TIMEOUT_S = 3.0


class PlannerClient:
    """Connection to the bucket of decisions; an async context manager."""

    def __init__(self, nats_url: str = DEFAULT_NATS_URL) -> None:
        self._url = nats_url
        self._client: Client
        self._bucket: KeyValue

    async def __aenter__(self) -> Self:
        """Connect, and create the bucket if it is missing.

        Raises:
            NatsUnreachable: if no server with JetStream answers within a few seconds.
        """
        try:
            self._client = await nats.connect(
                self._url,
                name="mocker-planner",
                allow_reconnect=True,
                connect_timeout=_CONNECT_TIMEOUT_S,
                max_reconnect_attempts=1,
                reconnect_time_wait=0.1,
                error_cb=_ignore,
            )
        except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
            raise NatsUnreachable(self._url, _reason(error)) from error
        try:
            self._bucket = await _open_bucket(self._client)
        except (nats.errors.Error, TimeoutError) as error:
            await self._client.close()
            raise NatsUnreachable(self._url, _reason(error)) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.close()

    async def decide(
        self,
        name: str,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        prefill: int | None = None,
        decode: int | None = None,
        decision_id: int | None = None,
    ) -> ScalingDecision:
        """Write a decision and return it.

        Args:
            name: Name of the MockerDeployment.
            namespace: Its Kubernetes namespace.
            prefill: Ready prefill workers wanted; None leaves the role alone.
            decode: Ready decode workers wanted; None leaves the role alone.
            decision_id: Taken as it is; None takes the next free id.

        Raises:
            InvalidTarget: if a name, count or id is out of range.
            Contended: if other planners were faster ten times in a row.
        """
        key = DeploymentKey(namespace, name)
        for _ in range(_ATTEMPTS):
            entry, status = await self._read(key)
            number = status.next_decision_id if decision_id is None else decision_id
            decision = _decision(number, prefill, decode)
            try:
                await self._write(key, decision, entry)
            except nats.js.errors.KeyWrongLastSequenceError:
                continue
            return decision
        raise Contended(key, _ATTEMPTS)

    async def status(self, name: str, namespace: str = DEFAULT_NAMESPACE) -> Status:
        """Return the latest decision and the last one that was carried out."""
        _, status = await self._read(DeploymentKey(namespace, name))
        return status

    async def wait(
        self,
        name: str,
        decision_id: int,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        timeout_s: float = 300.0,
    ) -> float:
        """Wait until a decision is acknowledged; return the seconds that it took.

        Raises:
            NotScaledInTime: if the acknowledgement does not come within `timeout_s`.
            Superseded: if another decision took its place first.
        """
        key = DeploymentKey(namespace, name)
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s), aclosing(self._changes(key)) as changes:
                async for status in changes:
                    if status.scaled_decision_id == decision_id:
                        return time.monotonic() - started_s
                    latest = status.decision
                    if latest is not None and latest.decision_id != decision_id:
                        raise Superseded(key, decision_id, latest.decision_id)
        except TimeoutError as error:
            raise NotScaledInTime(key, decision_id, timeout_s) from error
        raise AssertionError("a watch has no end")

    async def _changes(self, key: DeploymentKey) -> AsyncGenerator[Status, None]:
        """Yield the status now and after every change of the deployment's keys."""
        watcher = await self._bucket.watch(f"{key.namespace}.>")
        try:
            payloads: dict[str, bytes | None] = {}
            listed = False
            async for entry in watcher:
                if entry is None:
                    listed = True
                elif entry.key in (key.decision, key.scaled):
                    payloads[entry.key] = None if entry.operation else entry.value
                else:
                    continue
                if listed:
                    yield read_status(payloads.get(key.decision), payloads.get(key.scaled))
        finally:
            await watcher.stop()  # type: ignore[no-untyped-call]

    async def _read(self, key: DeploymentKey) -> tuple[KeyValue.Entry | None, Status]:
        entry, acknowledgement = await self._get(key.decision), await self._get(key.scaled)
        status = read_status(
            None if entry is None else entry.value,
            None if acknowledgement is None else acknowledgement.value,
        )
        return entry, status

    async def _get(self, key: str) -> KeyValue.Entry | None:
        try:
            return await self._bucket.get(key)
        except nats.js.errors.KeyNotFoundError:
            return None
        except nats.js.errors.InvalidKeyError as error:
            raise InvalidTarget(f"{key!r}: not the name of a Kubernetes resource") from error

    async def _write(
        self, key: DeploymentKey, decision: ScalingDecision, entry: KeyValue.Entry | None
    ) -> None:
        if entry is None:
            await self._bucket.create(key.decision, decision.encode())
        else:
            await self._bucket.update(key.decision, decision.encode(), last=entry.revision)


def _decision(number: int, prefill: int | None, decode: int | None) -> ScalingDecision:
    try:
        return ScalingDecision(decision_id=number, prefill=prefill, decode=decode)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidTarget(f"{first['loc'][0]}: {first['msg']}") from error


async def _open_bucket(client: Client) -> KeyValue:
    stream = client.jetstream(timeout=_CONNECT_TIMEOUT_S)
    try:
        return await stream.key_value(BUCKET)
    except nats.js.errors.NotFoundError:
        pass
    try:
        return await stream.create_key_value(bucket=BUCKET, history=1)
    except nats.js.errors.BadRequestError:  # somebody else was faster
        return await stream.key_value(BUCKET)


async def _ignore(error: Exception) -> None:
    """Drop errors that also come back from the call that caused them."""


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
