"""Handlers of the OpenAI API: chat completions, completions and the list of models."""

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

from mocker_worker.driver import EngineStopped
from mocker_worker.engine import TokenOutput
from mocker_worker.lifecycle import Lifecycle, LifeState
from mocker_worker.server.answers import (
    DONE,
    AnswerHead,
    ChunkWriter,
    Usage,
    error_event,
    full_answer,
)
from mocker_worker.server.errors import error_body, unavailable
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
        max_model_len: int | None,
        pod_name: str | None,
    ) -> None:
        self._generator = generator
        self._lifecycle = lifecycle
        self._model_name = model_name
        self._max_model_len = max_model_len
        self._created_s = int(time.time())
        self._headers = {"X-Pod-Name": pod_name} if pod_name else {}

    def add_routes(self, app: web.Application) -> None:
        """Add the API's routes."""
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completion)

    async def models(self, request: web.Request) -> web.Response:
        """List the one model."""
        model = {
            "id": self._model_name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "vllm",
            "root": self._model_name,
            "parent": None,
            "max_model_len": self._max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

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
            request = parse(await http.read())
            generation = self._generator.start(request, http.headers)
            try:
                return await self._generate(http, request, generation)
            finally:
                generation.driver.cancel(generation.stream)
        finally:
            self._lifecycle.end_request()

    async def _generate(
        self, http: web.Request, request: GenerationRequest, generation: Generation
    ) -> web.StreamResponse:
        head = AnswerHead(
            is_chat=isinstance(request, ChatRequest),
            answer_id=generation.answer_id,
            model=generation.model,
            created_s=int(time.time()),
        )
        try:
            tokens = await generation.stream.next_tokens()
            if request.stream:
                response = web.StreamResponse(headers=self._headers)
                response.content_type = "text/event-stream"
                response.headers["Cache-Control"] = "no-cache"
                self._close_when_draining(response)
                await _Streaming(response, request, generation, head).run(http, tokens)
                return response
            while tokens[-1].finish_reason is None:
                tokens += await generation.stream.next_tokens()
            if generation.transfer_s:
                await asyncio.sleep(generation.transfer_s)
        except EngineStopped as error:
            raise unavailable(str(error)) from error
        return self._whole(head, generation, tokens)

    def _whole(
        self, head: AnswerHead, generation: Generation, tokens: list[TokenOutput]
    ) -> web.Response:
        body = full_answer(
            head,
            [token.token_id for token in tokens],
            finish_reason=str(tokens[-1].finish_reason),
            usage=_usage(generation, tokens[0], len(tokens)),
            extra=generation.hand_off,
        )
        response = web.Response(body=body, content_type="application/json", headers=self._headers)
        self._close_when_draining(response)
        return response

    def _close_when_draining(self, response: web.StreamResponse) -> None:
        """Make clients open their next connection elsewhere."""
        if self._lifecycle.state is LifeState.DRAINING:
            response.force_close()


class _Streaming:
    """One stream of server-sent events, one event per token."""

    def __init__(
        self,
        response: web.StreamResponse,
        request: GenerationRequest,
        generation: Generation,
        head: AnswerHead,
    ) -> None:
        self._response = response
        self._generation = generation
        self._chunks = ChunkWriter(head, extra=generation.hand_off)
        self._include_usage = request.include_usage
        self._continuous_usage = request.continuous_usage
        self._num_tokens = 0

    async def run(self, http: web.Request, tokens: list[TokenOutput]) -> None:
        """Write until the last token, beginning with `tokens`; a client that left ends it."""
        try:
            await self._response.prepare(http)
            await self._write_all(tokens)
            await self._response.write_eof()
        except ConnectionResetError:
            return

    async def _write_all(self, tokens: list[TokenOutput]) -> None:
        opening = self._chunks.opening(self._usage_so_far(tokens[0]))
        await self._response.write(opening + self._events(tokens))
        try:
            while tokens[-1].finish_reason is None:
                tokens = await self._generation.stream.next_tokens()
                await self._response.write(self._events(tokens))
        except EngineStopped as error:
            event = error_event(error_body(unavailable(str(error))))
            await self._response.write(event + DONE)

    def _events(self, tokens: list[TokenOutput]) -> bytes:
        events = []
        for token in tokens:
            self._num_tokens += 1
            usage = self._usage_so_far(token)
            events.append(self._chunks.token(token.token_id, token.finish_reason, usage=usage))
        last = tokens[-1]
        if last.finish_reason is not None:
            if self._include_usage:
                usage = _usage(self._generation, last, self._num_tokens)
                events.append(self._chunks.usage(usage))
            events.append(DONE)
        return b"".join(events)

    def _usage_so_far(self, token: TokenOutput) -> Usage | None:
        if not self._continuous_usage:
            return None
        return _usage(self._generation, token, self._num_tokens)


def _usage(generation: Generation, token: TokenOutput, completion_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=generation.stream.request.num_prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=token.num_cached_tokens,
    )
