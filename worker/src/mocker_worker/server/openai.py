"""Handlers of the OpenAI API: chat completions, completions and the list of models."""

import contextlib
import time
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import HttpVersion11, web

from mocker_protocol.model_card import model_list
from mocker_worker.driver import EngineStopped
from mocker_worker.lifecycle import Lifecycle, LifeState
from mocker_worker.server.answering import StreamedAnswer, WholeAnswer
from mocker_worker.server.answers import AnswerFormat, AnswerHead, error_ending, generated_json
from mocker_worker.server.errors import ApiError, error_body, unavailable
from mocker_worker.server.faults import Fault, FaultKind, FaultPlan
from mocker_worker.server.generation import Generation, Generator
from mocker_worker.server.requests import (
    ChatRequest,
    GenerationRequest,
    parse_chat,
    parse_completion,
)


class OpenAiApi:
    """Answers requests for tokens."""

    def __init__(
        self,
        generator: Generator,
        lifecycle: Lifecycle,
        *,
        model_name: str,
        max_model_len: int,
        faults: FaultPlan,
        fingerprint: str | None,
    ) -> None:
        self._generator = generator
        self._lifecycle = lifecycle
        self._model_name = model_name
        self._max_model_len = max_model_len
        self._faults = faults
        self._fingerprint = fingerprint
        self._created_s = int(time.time())
        self._texts = generated_json(generator.tokenizer)

    def add_routes(self, app: web.Application) -> None:
        """Add the API's routes."""
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completion)

    async def models(self, request: web.Request) -> web.Response:
        """List the one model."""
        models = model_list(
            self._model_name, created_s=self._created_s, max_model_len=self._max_model_len
        )
        return web.json_response(models)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat."""
        return await self._answer(request, parse_chat)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """Answer a completion."""
        return await self._answer(request, parse_completion)

    async def _answer(
        self, http: web.Request, parse: Callable[[bytes], GenerationRequest]
    ) -> web.StreamResponse:
        if not self._lifecycle.takes_requests:
            raise unavailable(f"the worker is {self._lifecycle.state}")
        self._lifecycle.begin_request()
        try:
            fault = self._faults.draw(http.headers)
            if fault is not None and fault.error is not None:
                raise fault.error
            request = parse(await http.read())
            generation = self._generator.plan(request, http.headers)
            try:
                return await self._generate(http, request, generation, fault)
            except EngineStopped as error:
                raise unavailable(str(error)) from error
            finally:
                generation.close()
        finally:
            self._lifecycle.end_request()

    async def _generate(
        self,
        http: web.Request,
        request: GenerationRequest,
        generation: Generation,
        fault: Fault | None,
    ) -> web.StreamResponse:
        head = AnswerHead(
            is_chat=isinstance(request, ChatRequest),
            answer_id=generation.answer_id,
            model=request.model or generation.model,
            created_s=int(time.time()),
            fingerprint=self._fingerprint,
        )
        answer_format = AnswerFormat(
            head,
            request,
            self._generator.tokenizer,
            texts=self._texts,
            extra=generation.hand_off,
        )
        if request.stream:
            return await self._stream(http, request, generation, answer_format, fault)
        if fault is not None:
            _break(http, fault)
            raise _broken()
        return await self._whole(generation, answer_format)

    async def _whole(self, generation: Generation, answer_format: AnswerFormat) -> web.Response:
        answer = WholeAnswer(generation.choices, generation.finish)
        generation.submit()
        await answer.wait()
        await generation.hand_over()
        response = web.Response(
            body=answer_format.whole(answer.choices, answer.usage()),
            content_type="application/json",
        )
        self._close_when_draining(response)
        return response

    async def _stream(
        self,
        http: web.Request,
        request: GenerationRequest,
        generation: Generation,
        answer_format: AnswerFormat,
        fault: Fault | None,
    ) -> web.StreamResponse:
        answer = StreamedAnswer(
            generation.choices,
            generation.finish,
            answer_format,
            continuous_usage=request.continuous_usage,
            breaks=fault is not None,
        )
        generation.submit()
        await answer.first_tokens()
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        response.headers["Cache-Control"] = "no-cache"
        self._close_when_draining(response)
        if http.version < HttpVersion11:
            response.force_close()  # nothing else tells a client of HTTP/1.0 where the body ends
        with contextlib.suppress(ConnectionResetError):  # the client has left
            await answer.begin(http, response)
            if fault is not None:
                generation.close()
                _break(http, fault)
                rest = error_ending(error_body(_broken()))
            else:
                rest = await _rest(answer, generation, include_usage=request.include_usage)
            await response.write_eof(rest)
        return response

    def _close_when_draining(self, response: web.StreamResponse) -> None:
        """Make clients open their next connection elsewhere."""
        if self._lifecycle.state is LifeState.DRAINING:
            response.force_close()


def _break(http: web.Request, fault: Fault) -> None:
    """Cut the connection, if that is the fault."""
    if fault.kind is FaultKind.DISCONNECT and http.transport is not None:
        http.transport.abort()


def _broken() -> ApiError:
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "The stream broke (injected fault)")


async def _rest(answer: StreamedAnswer, generation: Generation, *, include_usage: bool) -> bytes:
    """Return the end of a stream, when it is time for it."""
    try:
        rest = await answer.end(include_usage=include_usage)
    except EngineStopped as error:
        return error_ending(error_body(unavailable(str(error))))
    await generation.hand_over()
    return rest
