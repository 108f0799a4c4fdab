"""Requests to workers: one attempt per worker until one of them starts to answer.

Until the first byte of an answer has arrived nothing was promised to the client, so a refused
connection, a broken one or a 5xx moves on to the next worker. After it, failures are the caller's.
"""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from mocker_frontend.disagg import JsonObject
from mocker_frontend.registry import Registry, Worker
from mocker_frontend.routing.selection import Selector
from mocker_frontend.telemetry import Telemetry
from mocker_protocol.names import WorkerType

log = logging.getLogger(__name__)


class NoWorkerAnswered(Exception):
    """Every worker of a role was tried, or there is none."""

    def __init__(self, role: WorkerType, failures: list[str]) -> None:
        self.role = role
        super().__init__("; ".join(failures) or f"no {role} worker is registered")


class _AttemptFailed(Exception):
    """One worker did not start to answer."""

    def __init__(self, reason: str, *, unreachable: bool) -> None:
        super().__init__(reason)
        self.unreachable = unreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """What is sent to a worker."""

    path: str
    body: JsonObject
    headers: dict[str, str]
    whole: bool
    """Whether the answer counts as begun only when it is complete."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that has begun."""

    worker: Worker
    response: aiohttp.ClientResponse
    first: bytes
    """Its first bytes; all of them if `whole` was asked for or the status is an error."""

    async def read(self) -> bytes:
        """Return the next bytes as they come; empty at the end.

        Raises:
            aiohttp.ClientError: if the worker breaks off.
        """
        return await self.response.content.readany()


class Upstream:
    """The workers behind this frontend, and the connections to them."""

    def __init__(
        self,
        registry: Registry,
        selector: Selector,
        telemetry: Telemetry,
        *,
        connect_timeout_s: float,
        read_timeout_s: float,
    ) -> None:
        self._registry = registry
        self._selector = selector
        self._telemetry = telemetry
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout_s, sock_read=read_timeout_s
        )
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        """Open the connection pool, without a limit: every stream holds a connection."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            timeout=self._timeout,
            auto_decompress=False,
            read_bufsize=2**18,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    def has(self, role: WorkerType) -> bool:
        """Whether a worker of the role is known."""
        return any(worker.worker_type is role for worker in self._registry.workers)

    @asynccontextmanager
    async def open(self, role: WorkerType, request: UpstreamRequest) -> AsyncIterator[Reply]:
        """Send a request to a worker of a role and wait until it begins to answer.

        Leaving the context before the end of the answer cancels the request at the worker.

        Raises:
            NoWorkerAnswered: when each worker of the role was tried once.
            RequestFailed: if the body is nested too deeply to be sent (400).
        """
        payload = msgspec.json.encode(request.body)
        failures: dict[str, str] = {}
        while (worker := self._choose(role, failures)) is not None:
            with self._selector.sending(worker):
                try:
                    reply = await self._begin(worker, request, payload)
                except _AttemptFailed as failure:
                    failures[worker.key] = f"{worker.url}: {failure}"
                    self._note(worker, failure)
                    continue
                try:
                    yield reply
                finally:
                    if not reply.response.content.at_eof():
                        reply.response.close()
                return
        raise NoWorkerAnswered(role, list(failures.values()))

    def _choose(self, role: WorkerType, tried: dict[str, str]) -> Worker | None:
        return self._selector.choose(
            self._registry.workers, role, tried=tried, now=time.monotonic()
        )

    def _note(self, worker: Worker, failure: _AttemptFailed) -> None:
        self._telemetry.retries[worker.worker_type] += 1
        if failure.unreachable:
            self._registry.suspect(worker.key, time.monotonic())
        log.warning(
            "attempt failed worker=%s role=%s url=%s reason=%s",
            worker.key,
            worker.worker_type,
            worker.url,
            failure,
        )

    async def _begin(self, worker: Worker, request: UpstreamRequest, payload: bytes) -> Reply:
        """Try one worker; a kept-alive connection that it had closed costs a second try."""
        try:
            return await self._post(worker, request, payload)
        except aiohttp.ServerDisconnectedError:
            return await self._post_again(worker, request, payload)
        except aiohttp.ClientConnectorError as error:
            raise _AttemptFailed(f"cannot connect: {error.strerror}", unreachable=True) from error
        except aiohttp.ClientOSError:
            return await self._post_again(worker, request, payload)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _AttemptFailed(_reason(error), unreachable=True) from error

    async def _post_again(self, worker: Worker, request: UpstreamRequest, payload: bytes) -> Reply:
        try:
            return await self._post(worker, request, payload)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _AttemptFailed(_reason(error), unreachable=True) from error

    async def _post(self, worker: Worker, request: UpstreamRequest, payload: bytes) -> Reply:
        response = await self._session.post(
            worker.url + request.path, data=payload, headers=request.headers
        )
        try:
            whole = request.whole or response.status != 200
            first = await (response.read() if whole else response.content.readany())
            if response.status >= 500:
                raise _AttemptFailed(f"HTTP {response.status}", unreachable=False)
            if not first:
                raise _AttemptFailed("ended without an answer", unreachable=False)
        except BaseException:
            response.close()
            raise
        return Reply(worker, response, first)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
