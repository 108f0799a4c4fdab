"""One request for tokens and its answer, as it passes from a worker to the client."""

import time
from http import HTTPStatus
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from mocker_frontend.errors import error_body
from mocker_frontend.headers import to_client
from mocker_frontend.orchestration import GenerateRequest, Generation, Orchestrator
from mocker_frontend.sse import EventStream, Usage, read_usage
from mocker_frontend.telemetry import Outcome, RequestRecord
from mocker_frontend.upstream import Reply

_BROKEN_OFF: Final = error_body(
    HTTPStatus.BAD_GATEWAY, "the worker broke off in the middle of the answer"
)
_RETRY_LATER: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


def whole_answer(reply: Reply, request_id: str) -> web.Response:
    """Return a worker's answer that has arrived completely."""
    status = reply.response.status
    headers = to_client(reply.response.headers, request_id)
    if status in _RETRY_LATER:
        headers.setdefault("Retry-After", "1")
    return web.Response(status=status, body=reply.first, headers=headers)


class Exchange:
    """One request for tokens and its answer."""

    def __init__(
        self, http: web.Request, request: GenerateRequest, request_id: str, *, leaving: bool
    ) -> None:
        self._leaving = leaving
        self._http = http
        self.request = request
        self.request_id = request_id

    async def run(
        self, orchestrator: Orchestrator, record: RequestRecord
    ) -> tuple[web.StreamResponse, Outcome, Usage | None]:
        """Get the answer and send it to the client.

        Raises:
            RequestFailed: if no worker could take the request.
        """
        async with orchestrator.generate(self.request) as generation:
            reply = generation.reply
            if reply.response.status != HTTPStatus.OK:
                return whole_answer(reply, self.request_id), Outcome.ERROR, None
            if self.request.stream:
                answer, outcome, usage = await self._stream(generation, record)
            else:
                answer, outcome = whole_answer(reply, self.request_id), Outcome.SUCCESS
                usage = read_usage(reply.first)
            if not generation.is_prefilled:
                record.prompt_computed(usage)
            return answer, outcome, usage

    async def _stream(
        self, generation: Generation, record: RequestRecord
    ) -> tuple[web.StreamResponse, Outcome, Usage | None]:
        reply = generation.reply
        client = web.StreamResponse(headers=self._headers(reply))
        if self._leaving:
            client.force_close()
        await client.prepare(self._http)
        choices = self.request.num_choices
        events = EventStream(
            hide_usage=generation.hide_usage,
            opening_events=choices if self.request.is_chat else 0,
        )
        try:
            await self._pass_on(reply, events, client, record)
            if rest := events.finish():
                await client.write(rest)
            elif not events.ended:
                await client.write(b"data: " + _BROKEN_OFF + b"\n\n")
            await client.write_eof()
        except aiohttp.ClientConnectionResetError:
            return client, Outcome.CANCELLED, events.usage
        good = events.done and not events.failed
        return client, Outcome.SUCCESS if good else Outcome.ERROR, events.usage

    async def _pass_on(
        self,
        reply: Reply,
        events: EventStream,
        client: web.StreamResponse,
        record: RequestRecord,
    ) -> None:
        """Send the worker's events until it ends or breaks off."""
        data = reply.first
        while data:
            before = events.token_events
            whole = events.feed(data)
            record.tokens(events.token_events - before, now=time.monotonic())
            if whole:
                await client.write(whole)
            try:
                data = await reply.read()
            except (aiohttp.ClientError, TimeoutError):
                return

    def _headers(self, reply: Reply) -> CIMultiDict[str]:
        return to_client(reply.response.headers, self.request_id)
