"""What workers answer and the frontend knows nothing about: tokens of a text, their caches."""

import msgspec
from aiohttp import web

from mocker_frontend.errors import no_worker
from mocker_frontend.exchange import whole_answer
from mocker_frontend.headers import to_worker
from mocker_frontend.upstream import NoWorkerAnswered, Reply, Upstream, UpstreamRequest
from mocker_protocol.names import WorkerType

_ROLES = (WorkerType.AGGREGATED, WorkerType.DECODE, WorkerType.PREFILL)


class _Reset(msgspec.Struct):
    """What a worker answers to `/reset_prefix_cache`; an empty body, as vLLM's, says nothing."""

    reset: bool = True


class Passthrough:
    """Requests that reach workers as they are."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def to_one(self, http: web.Request, payload: bytes, request_id: str) -> web.Response:
        """Answer as any worker does.

        Raises:
            RequestFailed: if there is none that answers (503).
        """
        try:
            async with self._upstream.open(_request(http, payload, request_id), *_ROLES) as reply:
                return whole_answer(reply, request_id)
        except NoWorkerAnswered as error:
            if error.refusal is not None:
                return whole_answer(error.refusal, request_id)
            raise no_worker(f"no worker could answer: {error}") from error

    async def to_all(self, http: web.Request, payload: bytes, request_id: str) -> web.Response:
        """Ask every worker; answer as the one that says the worst: an error, or `reset: false`.

        Raises:
            RequestFailed: if one of them does not answer, or there is none (503).
        """
        try:
            replies = await self._upstream.ask_all(_request(http, payload, request_id))
        except NoWorkerAnswered as error:
            raise no_worker(f"not every worker has answered: {error}") from error
        worst = max(replies, key=lambda reply: (reply.response.status, not _is_reset(reply)))
        return whole_answer(worst, request_id)


def _is_reset(reply: Reply) -> bool:
    try:
        return msgspec.json.decode(reply.first, type=_Reset).reset
    except msgspec.DecodeError:
        return True


def _request(http: web.Request, payload: bytes, request_id: str) -> UpstreamRequest:
    return UpstreamRequest(
        path=http.path_qs,
        payload=payload,
        headers=to_worker(http.headers, request_id),
        whole=True,
    )
