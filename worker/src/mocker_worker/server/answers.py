"""Answers of the API: JSON bodies, and SSE chunks assembled from prepared parts.

A stream's chunks differ in one token only, so everything around it is encoded once per stream.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mocker_worker.tokenizer import TOKEN_TEXTS, detokenize

DONE = b"data: [DONE]\n\n"
_TOKEN_JSON = {token_id: json.dumps(text).encode() for token_id, text in TOKEN_TEXTS.items()}


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

    def fields(self, kind: str | None = None) -> dict[str, Any]:
        """Return the leading fields of a message."""
        prefix, name = ("chatcmpl", "chat.completion") if self.is_chat else ("cmpl", kind)
        if self.is_chat and kind is not None:
            name = kind
        return {
            "id": f"{prefix}-{self.answer_id}",
            "object": name or "text_completion",
            "created": self.created_s,
            "model": self.model,
        }


def full_answer(
    head: AnswerHead,
    token_ids: Sequence[int],
    *,
    finish_reason: str,
    usage: Usage,
    extra: dict[str, Any],
) -> bytes:
    """Return the body of an answer that is not streamed; `extra` goes to its top level."""
    text = detokenize(token_ids)
    choice: dict[str, Any] = {"index": 0}
    if head.is_chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    choice |= {"logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    body = head.fields() | {"choices": [choice], "usage": usage.as_json()} | extra
    return json.dumps(body).encode()


class ChunkWriter:
    """Assembles the SSE events of one stream."""

    def __init__(self, head: AnswerHead, *, extra: dict[str, Any]) -> None:
        self._is_chat = head.is_chat
        fields = head.fields("chat.completion.chunk" if head.is_chat else "text_completion")
        self._head = b"data: " + json.dumps(fields).encode()[:-1]
        key = b'"delta":{"content":' if head.is_chat else b'"text":'
        self._before = self._head + b',"choices":[{"index":0,' + key
        after = b'},"logprobs":null,' if head.is_chat else b',"logprobs":null,'
        self._after = after + b'"finish_reason":null}]'
        self._after_last = after + b'"finish_reason":%b,"stop_reason":null}]'
        self._extra = b"," + json.dumps(extra).encode()[1:-1] if extra else b""

    def opening(self, usage: Usage | None = None) -> bytes:
        """Return the chunk that names the role; empty for completions, which have none."""
        if not self._is_chat:
            return b""
        choice = (
            b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]'
        )
        return self._head + choice + _usage_field(usage) + b"}\n\n"

    def token(
        self, token_id: int, finish_reason: str | None = None, *, usage: Usage | None = None
    ) -> bytes:
        """Return the chunk of one token; `usage` only for continuous usage statistics."""
        text = _TOKEN_JSON.get(token_id) or json.dumps(detokenize([token_id])).encode()
        if finish_reason is None and usage is None:
            return b"%b%b%b}\n\n" % (self._before, text, self._after)
        after, extra = self._after, b""
        if finish_reason is not None:
            after = self._after_last % json.dumps(finish_reason).encode()
            extra = self._extra
        return b"".join((self._before, text, after, _usage_field(usage), extra, b"}\n\n"))

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk without choices that ends a stream with `include_usage`."""
        return self._head + b',"choices":[]' + _usage_field(usage) + b"}\n\n"


def error_event(body: bytes) -> bytes:
    """Return an error in the middle of a stream."""
    return b"data: " + body + b"\n\n"


def _usage_field(usage: Usage | None) -> bytes:
    return b"" if usage is None else b',"usage":' + json.dumps(usage.as_json()).encode()
