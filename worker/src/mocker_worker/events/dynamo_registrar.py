"""Keeps a worker's records in the etcd by which Dynamo 1.6 discovers workers.

All records hang on one lease, kept alive while `run` runs and revoked at the end, so they go
together and at once. etcd need not be there: it tries on, and says so once. Only etcd's JSON
gateway is used.
"""

import asyncio
import base64
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mocker_protocol.dynamo_discovery import (
    LEASE_TTL_S,
    DiscoveredWorker,
    DiscoveryRecord,
)

if TYPE_CHECKING:
    from aiohttp import ClientSession

log = logging.getLogger(__name__)

_KEEP_ALIVE_S = LEASE_TTL_S / 3
_REQUEST_TIMEOUT_S = 3.0
_RETRY_S = 1.0
_SETTLE_S = 1.0
"""Until routers have seen the records: events that come before are ignored by them."""


class _EtcdError(Exception):
    """etcd did not do what it was asked for."""


class DynamoRegistrar:
    """Registers one worker with Dynamo while `run` runs."""

    def __init__(
        self,
        endpoints: Sequence[str],
        worker: DiscoveredWorker,
        *,
        on_registered: Callable[[], None],
    ) -> None:
        self._endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._worker = worker
        self._on_registered = on_registered
        self._leaving = asyncio.Event()
        self._gone = asyncio.Event()
        self._complained = False

    async def run(self) -> None:
        """Register, and again whenever the lease was lost, until told to leave."""
        # Only workers that know of an etcd pay for the client.
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                while not self._leaving.is_set():
                    try:
                        await self._hold_lease(session)
                    except Exception as error:  # an etcd must not end the worker, whatever it says
                        self._complain(error)
                        self._endpoints.append(self._endpoints.pop(0))
                        await self._pause(_RETRY_S)
        finally:
            self._gone.set()

    def leave(self) -> None:
        """Revoke the lease and end `run`."""
        self._leaving.set()

    async def wait_until_gone(self, timeout_s: float) -> None:
        """Wait until `run` has ended; after `timeout_s` the records are left to expire."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._gone.wait()
        except TimeoutError:
            log.warning("the records in etcd are left to expire")

    async def _hold_lease(self, session: "ClientSession") -> None:
        lease = (await self._call(session, "lease/grant", {"TTL": LEASE_TTL_S})).get("ID")
        if not lease:
            raise _EtcdError("lease/grant: no lease")  # records without one would stay for ever
        try:
            await self._remove_left_over(session)
            records = self._worker.records()
            for key, value in records:
                put = {"key": _base64(key.encode()), "value": _base64(value), "lease": lease}
                await self._call(session, "kv/put", put)
            log.info("registered with Dynamo as %s", records[0].key)
            self._complained = False
            await self._pause(_SETTLE_S)
            self._on_registered()
            while not self._leaving.is_set():
                answer = await self._call(session, "lease/keepalive", {"ID": lease})
                if not int(answer.get("result", {}).get("TTL", 0)):
                    raise _EtcdError("the lease expired")
                await self._pause(_KEEP_ALIVE_S)
        finally:
            # Records of a lease that was not revoked would stand beside those of the next one.
            with contextlib.suppress(Exception):
                await self._call(session, "lease/revoke", {"ID": lease})

    async def _remove_left_over(self, session: "ClientSession") -> None:
        """Delete the event sources of a process that died before its lease expires."""
        prefix = self._worker.sources_prefix.encode()
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        span = {"key": _base64(prefix), "range_end": _base64(end)}
        for item in (await self._call(session, "kv/range", span)).get("kvs", ()):
            key, value = (base64.b64decode(item.get(name, "")) for name in ("key", "value"))
            record = DiscoveryRecord(key.decode("utf-8", "replace"), value)
            if self._worker.is_left_over(record):
                await self._call(session, "kv/deleterange", {"key": item["key"]})

    async def _call(
        self, session: "ClientSession", operation: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        async with session.post(f"{self._endpoints[0]}/v3/{operation}", json=body) as response:
            if response.status != 200:
                raise _EtcdError(f"{operation}: HTTP {response.status}")
            try:
                answer = await response.json(content_type=None)
            except ValueError as error:
                raise _EtcdError(f"{operation}: no JSON: {error}") from error
        if not isinstance(answer, dict):
            raise _EtcdError(f"{operation}: no JSON object")
        return answer

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            reason = str(error) or type(error).__name__
            log.warning("cannot register with Dynamo, trying on: %s", reason)
        self._complained = True


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
