"""HTTP edge: OpenAI's endpoints, what passes through to workers, probes and metrics."""

import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

from aiohttp import web

from mocker_frontend.access import errors_as_json, failure, require_key
from mocker_frontend.disagg import InvalidBody, parse_body
from mocker_frontend.errors import RequestFailed, invalid_request
from mocker_frontend.exchange import Exchange
from mocker_frontend.exposition import Exposition
from mocker_frontend.headers import REQUEST_ID, request_id_of, to_worker
from mocker_frontend.lifecycle import Lifecycle, State
from mocker_frontend.orchestration import GenerateRequest, Orchestrator
from mocker_frontend.passthrough import Passthrough
from mocker_frontend.telemetry import Endpoint, Outcome, RequestRecord, RequestType, Telemetry
from mocker_protocol import __version__
from mocker_protocol.model_card import model_list

_MAX_BODY_BYTES = 64 * 2**20


class Server:
    """The request handlers of one frontend."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        passthrough: Passthrough,
        lifecycle: Lifecycle,
        telemetry: Telemetry,
        exposition: Exposition,
        *,
        model_name: str,
    ) -> None:
        self._orchestrator = orchestrator
        self._passthrough = passthrough
        self._lifecycle = lifecycle
        self._telemetry = telemetry
        self._exposition = exposition
        self._model_name = model_name
        self._created = int(time.time())

    def application(self, *, api_keys: Sequence[str] = ()) -> web.Application:
        """Return the aiohttp application.

        Args:
            api_keys: Keys that `/v1` takes; with none it takes everybody.
        """
        guards = [require_key(api_keys)] if api_keys else []
        app = web.Application(
            client_max_size=_MAX_BODY_BYTES, middlewares=[errors_as_json, *guards]
        )
        router = app.router
        router.add_post("/v1/completions", self._completions)
        router.add_post("/v1/chat/completions", self._chat_completions)
        router.add_get("/v1/models", self._models)
        router.add_post("/tokenize", self._one_worker)
        router.add_post("/detokenize", self._one_worker)
        router.add_post("/reset_prefix_cache", self._all_workers)
        router.add_get("/live", _live)
        router.add_get("/ready", self._probe(State.READY))
        for path in ("/health", "/ping"):
            router.add_get(path, self._probe(State.READY, State.DRAINING))
        router.add_post("/ping", self._probe(State.READY, State.DRAINING))
        router.add_get("/load", self._load)
        router.add_get("/metrics", self._metrics)
        router.add_get("/version", _version)
        return app

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, Endpoint.COMPLETIONS)

    async def _chat_completions(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, Endpoint.CHAT_COMPLETIONS)

    async def _one_worker(self, http: web.Request) -> web.StreamResponse:
        async def ask(payload: bytes, request_id: str) -> web.StreamResponse:
            return await self._passthrough.to_one(http, payload, request_id)

        return await self._answer(http, ask)

    async def _all_workers(self, http: web.Request) -> web.StreamResponse:
        async def ask(payload: bytes, request_id: str) -> web.StreamResponse:
            return await self._passthrough.to_all(http, payload, request_id)

        return await self._answer(http, ask)

    async def _generate(self, http: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        async def ask(payload: bytes, request_id: str) -> web.StreamResponse:
            try:
                body = parse_body(payload)
            except InvalidBody as error:
                raise invalid_request(str(error)) from error
            request = GenerateRequest(
                path=http.path_qs,
                payload=payload,
                body=body,
                headers=to_worker(http.headers, request_id),
            )
            exchange = Exchange(http, request, request_id, leaving=self._leaving)
            return await self._measured(exchange, endpoint)

        return await self._answer(http, ask)

    async def _answer(
        self, http: web.Request, ask: Callable[[bytes, str], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer a request that workers are asked for."""
        request_id = request_id_of(http.headers)
        with self._lifecycle.request():
            try:
                response = await ask(await _read_body(http), request_id)
            except RequestFailed as failed:
                response = failure(failed)
                response.headers[REQUEST_ID] = request_id
            if self._leaving and not response.prepared:
                response.force_close()
            return response

    async def _measured(self, exchange: Exchange, endpoint: Endpoint) -> web.StreamResponse:
        request = exchange.request
        kind = RequestType.STREAM if request.stream else RequestType.UNARY
        record = RequestRecord(
            self._telemetry, endpoint, kind, now=time.monotonic(), num_choices=request.num_choices
        )
        outcome, usage = Outcome.CANCELLED, None
        try:
            response, outcome, usage = await exchange.run(self._orchestrator, record)
            return response
        except ConnectionResetError:  # the client has left
            raise
        except Exception:
            outcome = Outcome.ERROR
            raise
        finally:
            record.finish(outcome, usage, now=time.monotonic())

    @property
    def _leaving(self) -> bool:
        """Whether clients should not keep their connections."""
        return self._lifecycle.state is State.DRAINING

    async def _models(self, http: web.Request) -> web.Response:
        models = model_list(
            self._model_name,
            created_s=self._created,
            max_model_len=self._orchestrator.max_model_len,
        )
        return web.json_response(models)

    async def _load(self, http: web.Request) -> web.Response:
        return web.json_response({"server_load": self._lifecycle.running})

    async def _metrics(self, http: web.Request) -> web.Response:
        return web.Response(
            body=self._exposition.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    def _probe(self, *good: State) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def probe(http: web.Request) -> web.StreamResponse:
            state = self._lifecycle.state
            return web.json_response({"status": state}, status=200 if state in good else 503)

        return probe


async def _read_body(http: web.Request) -> bytes:
    try:
        return await http.read()
    except web.HTTPRequestEntityTooLarge as error:
        text = f"the request body is larger than {_MAX_BODY_BYTES} bytes"
        raise RequestFailed(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text) from error


async def _live(http: web.Request) -> web.Response:
    return web.json_response({"status": "live"})


async def _version(http: web.Request) -> web.Response:
    return web.json_response({"version": __version__})
