"""Draws requests of all kinds that a worker serves, and such that it must refuse.

Fields are drawn independently of one another, so that any may meet any other. A request knows the
statuses that it may be answered with; a worker of `BLOCKS` blocks of `BLOCK_TOKENS` has room for
each of those that are to be answered, and for few at once.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BLOCKS, BLOCK_TOKENS = 64, 16
_CAPACITY_TOKENS = BLOCKS * BLOCK_TOKENS
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
_TOOL = {"type": "function", "function": {"name": "find", "parameters": _SCHEMA}}
_STATUS_OF_FAULT = {
    "rate_limit": 429,
    "invalid_api_key": 401,
    "context_length": 400,
    "server_error": 503,
    "invalid_request": 400,
    "model_not_found": 404,
    "nonsense": 400,
}
_REMOTE = {"remote_block_ids": [[0]], "remote_engine_id": "e", "remote_host": "h"}
HAND_OFFS: dict[str, list[dict[str, Any]]] = {
    "aggregated": [{"do_remote_decode": True}, {"do_remote_prefill": True, **_REMOTE}],
    "prefill": [{"do_remote_decode": True, "do_remote_prefill": False}],
    "decode": [{"do_remote_decode": False, "do_remote_prefill": True, **_REMOTE}],
}
"""`kv_transfer_params` by role of the worker."""
Body = dict[str, Any]


@dataclass
class KindOfRequest:
    """One request and what may come of it."""

    path: str
    body: Body
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200
    payload: bytes | None = None
    """In place of the body, if that is none."""
    breaks: bool = False
    """Whether the answer breaks off in the middle."""

    @property
    def data(self) -> bytes:
        """The request as it is sent."""
        text = json.dumps(self.body).encode() if self.payload is None else self.payload
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}"
            f"Content-Length: {len(text)}\r\n\r\n"
        ).encode() + text


class RequestKinds:
    """A source of requests for one worker."""

    def __init__(self, chance: random.Random, *, role: str = "aggregated", ranks: int = 1) -> None:
        self._chance = chance
        self._hand_offs = HAND_OFFS[role]
        self._ranks = ranks

    def draw(self, *, may_break: bool) -> KindOfRequest:
        """Return the next request; `may_break` allows such whose answers break off."""
        chance = self._chance
        request = self._chat() if chance.random() < 0.5 else self._completion()
        self._lengthen(request.body)
        for change in (self._stream, self._stops, self._ids, self._order, self._hand_off):
            change(request.body)
        if chance.random() < 0.3:
            request.headers["X-data-parallel-rank"] = str(chance.randrange(self._ranks))
        if chance.random() < 0.1:
            request.headers["X-Request-Id"] = "the-same"
        if chance.random() < 0.2:
            wrongs = [*self._wrongs(), *([self._breaking] if may_break else [])]
            chance.choice(wrongs)(request)
        return request

    def _completion(self) -> KindOfRequest:
        chance, body = self._chance, {}
        prompts: list[Callable[[], Any]] = [
            self._text,
            self._tokens,
            lambda: [self._text() for _ in range(chance.randrange(1, 4))],
            lambda: [self._tokens() for _ in range(chance.randrange(1, 4))],
        ]
        body["prompt"] = chance.choice(prompts)()
        self._maybe(body, logprobs=chance.randrange(4), echo=True)
        self._maybe(body, structured_outputs={"choice": ["yes", "no way"]})
        return KindOfRequest("/v1/completions", body)

    def _chat(self) -> KindOfRequest:
        body: Body = {"messages": [{"role": "user", "content": self._text()}]}
        self._maybe(body, logprobs=True)
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}
        forms = {
            "tools": {"tools": [_TOOL], "tool_choice": self._chance.choice(("auto", "required"))},
            "schema": {"response_format": schema},
            "words": {"allowed_token_ids": [101, 140, 180]},
        }
        if self._chance.random() < 0.5:
            body |= forms[self._chance.choice(list(forms))]
        return KindOfRequest("/v1/chat/completions", body)

    def _text(self) -> str:
        words = "the quick brown fox jumps over a lazy dog".split() * 8
        return " ".join(words[: self._chance.choice((1, 9, 40, 72))])

    def _tokens(self) -> list[int]:
        """Return a prompt that others begin with as well, or one of its own."""
        chance = self._chance
        first, count = chance.choice((0, 0, chance.randrange(1000))), chance.choice((1, 20, 300))
        return list(range(first, first + count))

    def _lengthen(self, body: Body) -> None:
        """Say how long the answer is; a prompt alone may be all that is wanted back."""
        chance = self._chance
        body["max_tokens"] = chance.choice((1, 2, 5, 50, 300))
        if body.get("echo") and chance.random() < 0.2:
            body["max_tokens"] = 0
        self._maybe(body, n=chance.randrange(1, 4))
        if body["max_tokens"] > 2:
            self._maybe(body, min_tokens=3)

    def _stream(self, body: Body) -> None:
        chance = self._chance
        if chance.random() < 0.6:
            body["stream"] = True
            usage = {"continuous_usage_stats": chance.random() < 0.3}
            self._maybe(body, 0.8, stream_options={"include_usage": True} | usage)

    def _stops(self, body: Body) -> None:
        """Add stop strings: most hit soon, some never."""
        chance = self._chance
        if chance.random() < 0.4:
            body["stop"] = chance.choice(("e", [" w", "ld"], ["th", "o"], "never said", " g"))
            self._maybe(body, 0.3, include_stop_str_in_output=True)
        self._maybe(body, 0.2, stop_token_ids=chance.sample(range(100, 201), 8))

    def _ids(self, body: Body) -> None:
        self._maybe(body, return_token_ids=True, ignore_eos=True)

    def _order(self, body: Body) -> None:
        chance = self._chance
        self._maybe(body, priority=chance.randrange(-3, 4), seed=chance.randrange(9))
        self._maybe(body, cache_salt=chance.choice("ab"))

    def _hand_off(self, body: Body) -> None:
        self._maybe(body, 0.5, kv_transfer_params=self._chance.choice(self._hand_offs))

    def _maybe(self, body: Body, share: float = 0.15, /, **fields: Any) -> None:
        for name, value in fields.items():
            if self._chance.random() < share:
                body[name] = value

    def _wrongs(self) -> list[Callable[[KindOfRequest], None]]:
        return [self._faulty, self._too_long, self._partly_too_long, self._bad, self._unsupported]

    def _faulty(self, request: KindOfRequest) -> None:
        fault = self._chance.choice(list(_STATUS_OF_FAULT))
        request.headers["X-Return-Error"] = fault
        request.status = _STATUS_OF_FAULT[fault]

    def _breaking(self, request: KindOfRequest) -> None:
        request.headers["X-Return-Error"] = self._chance.choice(("stream_error", "disconnect"))
        request.breaks = True

    def _too_long(self, request: KindOfRequest) -> None:
        prompt = list(range(_CAPACITY_TOKENS + 1))
        request.path, request.body = "/v1/completions", {"prompt": prompt, "max_tokens": 1}
        request.status = 400

    def _partly_too_long(self, request: KindOfRequest) -> None:
        """Ask for several answers of which only the first ones fit."""
        lengths = (1, 2, _CAPACITY_TOKENS + 100)
        prompts = [list(range(length)) for length in lengths]
        request.path, request.body = "/v1/completions", {"prompt": prompts, "max_tokens": 5}
        request.status = 400

    def _bad(self, request: KindOfRequest) -> None:
        bad = (b"", b"{", b"[]", b'{"max_tokens": 0}', b'{"prompt": 1, "messages": 1}', b"\xff")
        request.payload, request.status = self._chance.choice(bad), 400

    def _unsupported(self, request: KindOfRequest) -> None:
        request.body["bad_words"] = ["never"]
        request.status = 501
