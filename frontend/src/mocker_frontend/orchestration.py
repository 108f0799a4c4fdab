"""Prefill first, then decode: how one request becomes legs to workers.

With decode workers the prompt goes to a prefill worker and its hand-off parameters to a decode
worker; without any, aggregated workers get the request as it is. If no prefill worker answers, the
decode worker computes the prompt itself: slower, but not an error.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from multidict import CIMultiDict

from mocker_frontend.disagg import JsonObject, decode_body, prefill_body, with_usage
from mocker_frontend.errors import no_worker
from mocker_frontend.headers import to_prefill_worker
from mocker_frontend.registry import Registry
from mocker_frontend.sse import read_usage
from mocker_frontend.telemetry import Telemetry
from mocker_frontend.upstream import NoWorkerAnswered, Reply, Upstream, UpstreamRequest
from mocker_protocol.names import WorkerType
from mocker_protocol.request_limits import MAX_CHOICES

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A client's request for tokens."""

    path: str
    """Path and query."""
    payload: bytes
    body: JsonObject
    """What the payload says."""
    headers: CIMultiDict[str]
    """Headers that both legs carry."""

    @property
    def stream(self) -> bool:
        """Whether the client wants server-sent events."""
        return self.body.get("stream") is True

    @property
    def is_chat(self) -> bool:
        """Whether the answer is a message rather than a text."""
        return self.path.partition("?")[0].endswith("/chat/completions")

    @property
    def num_choices(self) -> int:
        """Choices in the answer, all generated at once; 1 where a worker will refuse them."""
        wanted, prompts = self.body.get("n"), self.body.get("prompt")
        if isinstance(wanted, float) and wanted.is_integer():
            wanted = int(wanted)
        each = wanted if type(wanted) is int and wanted >= 1 else 1
        if not self.is_chat and isinstance(prompts, list) and prompts:
            each *= 1 if isinstance(prompts[0], int | float) else len(prompts)
        return each if each <= MAX_CHOICES else 1


@dataclass(frozen=True, slots=True)
class Generation:
    """The answer that goes to the client."""

    reply: Reply
    hide_usage: bool
    """Whether the usage chunk of a stream is for the frontend only."""
    is_prefilled: bool = False
    """Whether another worker has computed the prompt."""


class _Refused(Exception):
    """The prefill worker's verdict on the request, which is the answer."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.response.status)
        self.reply = reply


class Orchestrator:
    """Runs the legs of requests."""

    def __init__(self, registry: Registry, upstream: Upstream, telemetry: Telemetry) -> None:
        self._registry = registry
        self._upstream = upstream
        self._telemetry = telemetry
        self._prefill_lost = False

    @property
    def max_model_len(self) -> int | None:
        """Longest prompt plus answer in tokens that every worker takes, if it is known."""
        return self._registry.max_model_len

    @asynccontextmanager
    async def generate(self, request: GenerateRequest) -> AsyncIterator[Generation]:
        """Run a request up to the first bytes of its answer.

        Raises:
            RequestFailed: if no worker could take it (503).
        """
        split = self._upstream.has(WorkerType.DECODE)
        try:
            params = await self._prefill(request) if split else None
        except _Refused as refused:
            yield Generation(refused.reply, hide_usage=False)
            return
        body, hide_usage = with_usage(decode_body(request.body, params))
        unchanged = body is request.body
        leg = UpstreamRequest(
            path=request.path,
            payload=request.payload if unchanged else msgspec.json.encode(body),
            headers=request.headers,
            whole=not request.stream,
        )
        role = WorkerType.DECODE if split else WorkerType.AGGREGATED
        entered = False
        try:
            async with self._upstream.open(leg, role) as reply:
                entered = True
                is_prefilled = body.get("kv_transfer_params") is not None
                yield Generation(reply, hide_usage, is_prefilled)
        except NoWorkerAnswered as error:
            if entered:
                raise
            if error.refusal is not None:
                yield Generation(error.refusal, hide_usage=False)
                return
            raise no_worker(f"no worker could take the request: {error}") from error

    async def _prefill(self, request: GenerateRequest) -> object:
        """Return the hand-off parameters of the prefill leg; None to prefill locally.

        Raises:
            _Refused: if the prefill worker answers 4xx or 501, or each one answers 429.
        """
        if request.body.get("kv_transfer_params") is not None or not self._registry.prefill_seen:
            return None
        leg = UpstreamRequest(
            path=request.path,
            payload=msgspec.json.encode(prefill_body(request.body)),
            headers=to_prefill_worker(request.headers),
            whole=True,
        )
        try:
            async with self._upstream.open(leg, WorkerType.PREFILL) as reply:
                if reply.response.status >= 400:
                    raise _Refused(reply)
                params = _hand_off(reply.first)
        except NoWorkerAnswered as error:
            refusal = error.refusal
            if refusal is not None and refusal.response.status == HTTPStatus.TOO_MANY_REQUESTS:
                raise _Refused(refusal) from error
            self._prefill_locally(str(error))
            return None
        if params is None:
            self._prefill_locally(f"{reply.worker.url} answered no kv_transfer_params")
        else:
            self._prefill_lost = False
            self._telemetry.prompt_computed(read_usage(reply.first))
        return params

    def _prefill_locally(self, reason: str) -> None:
        """Count the fall-back; log only the first of a run of them."""
        self._telemetry.local_prefills += 1
        if not self._prefill_lost:
            log.warning("falling back to prefill on the decode workers reason=%s", reason)
        self._prefill_lost = True


def _hand_off(payload: bytes) -> object:
    try:
        answer = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return answer.get("kv_transfer_params") if isinstance(answer, dict) else None
