"""Requests to workers: one attempt per worker until one of them starts to answer.

Until the first byte of an answer has arrived nothing was promised to the client, so a refused
connection, a broken one, a 429 or a 5xx moves on to the next worker. After it, failures are the
caller's.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

import aiohttp
from multidict import CIMultiDict

from mocker_frontend.registry import Registry, Worker
from mocker_frontend.routing.selection import Selector
from mocker_frontend.telemetry import Telemetry
from mocker_protocol.names import WorkerType

log = logging.getLogger(__name__)

_OVERLOADED: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class NoWorkerAnswered(Exception):
    """Every worker that could be asked was, or there is none."""

    def __init__(self, message: str, refusal: "Reply | None" = None) -> None:
        super().__init__(message)
        self.refusal = refusal
        """The last answer of a worker that has too much to do (429 or 503), if one said so."""


class _AttemptFailed(Exception):
    """One worker did not start to answer."""

    def __init__(self, reason: str, *, unreachable: bool, refusal: "Reply | None" = None) -> None:
        super().__init__(reason)
        self.unreachable = unreachable
        self.refusal = refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """What is sent to a worker."""

    path: str
    """Path and query."""
    payload: bytes
    headers: CIMultiDict[str]
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
            cookie_jar=aiohttp.DummyCookieJar(),
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
    async def open(self, request: UpstreamRequest, *roles: WorkerType) -> AsyncIterator[Reply]:
        """Send a request to a worker and wait until it begins to answer.

        Leaving the context before the end of the answer cancels the request at the worker.

        Args:
            request: What is sent.
            roles: What the worker must be; workers of a later role are the second choice.

        Raises:
            NoWorkerAnswered: when each worker of the roles was tried once.
        """
        failures: dict[str, str] = {}
        refusal: Reply | None = None
        while (worker := self._choose(roles, failures)) is not None:
            with self._selector.sending(worker):
                try:
                    reply = await self._begin(worker, request)
                except _AttemptFailed as failure:
                    failures[worker.key] = f"{worker.url}: {failure}"
                    refusal = failure.refusal or refusal
                    self._note(worker, failure)
                    continue
                try:
                    yield reply
                finally:
                    if not reply.response.content.at_eof():
                        reply.response.close()
                return
        absent = f"no {' or '.join(roles)} worker is registered"
        raise NoWorkerAnswered("; ".join(failures.values()) or absent, refusal)

    async def ask_all(self, request: UpstreamRequest) -> list[Reply]:
        """Send a request to every known worker at once; return their whole answers.

        Raises:
            NoWorkerAnswered: if one of them gave none, or there is none.
        """
        workers = self._registry.workers
        outcomes = await asyncio.gather(*(self._ask(worker, request) for worker in workers))
        failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
        if failures or not workers:
            raise NoWorkerAnswered("; ".join(failures) or "no worker is registered")
        return [outcome for outcome in outcomes if isinstance(outcome, Reply)]

    async def _ask(self, worker: Worker, request: UpstreamRequest) -> Reply | str:
        try:
            return await self._begin(worker, request)
        except _AttemptFailed as failure:
            self._note(worker, failure)
            return f"{worker.url}: {failure}"

    def _choose(self, roles: tuple[WorkerType, ...], tried: dict[str, str]) -> Worker | None:
        workers, now = self._registry.workers, time.monotonic()
        for role in roles:
            worker = self._selector.choose(workers, role, tried=tried, now=now)
            if worker is not None:
                return worker
        return None

    def _note(self, worker: Worker, failure: _AttemptFailed) -> None:
        self._telemetry.retries[worker.worker_type] += 1
        if failure.unreachable:
            self._registry.suspect(worker.key, time.monotonic())
        log.log(
            logging.DEBUG if failure.refusal else logging.WARNING,
            "attempt failed worker=%s role=%s url=%s reason=%s",
            worker.key,
            worker.worker_type,
            worker.url,
            failure,
        )

    async def _begin(self, worker: Worker, request: UpstreamRequest) -> Reply:
        """Try one worker; a kept-alive connection that it had closed costs a second try."""
        try:
            return await self._post(worker, request)
        except aiohttp.ServerDisconnectedError:
            return await self._post_again(worker, request)
        except aiohttp.ClientConnectorError as error:
            raise _AttemptFailed(f"cannot connect: {error.strerror}", unreachable=True) from error
        except aiohttp.ClientOSError:
            return await self._post_again(worker, request)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _AttemptFailed(_reason(error), unreachable=True) from error

    async def _post_again(self, worker: Worker, request: UpstreamRequest) -> Reply:
        try:
            return await self._post(worker, request)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _AttemptFailed(_reason(error), unreachable=True) from error

    async def _post(self, worker: Worker, request: UpstreamRequest) -> Reply:
        response = await self._session.post(
            worker.url + request.path,
            data=request.payload,
            headers=request.headers,
            allow_redirects=False,
        )
        try:
            whole = request.whole or response.status != 200
            first = await (response.read() if whole else response.content.readany())
            reply = Reply(worker, response, first)
            _check(reply, may_be_empty=whole)
        except BaseException:
            response.close()
            raise
        return reply


def _check(reply: Reply, *, may_be_empty: bool) -> None:
    """Raise what sends the request to another worker; 501 is a verdict on the request itself."""
    status = reply.response.status
    if status in _OVERLOADED:
        raise _AttemptFailed(f"HTTP {status}", unreachable=False, refusal=reply)
    if status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED:
        raise _AttemptFailed(f"HTTP {status}", unreachable=False)
    if not (reply.first or may_be_empty):
        raise _AttemptFailed("ended without an answer", unreachable=False)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
