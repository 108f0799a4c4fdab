"""Errors that clients are to see: by rate and kind, by request header, changed at run time.

Kinds have the names of llm-d-inference-sim; `stream_error` and `disconnect`, which happen inside
of an answer, are our own. Draws are seeded, and cost nothing while the rate is 0.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from mocker_worker.server.errors import ApiError, InvalidRequest

RETURN_ERROR_HEADER = "X-Return-Error"


class FaultKind(StrEnum):
    """What goes wrong."""

    RATE_LIMIT = "rate_limit"
    INVALID_API_KEY = "invalid_api_key"
    CONTEXT_LENGTH = "context_length"
    SERVER_ERROR = "server_error"
    INVALID_REQUEST = "invalid_request"
    MODEL_NOT_FOUND = "model_not_found"
    STREAM_ERROR = "stream_error"
    """An error event after the first token, then the end."""
    DISCONNECT = "disconnect"
    """The connection is cut after the first token; at once if the answer is no stream."""


_ERRORS: Mapping[FaultKind, tuple[HTTPStatus, str, str | None]] = {
    FaultKind.RATE_LIMIT: (HTTPStatus.TOO_MANY_REQUESTS, "Rate limit reached", None),
    FaultKind.INVALID_API_KEY: (HTTPStatus.UNAUTHORIZED, "Incorrect API key", None),
    FaultKind.CONTEXT_LENGTH: (
        HTTPStatus.BAD_REQUEST,
        "This model's maximum context length is exceeded",
        "prompt",
    ),
    FaultKind.SERVER_ERROR: (HTTPStatus.SERVICE_UNAVAILABLE, "The server is overloaded", None),
    FaultKind.INVALID_REQUEST: (HTTPStatus.BAD_REQUEST, "The request is invalid", None),
    FaultKind.MODEL_NOT_FOUND: (HTTPStatus.NOT_FOUND, "The model does not exist", "model"),
}
DEFAULT_KINDS = tuple(_ERRORS)
"""Drawn when no kinds are named: the errors with a status of their own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault."""

    kind: FaultKind
    error: ApiError | None
    """The answer, for kinds that have an HTTP status; None for those inside of an answer."""


class FaultPlan:
    """Says for each request whether it fails, and how."""

    def __init__(
        self, rate_percent: float = 0.0, kinds: Iterable[str] = (), *, seed: int = 0
    ) -> None:
        self._random = random.Random(seed)
        self.counts = dict.fromkeys(FaultKind, 0)
        """Faults so far, by kind."""
        self.rate_percent = rate_percent
        self.kinds = fault_kinds(kinds)

    @property
    def rate_percent(self) -> float:
        """Share of the requests that fail, 0 to 100; may be set while running."""
        return self._rate_percent

    @rate_percent.setter
    def rate_percent(self, percent: float) -> None:
        if not 0 <= percent <= 100:
            raise ValueError(f"must be a number from 0 to 100, not {percent!r}")
        self._rate_percent = percent

    @property
    def kinds(self) -> tuple[FaultKind, ...]:
        """Kinds to draw from, all as likely; may be set while running."""
        return self._kinds

    @kinds.setter
    def kinds(self, kinds: Iterable[str]) -> None:
        self._kinds = fault_kinds(kinds)

    def draw(self, headers: Mapping[str, str]) -> Fault | None:
        """Return how a request with these headers fails, or None; to be called once per request.

        Raises:
            InvalidRequest: when the header `X-Return-Error` asks for an unknown kind.
        """
        forced = headers.get(RETURN_ERROR_HEADER)
        if forced is not None:
            try:
                return self._fault(FaultKind(forced))
            except ValueError:
                message = f"{RETURN_ERROR_HEADER}: {_unknown(forced)}"
                raise InvalidRequest(RETURN_ERROR_HEADER, message) from None
        if not self._rate_percent or self._random.random() * 100 >= self._rate_percent:
            return None
        return self._fault(self._random.choice(self._kinds))

    def _fault(self, kind: FaultKind) -> Fault:
        self.counts[kind] += 1
        if kind not in _ERRORS:
            return Fault(kind, None)
        status, message, param = _ERRORS[kind]
        return Fault(kind, ApiError(status, f"{message} (injected fault)", param=param))


def fault_kinds(names: Iterable[str]) -> tuple[FaultKind, ...]:
    """Return the kinds with these names, without repetitions; no names mean the default kinds.

    Raises:
        ValueError: for an unknown name.
    """
    kinds = []
    for name in names:
        if name not in set(FaultKind):
            raise ValueError(_unknown(name))
        kinds.append(FaultKind(name))
    return tuple(dict.fromkeys(kinds)) or DEFAULT_KINDS


def _unknown(name: str) -> str:
    return f"unknown kind {name[:40]!r}; use one of {', '.join(FaultKind)}"
