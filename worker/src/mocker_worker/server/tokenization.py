"""`/tokenize` and `/detokenize`, as in vLLM: routers ask them where blocks begin."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from aiohttp import web

from mocker_worker.server.bodies import decode_body
from mocker_worker.server.errors import InvalidRequest, NotSupported
from mocker_worker.server.requests import Message, TokenId
from mocker_worker.tokenizer import Tokenizer


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/tokenize`: a prompt, or else the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    """By default for prompts, not for chats."""
    add_generation_prompt: bool = True
    tools: list[Any] | None = None
    """What the assistant of a chat may call."""
    continue_final_message: bool | None = None
    chat_template: str | None = None
    return_token_strs: bool | None = False


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/detokenize`."""

    prompt: str


_tokenize_decoder = msgspec.json.Decoder(TokenizeRequest)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeRequest)


class TokenizationApi:
    """Answers with the worker's tokenizer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_model_len: int,
        check_model: Callable[[str | None], object],
    ) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._check_model = check_model

    def add_routes(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)

    async def tokenize(self, http: web.Request) -> web.Response:
        """Answer with the tokens of a text."""
        request = decode_body(_tokenize_decoder, await http.read())
        self._check_model(request.model)
        text, is_chat = self._text(request)
        special = request.add_special_tokens
        tokens = self._tokenizer.encode(
            text, add_special_tokens=not is_chat if special is None else special
        )
        texts = list(map(self._tokenizer.token_text, tokens)) if request.return_token_strs else None
        return _json(
            TokenizeResponse(
                count=len(tokens),
                max_model_len=self._max_model_len,
                tokens=tokens,
                token_strs=texts,
            )
        )

    async def detokenize(self, http: web.Request) -> web.Response:
        """Answer with the text of tokens."""
        request = decode_body(_detokenize_decoder, await http.read())
        self._check_model(request.model)
        return _json(DetokenizeResponse(prompt=self._tokenizer.decode(request.tokens)))

    def _text(self, request: TokenizeRequest) -> tuple[str, bool]:
        """Return the text and whether it is a chat."""
        if request.prompt is not None:
            return request.prompt, False
        if request.messages is None:
            raise InvalidRequest("prompt", "prompt: is missing; send prompt or messages")
        for field in ("continue_final_message", "chat_template"):
            if getattr(request, field):
                raise NotSupported(field, "leave it out")
        turns = [(message.role, message.text) for message in request.messages]
        text = self._tokenizer.render_chat(
            turns, tools=_checked(request.tools), opens_answer=request.add_generation_prompt
        )
        return text, True


def _checked(tools: Sequence[Any] | None) -> Sequence[Any]:
    if not tools:
        return ()
    # Only who sends tools pays for what makes up their arguments.
    from mocker_worker.server.tool_calls import check_tools

    check_tools(tools)
    return tools


def _json(answer: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
