"""What clients may ask for: the bodies of chat completions and completions (vLLM 0.33).

Types and ranges are checked while decoding, meaning afterwards. Unknown fields are ignored, as in
vLLM, and so is what only changes how a model samples (temperature, penalties); known fields that
this engine does not do are answered with 501 unless they have the value that changes nothing.
"""

from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import msgspec

from mocker_protocol.request_limits import MAX_CHOICES
from mocker_worker.server.bodies import decode_body
from mocker_worker.server.errors import InvalidRequest, NotSupported
from mocker_worker.tokenizer import Tokenizer, tool_calls_text

DEFAULT_COMPLETION_TOKENS = 16
DEFAULT_CHAT_TOKENS = 128
"""Answer length of a chat that names none, when no `max_model_len` bounds the context."""
MAX_LOGPROBS = 20
MAX_TOKEN_ID = 2**32 - 1
_MAX_INTEGER = 2**63 - 1

Positive = Annotated[int, msgspec.Meta(ge=1, le=_MAX_INTEGER)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INTEGER)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
PromptTokenId = Annotated[
    int, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": MAX_TOKEN_ID})
]
"""Checked where it becomes an array: a bound costs a quarter of the decoding of long prompts."""
Integer = Annotated[int, msgspec.Meta(ge=-_MAX_INTEGER, le=_MAX_INTEGER)]
Logprobs = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]


class Prompt(NamedTuple):
    """One prompt as the engine sees it."""

    token_ids: Sequence[int]
    text: str | None
    """None if the client sent token ids."""


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside tokens."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    usage_is_hidden: bool = False
    """Said by the frontend, when the client will not see the usage that it asks for."""


class StructuredOutputs(msgspec.Struct, frozen=True):
    """What an answer must look like (vLLM's `structured_outputs`): exactly one of the fields."""

    json: str | dict[str, Any] | None = None
    choice: list[str] | None = None
    json_object: bool | None = None
    regex: str | None = None
    grammar: str | None = None
    structural_tag: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[Any] | None = None

    @property
    def text(self) -> str:
        """The message's text, with earlier tool calls after it.

        Raises:
            ApiError: with status 400 or 501 if a part of it is no text.
        """
        calls = tool_calls_text(self.tool_calls) if self.tool_calls else ""
        if not isinstance(self.content, list):
            return (self.content or "") + calls
        for part in self.content:
            if part.get("type") != "text":
                raise NotSupported("messages", "send content parts of type text only")
            if not isinstance(part.get("text"), str):
                raise InvalidRequest("messages", "messages.content.text: must be a string")
        return "".join(part["text"] for part in self.content) + calls


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that both kinds of completions have."""

    model: str | None = None
    max_tokens: Natural | None = None
    min_tokens: Natural | None = None
    ignore_eos: bool | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    n: Positive | None = None
    seed: Integer | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Logprobs | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds them to prompts; by default not to chats."""
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=_MAX_INTEGER)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    """Which end of a prompt is cut off; by default its beginning."""
    priority: Integer | None = None
    request_id: str | None = None
    cache_salt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    use_beam_search: bool | None = None

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
    def ends_with_usage(self) -> bool:
        """Whether the usage is the last chunk of a stream that the client sees."""
        options = self.stream_options
        return options is not None and options.include_usage and not options.usage_is_hidden

    @property
    def wants_remote_decode(self) -> bool:
        """Whether another worker will decode what is computed here."""
        return bool((self.kv_transfer_params or {}).get("do_remote_decode"))

    @property
    def has_remote_prefill(self) -> bool:
        """Whether another worker has computed the prompt."""
        return bool((self.kv_transfer_params or {}).get("do_remote_prefill"))

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end an answer."""
        stop = self.stop
        return (stop,) if isinstance(stop, str) else tuple(stop or ())

    @property
    def length_field(self) -> str:
        """The field that says how long the answer is."""
        return "max_tokens"

    @property
    def echoes_prompt(self) -> bool:
        """Whether the answer begins with the prompt."""
        return False

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives are told beside each token's own log probability; None: nothing."""
        return None

    @property
    def num_prompts(self) -> int:
        """How many `prompts` will return."""
        return 1

    def answer_tokens(self) -> int | None:
        """Return how many tokens are asked for; None when the request does not say."""
        return self.max_tokens

    def prompts(self, tokenizer: Tokenizer) -> list[Prompt]:
        """Return the prompts; `n` answers are wanted to each.

        Raises:
            ApiError: if there is something in them that no engine or not this one takes.
        """
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
        self._check_length()
        if self.num_prompts * (self.n or 1) > MAX_CHOICES:
            raise InvalidRequest("n", f"n: at most {MAX_CHOICES} answers per request; lower it")
        if "" in self.stops:
            raise InvalidRequest("stop", "stop: cannot contain an empty string; remove it")
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs", "prompt_logprobs: not available when stream is true"
            )
        self._check_supported()

    def _check_length(self) -> None:
        asked = self.answer_tokens()
        if asked == 0:
            field = self.length_field
            raise InvalidRequest(field, f"{field}: must be at least 1, got 0")
        if asked is not None and (self.min_tokens or 0) > asked:
            raise InvalidRequest(
                "min_tokens", f"min_tokens: must be at most {self.length_field} ({asked}); lower it"
            )

    def _check_supported(self) -> None:
        self._refuse("bad_words", "use_beam_search")
        if self.structured_outputs is not None:
            self._check_outputs(self.structured_outputs)

    def _refuse(self, *fields: str) -> None:
        for field in fields:
            if getattr(self, field):
                raise NotSupported(field, "leave it out")

    def _check_outputs(self, outputs: StructuredOutputs) -> None:
        given = [
            field for field in outputs.__struct_fields__ if getattr(outputs, field) is not None
        ]
        if len(given) != 1:
            raise InvalidRequest(
                "structured_outputs",
                f"structured_outputs: needs exactly one kind, not {', '.join(given) or 'none'}",
            )
        if given[0] in ("regex", "grammar", "structural_tag"):
            raise NotSupported(f"structured_outputs.{given[0]}", "use json or choice")
        if outputs.choice is not None and not all(outputs.choice or [""]):
            raise InvalidRequest(
                "structured_outputs", "structured_outputs.choice: needs texts that are not empty"
            )


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[str | PromptTokenId | list[PromptTokenId]]
    best_of: Positive | None = None
    echo: bool | None = None
    logprobs: Logprobs | None = None
    suffix: str | None = None
    prompt_embeds: str | list[str] | None = None

    @property
    def echoes_prompt(self) -> bool:
        """Whether the answer begins with the prompt."""
        return bool(self.echo)

    @property
    def num_logprobs(self) -> int | None:
        """`logprobs`."""
        return self.logprobs

    @property
    def num_prompts(self) -> int:
        """One, unless the prompt is a list of prompts."""
        prompt = self.prompt
        return 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)

    def answer_tokens(self) -> int:
        """Return `max_tokens`, by default 16."""
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    def prompts(self, tokenizer: Tokenizer) -> list[Prompt]:
        """Take a string, token ids, or a list of either."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [self._encoded(prompt, tokenizer)]
        if isinstance(prompt[0], int):
            return [Prompt(self._ids(prompt), None)]
        return [self._one(item, tokenizer) for item in prompt]

    def check(self) -> None:
        """Check what only completions have, too."""
        self._refuse("prompt_embeds")  # comes with an empty prompt
        if not self.prompt:
            raise InvalidRequest("prompt", "prompt: is empty; send at least one token")
        super().check()

    def _one(self, item: str | int | list[int], tokenizer: Tokenizer) -> Prompt:
        if isinstance(item, int):
            self._refuse_mixture()
        if isinstance(item, str):
            return self._encoded(item, tokenizer)
        return Prompt(self._ids(item), None)

    def _encoded(self, text: str, tokenizer: Tokenizer) -> Prompt:
        special = self.add_special_tokens is not False
        return Prompt(tokenizer.encode(text, add_special_tokens=special), text)

    def _ids(self, prompt: list[Any]) -> Sequence[int]:
        try:
            return array("I", prompt)
        except TypeError:
            self._refuse_mixture()
        except OverflowError:
            message = f"prompt: token ids must be integers in 0..{MAX_TOKEN_ID}"
            raise InvalidRequest("prompt", message) from None

    def _refuse_mixture(self) -> NoReturn:
        raise InvalidRequest("prompt", "prompt: token ids and other prompts cannot be mixed")

    def _check_length(self) -> None:
        if self.max_tokens != 0 or not self.echo:
            super()._check_length()

    def _check_supported(self) -> None:
        super()._check_supported()
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise NotSupported("best_of", "leave it out")
        self._refuse("suffix")


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Natural | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    """Whether the prompt ends with the opening of the answer; by default it does."""
    continue_final_message: bool | None = None
    echo: bool | None = None
    documents: list[Any] | None = None
    chat_template: str | None = None

    @property
    def length_field(self) -> str:
        """The newer field, if it is there."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def num_logprobs(self) -> int | None:
        """`top_logprobs` if `logprobs` is true."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def answer_tokens(self) -> int | None:
        """Return `max_completion_tokens`, else the older `max_tokens`."""
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer

    def prompts(self, tokenizer: Tokenizer) -> list[Prompt]:
        """Return the rendered chat."""
        turns = [(message.role, message.text) for message in self.messages]
        opens_answer = self.add_generation_prompt is not False
        text = tokenizer.render_chat(turns, tools=self.tools or (), opens_answer=opens_answer)
        special = bool(self.add_special_tokens)
        return [Prompt(tokenizer.encode(text, add_special_tokens=special), text)]

    def check(self) -> None:
        """Check what only chats have, too."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs", "top_logprobs: only allowed when logprobs is true")
        if self.tool_choice not in (None, "none") and not self.tools:
            raise InvalidRequest("tool_choice", "tool_choice: only allowed with tools; send some")

    def _check_supported(self) -> None:
        super()._check_supported()
        self._refuse("continue_final_message", "echo", "documents", "chat_template")


def parse_chat(body: bytes) -> ChatRequest:
    """Parse and check a chat completion.

    Raises:
        ApiError: with status 400 or 501, naming the field.
    """
    request = decode_body(_chat_decoder, body)
    request.check()
    return request


def parse_completion(body: bytes) -> CompletionRequest:
    """Parse and check a completion; errors as for chats."""
    request = decode_body(_completion_decoder, body)
    request.check()
    return request


_chat_decoder = msgspec.json.Decoder(ChatRequest)
_completion_decoder = msgspec.json.Decoder(CompletionRequest)
