"""Answers of the API: JSON bodies, and SSE events assembled from prepared parts.

A plain stream's events differ in one token's text only, so everything around it is encoded once
per choice; whatever says more of a token is encoded event by event.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mocker_worker.engine import FinishReason
from mocker_worker.server.choice import Choice, Piece
from mocker_worker.server.logprobs import LogprobsFormat
from mocker_worker.server.requests import GenerationRequest
from mocker_worker.server.scripts import CalledTool
from mocker_worker.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> dict[str, Any]:
        """Return OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all messages of one answer have in common."""

    is_chat: bool
    answer_id: str
    """Without its prefix."""
    model: str
    created_s: int
    fingerprint: str | None = None
    """Of the backend; None leaves it out of streams."""

    def fields(self, *, is_chunk: bool = False) -> dict[str, Any]:
        """Return the leading fields of a message."""
        prefix, kind = ("chatcmpl", "chat.completion") if self.is_chat else ("cmpl", None)
        if kind is not None and is_chunk:
            kind += ".chunk"
        return {
            "id": f"{prefix}-{self.answer_id}",
            "object": kind or "text_completion",
            "created": self.created_s,
            "model": self.model,
        }


class AnswerFormat:
    """Writes the answers to one request, whole or in chunks."""

    def __init__(
        self,
        head: AnswerHead,
        request: GenerationRequest,
        tokenizer: Tokenizer,
        *,
        texts: Mapping[int, bytes],
        extra: dict[str, Any],
    ) -> None:
        """Say what to write.

        Args:
            head: Of every message.
            request: What was asked for.
            tokenizer: Of the model.
            texts: `generated_json` of it.
            extra: Further top-level fields: of the whole answer, or of the last chunk.
        """
        self._head = head
        self._request = request
        self._tokenizer = tokenizer
        self._texts = texts
        self._extra = extra
        fingerprint = {} if head.fingerprint is None else {"system_fingerprint": head.fingerprint}
        self._with_usage = fingerprint if request.ends_with_usage else {}
        self._with_finish = extra if request.ends_with_usage else extra | fingerprint
        self._returns_token_ids = bool(request.return_token_ids)
        self._logprobs = LogprobsFormat(
            tokenizer.decoded_text, as_token_ids=bool(request.return_tokens_as_token_ids)
        )
        self._chunk_head = head.fields(is_chunk=True)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """Return the body of an answer that is not streamed."""
        body = self._head.fields() | {"choices": [self._choice(choice) for choice in choices]}
        body["system_fingerprint"] = self._head.fingerprint
        body["usage"] = usage.as_json()
        if self._head.is_chat:
            body |= self._prompt_fields(choices[0])
        return _encode(body | self._extra)

    def opening(self, choice: Choice, usage: Usage | None) -> bytes:
        """Return the event that names the role; empty for completions, which have none."""
        if not self._head.is_chat:
            return b""
        message = {
            "index": choice.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        fields = self._prompt_fields(choice) if self._returns_token_ids else {}
        return self._event([message], usage, fields)

    def piece(self, choice: Choice, piece: Piece, usage: Usage | None) -> bytes:
        """Return the event of one token."""
        message: dict[str, Any] = {"index": choice.index}
        if self._head.is_chat:
            message["delta"] = _delta(piece, choice)
        else:
            message["text"] = piece.text
        message["logprobs"] = self._piece_logprobs([piece])
        message["finish_reason"] = piece.finish_reason
        if piece.finish_reason is not None:
            message["stop_reason"] = piece.stop_reason
        if self._returns_token_ids:
            message["token_ids"] = list(piece.token_ids)
            if not self._head.is_chat and choice.num_tokens <= 1:
                message["prompt_token_ids"] = list(choice.prompt.token_ids)
        extra = self._with_finish if piece.finish_reason is not None else {}
        return self._event([message], usage, extra)

    def usage(self, usage: Usage) -> bytes:
        """Return the event without choices that ends a stream with `include_usage`."""
        return self._event([], usage, self._with_usage)

    def plain(self, choice: Choice) -> "PlainEvents":
        """Return what assembles the events of a plain choice."""
        return PlainEvents(self, choice, self._texts)

    def frame(self, choice: Choice, reason: str | None) -> tuple[bytes, bytes]:
        """Return what stands before and after the JSON text of a plain choice's token."""
        marker = "\x00"
        piece = Piece(marker, (), (), 0, reason)
        before, _, after = self.piece(choice, piece, None).partition(_encode(marker))
        return before, after

    def _event(
        self, choices: list[dict[str, Any]], usage: Usage | None, extra: dict[str, Any]
    ) -> bytes:
        body = self._chunk_head | {"choices": choices}
        if usage is not None:
            body["usage"] = usage.as_json()
        return b"data: %b\n\n" % _encode(body | extra)

    def _choice(self, choice: Choice) -> dict[str, Any]:
        pieces = choice.pieces
        if choice.text is None:
            texts = self._tokenizer.generated_texts
            text = "".join([texts[token_id] for token_id in choice.token_ids])
            token_ids: Sequence[int] = choice.token_ids
        else:
            text = "".join(piece.text for piece in pieces)
            token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
        message: dict[str, Any] = {"index": choice.index}
        if self._head.is_chat:
            message["message"] = _message(text, choice.script.tool)
        else:
            message["text"] = text
        message["logprobs"] = self._piece_logprobs(pieces)
        message["finish_reason"] = choice.finish_reason
        message["stop_reason"] = pieces[-1].stop_reason if pieces else None
        if self._returns_token_ids:
            message["token_ids"] = token_ids
        if not self._head.is_chat:
            message |= self._prompt_fields(choice)
        return message

    def _prompt_fields(self, choice: Choice) -> dict[str, Any]:
        """Return what is told of a prompt: by vLLM at the top for chats, else in the choice."""
        fields: dict[str, Any] = {}
        if self._returns_token_ids:
            fields["prompt_token_ids"] = list(choice.prompt.token_ids)
        if (num_top := self._request.prompt_logprobs) is not None:
            fields["prompt_logprobs"] = self._logprobs.prompt(choice.prompt.token_ids, num_top)
        return fields

    def _piece_logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        if self._request.num_logprobs is None or not pieces:
            return None
        tokens = [token for piece in pieces for token in piece.logprobs]
        if self._head.is_chat:
            return self._logprobs.chat([token for token in tokens if token is not None])
        token_ids = pieces[0].prompt_token_ids or pieces[0].token_ids
        first = token_ids[0] if token_ids else None
        return self._logprobs.completion(tokens, first, pieces[0].offset)


class PlainEvents:
    """Assembles the events of a choice whose tokens are nothing but their texts."""

    __slots__ = ("_after", "_before", "_between", "_choice", "_format", "_texts")

    def __init__(
        self, answer_format: AnswerFormat, choice: Choice, texts: Mapping[int, bytes]
    ) -> None:
        self._format = answer_format
        self._choice = choice
        self._texts = texts
        self._before, self._after = answer_format.frame(choice, None)
        self._between = self._after + self._before

    def of(self, token_ids: Sequence[int], finish_reason: FinishReason | None = None) -> bytes:
        """Return the events of some tokens; with a finish reason they are the last ones."""
        texts = self._texts
        if finish_reason is None:
            events = self._between.join([texts[token_id] for token_id in token_ids])
            return b"%b%b%b" % (self._before, events, self._after)
        *most, last = token_ids
        before, after = self._format.frame(self._choice, str(finish_reason))
        end = b"%b%b%b" % (before, texts[last], after)
        return self.of(most) + end if most else end


def generated_json(tokenizer: Tokenizer) -> Mapping[int, bytes]:
    """Return the JSON of every text that the engine makes up."""
    return {token_id: _encode(text) for token_id, text in tokenizer.generated_texts.items()}


def error_ending(body: bytes) -> bytes:
    """Return what ends a stream with an error, given the error's JSON."""
    return b"data: " + body + b"\n\n" + DONE


def _delta(piece: Piece, choice: Choice) -> dict[str, Any]:
    """Return what a token adds to a message; the first one of a tool call says what is called."""
    tool = choice.script.tool
    if tool is None:
        return {"content": piece.text}
    if choice.num_tokens <= 1:
        return {"tool_calls": [{"index": 0} | _tool_call(tool, piece.text)]}
    return {"tool_calls": [{"index": 0, "function": {"arguments": piece.text}}]}


def _message(text: str, tool: CalledTool | None) -> dict[str, Any]:
    if tool is None:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": None, "tool_calls": [_tool_call(tool, text)]}


def _tool_call(tool: CalledTool, arguments: str) -> dict[str, Any]:
    function = {"name": tool.name, "arguments": arguments}
    return {"id": tool.call_id, "type": "function", "function": function}
