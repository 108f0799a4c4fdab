"""What clients may ask for: the bodies of chat completions and completions.

Types and ranges are checked while decoding, meaning afterwards. Unknown fields are ignored, as in
vLLM; known ones that this engine does not do are answered with 501 unless they have the value
that changes nothing.
"""

import re
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from mocker_protocol.json_nesting import TooDeep, check_nesting
from mocker_worker.server.errors import InvalidRequest, NotSupported
from mocker_worker.tokenizer import (
    TOKEN_TEXTS,
    can_be_generated,
    render_chat,
    tokenize,
    tool_calls_text,
)

DEFAULT_COMPLETION_TOKENS = 16
DEFAULT_CHAT_TOKENS = 128
"""Answer length of a chat that names none, when no `max_model_len` bounds the context."""
_MAX_TOKEN_ID = 2**32 - 1

Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=_MAX_TOKEN_ID)]


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside tokens."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[Any] | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that both kinds of completions have."""

    model: str | None = None
    max_tokens: Positive | None = None
    min_tokens: Natural | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    n: Positive | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    structured_outputs: Any = None

    @property
    def include_usage(self) -> bool:
        """Whether a last chunk of the stream carries the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of the stream carries the usage so far."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats

    @property
    def wants_remote_decode(self) -> bool:
        """Whether another worker will decode what is computed here."""
        return bool((self.kv_transfer_params or {}).get("do_remote_decode"))

    @property
    def has_remote_prefill(self) -> bool:
        """Whether another worker has computed the prompt."""
        return bool((self.kv_transfer_params or {}).get("do_remote_prefill"))

    def answer_tokens(self) -> int | None:
        """Return how many tokens are asked for; None when the request does not say."""
        return self.max_tokens

    def prompt_token_ids(self) -> list[int]:
        """Return the prompt as the engine sees it."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse what contradicts itself or what this engine does not do.

        Raises:
            ApiError: with status 400 or 501, naming the field.
        """
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options", "stream_options: only allowed when stream is true"
            )
        asked = self.answer_tokens()
        if asked is not None and (self.min_tokens or 0) > asked:
            raise InvalidRequest(
                "min_tokens", f"min_tokens: must be at most max_tokens ({asked}); lower it"
            )
        if (self.n or 1) != 1:
            raise NotSupported("n", "leave it at 1")
        if self.prompt_logprobs is not None:
            raise NotSupported("prompt_logprobs", "leave it out")
        if self.structured_outputs:
            raise NotSupported("structured_outputs", "leave it out")
        self._check_stops()

    def _check_stops(self) -> None:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if any(can_be_generated(stop) for stop in stops):
            raise NotSupported("stop", "use a string that no generated text can contain")
        if any(token_id in TOKEN_TEXTS for token_id in self.stop_token_ids or []):
            raise NotSupported("stop_token_ids", "use ids that are never generated")


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[str | TokenId | list[TokenId]]
    best_of: Positive | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None

    def answer_tokens(self) -> int:
        """Return `max_tokens`, by default 16."""
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS

    def prompt_token_ids(self) -> list[int]:
        """Take a string, one string in a list, token ids, or one list of them in a list."""
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise NotSupported("prompt", "send one prompt per request")
            prompt = prompt[0]  # type: ignore[assignment]
        if isinstance(prompt, str):
            return tokenize(prompt)
        if any(not isinstance(token_id, int) for token_id in prompt):
            raise InvalidRequest("prompt", "prompt: token ids and texts cannot be mixed")
        return list(prompt)  # type: ignore[arg-type]

    def check(self) -> None:
        """Check what only completions have, too."""
        GenerationRequest.check(self)
        if (self.best_of or 1) != 1:
            raise NotSupported("best_of", "leave it at 1")
        if self.echo:
            raise NotSupported("echo", "leave it false")
        if self.logprobs is not None:
            raise NotSupported("logprobs", "leave it out")
        if self.suffix:
            raise NotSupported("suffix", "leave it out")


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None

    def answer_tokens(self) -> int | None:
        """Return `max_completion_tokens`, else the older `max_tokens`."""
        return self.max_completion_tokens or self.max_tokens

    def prompt_token_ids(self) -> list[int]:
        """Return the tokens of the rendered chat."""
        return tokenize(render_chat([(item.role, _content(item)) for item in self.messages]))

    def check(self) -> None:
        """Check what only chats have, too."""
        GenerationRequest.check(self)
        if self.logprobs or self.top_logprobs:
            raise NotSupported("logprobs", "leave it false")
        if self.tools and self.tool_choice != "none":
            raise NotSupported("tools", "leave it out or set tool_choice to none")
        if (self.response_format or {}).get("type", "text") != "text":
            raise NotSupported("response_format", "use type text")


_Body = TypeVar("_Body", ChatRequest, CompletionRequest)
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")


def parse_chat(body: bytes) -> ChatRequest:
    """Parse and check a chat completion.

    Raises:
        ApiError: with status 400 or 501, naming the field.
    """
    return _parse(_chat_decoder, body)


def parse_completion(body: bytes) -> CompletionRequest:
    """Parse and check a completion; errors as for chats."""
    return _parse(_completion_decoder, body)


_chat_decoder = msgspec.json.Decoder(ChatRequest)
_completion_decoder = msgspec.json.Decoder(CompletionRequest)


def _parse(decoder: "msgspec.json.Decoder[_Body]", body: bytes) -> _Body:
    try:
        check_nesting(body)
        request = decoder.decode(body)
    except TooDeep as error:
        raise InvalidRequest(None, f"the body is refused: {error}; flatten it") from error
    except msgspec.ValidationError as error:
        _refuse(str(error))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(None, f"the body is not JSON: {error}") from error
    request.check()
    return request


def _refuse(message: str) -> NoReturn:
    """Turn msgspec's text, which ends with the path of the value, into vLLM's error."""
    path = _PATH.search(message)
    missing = _MISSING.search(message)
    field = path[1] if path else ""
    if missing:
        field = f"{field}.{missing[1]}" if field else missing[1]
    text = _PATH.sub("", message)
    param = re.split(r"[.\[]", field)[0] or None
    raise InvalidRequest(param, f"{field}: {text}" if field else text)


def _content(message: Message) -> str:
    """Return a message's text, with earlier tool calls after it."""
    calls = tool_calls_text(message.tool_calls) if message.tool_calls else ""
    if not isinstance(message.content, list):
        return (message.content or "") + calls
    for part in message.content:
        if part.get("type") != "text":
            raise NotSupported("messages", "send content parts of type text only")
        if not isinstance(part.get("text"), str):
            raise InvalidRequest("messages", "messages.content.text: must be a string")
    return "".join(part["text"] for part in message.content) + calls
