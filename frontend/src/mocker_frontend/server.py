"""HTTP edge: OpenAI's endpoints, probes and metrics."""

import time
import uuid
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from mocker_frontend.disagg import InvalidBody, JsonObject, parse_body
from mocker_frontend.errors import RequestFailed, error_body, invalid_request
from mocker_frontend.exposition import Exposition
from mocker_frontend.lifecycle import Lifecycle, State
from mocker_frontend.orchestration import GenerateRequest, Generation, Orchestrator
from mocker_frontend.sse import EventStream, Usage, read_usage
from mocker_frontend.telemetry import Endpoint, Outcome, RequestRecord, RequestType, Telemetry
from mocker_protocol import __version__

_REQUEST_ID = "X-Request-Id"
_FORWARDED = ("Authorization", "X-Data-Parallel-Rank", "X-Session-ID", "traceparent", "tracestate")
_MAX_BODY_BYTES = 64 * 2**20
_BROKEN_OFF = "the worker broke off in the middle of the answer"


class Server:
    """The request handlers of one frontend."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        lifecycle: Lifecycle,
        telemetry: Telemetry,
        exposition: Exposition,
        *,
        model_name: str,
    ) -> None:
        self._orchestrator = orchestrator
        self._lifecycle = lifecycle
        self._telemetry = telemetry
        self._exposition = exposition
        self._model_name = model_name
        self._created = int(time.time())

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat_completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/live", _live)
        app.router.add_get("/ready", self._probe(State.READY))
        app.router.add_get("/health", self._probe(State.READY, State.DRAINING))
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/version", _version)
        return app

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, Endpoint.COMPLETIONS)

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, Endpoint.CHAT_COMPLETIONS)

    async def _handle(self, http: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        request_id = http.headers.get(_REQUEST_ID) or uuid.uuid4().hex
        with self._lifecycle.request():
            try:
                request = GenerateRequest(
                    path=http.path,
                    body=await _read_body(http),
                    headers=_leg_headers(http, request_id),
                )
            except RequestFailed as failed:
                return _failure(failed, request_id)
            exchange = _Exchange(http, request, request_id, leaving=self.leaving)
            response = await self._measured(exchange, endpoint)
            if self.leaving and not response.prepared:
                response.force_close()
            return response

    async def _measured(self, exchange: "_Exchange", endpoint: Endpoint) -> web.StreamResponse:
        kind = RequestType.STREAM if exchange.request.stream else RequestType.UNARY
        record = RequestRecord(self._telemetry, endpoint, kind, now=time.monotonic())
        outcome, usage = Outcome.CANCELLED, None
        try:
            response, outcome, usage = await exchange.run(self._orchestrator, record)
            return response
        except RequestFailed as failed:
            outcome = Outcome.ERROR
            return _failure(failed, exchange.request_id)
        finally:
            record.finish(outcome, usage, now=time.monotonic())

    @property
    def leaving(self) -> bool:
        """Whether clients should not keep their connections."""
        return self._lifecycle.state is State.DRAINING

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": self._model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "mocker",
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._exposition.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    def _probe(self, *good: State) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def probe(request: web.Request) -> web.StreamResponse:
            state = self._lifecycle.state
            return web.json_response({"status": state}, status=200 if state in good else 503)

        return probe


class _Exchange:
    """One request and its answer."""

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
        """Get the answer and send it to the client."""
        async with orchestrator.generate(self.request) as generation:
            response = generation.reply.response
            if self.request.stream and response.status == 200:
                return await self._stream(generation, record)
            answer = generation.reply.first
            if response.status != 200:
                return self._whole(response, answer), Outcome.ERROR, None
            return self._whole(response, answer), Outcome.SUCCESS, read_usage(answer)

    def _whole(self, response: aiohttp.ClientResponse, answer: bytes) -> web.Response:
        headers = self._headers(response)
        if retry_after := response.headers.get("Retry-After"):
            headers["Retry-After"] = retry_after
        return web.Response(status=response.status, body=answer, headers=headers)

    async def _stream(
        self, generation: Generation, record: RequestRecord
    ) -> tuple[web.StreamResponse, Outcome, Usage | None]:
        reply = generation.reply
        client = web.StreamResponse(headers=self._headers(reply.response))
        if self._leaving:
            client.force_close()
        await client.prepare(self._http)
        events = EventStream(hide_usage=generation.hide_usage, opens_with_role=self.request.is_chat)
        outcome = Outcome.SUCCESS
        try:
            data = reply.first
            while data:
                await self._pass_on(data, events, client, record)
                data = await reply.read()
            if rest := events.finish():
                await client.write(rest)
        except aiohttp.ClientConnectionResetError:
            return client, Outcome.CANCELLED, events.usage
        except (aiohttp.ClientError, TimeoutError):
            outcome = Outcome.ERROR
            error = error_body(502, _BROKEN_OFF, kind="upstream_error")
            await client.write(b"data: " + error + b"\n\n")
        await client.write_eof()
        return client, outcome, events.usage

    async def _pass_on(
        self,
        data: bytes,
        events: EventStream,
        client: web.StreamResponse,
        record: RequestRecord,
    ) -> None:
        before = events.token_events
        whole = events.feed(data)
        record.tokens(events.token_events - before, now=time.monotonic())
        if whole:
            await client.write(whole)

    def _headers(self, response: aiohttp.ClientResponse) -> dict[str, str]:
        return {
            "Content-Type": response.headers.get("Content-Type", "application/json"),
            _REQUEST_ID: self.request_id,
        }


async def _read_body(http: web.Request) -> JsonObject:
    try:
        return parse_body(await http.read())
    except InvalidBody as error:
        raise invalid_request(str(error)) from error
    except web.HTTPRequestEntityTooLarge as error:
        text = f"the request body is larger than {_MAX_BODY_BYTES} bytes"
        raise RequestFailed(413, text, kind="invalid_request_error") from error


def _leg_headers(http: web.Request, request_id: str) -> dict[str, str]:
    forwarded = {name: http.headers[name] for name in _FORWARDED if name in http.headers}
    return {**forwarded, _REQUEST_ID: request_id, "Content-Type": "application/json"}


def _failure(failed: RequestFailed, request_id: str) -> web.Response:
    headers = {"Content-Type": "application/json", _REQUEST_ID: request_id}
    if failed.retry_after_s:
        headers["Retry-After"] = str(failed.retry_after_s)
    return web.Response(status=failed.status, body=failed.body, headers=headers)


async def _live(request: web.Request) -> web.Response:
    return web.json_response({"status": "live"})


async def _version(request: web.Request) -> web.Response:
    return web.json_response({"version": __version__})
