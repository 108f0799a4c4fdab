"""What the API server's answers mean to a pass, sorted once.

A pass needs to know only whether to try again soon (`Transient`), to leave a manifest alone until
it changes (`Terminal`, `Forbidden`), or that there is nothing left to work on (`Gone`).
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from mocker_operator.errors import OperatorError

UNTYPED_PATCH = "failed to create typed patch object"
"""Begins the message of a server-side apply whose manifest does not fit the schema: HTTP 500."""
_RBAC_DENIAL = re.compile(
    r'cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
)


class KubeError(OperatorError):
    """An API call that did not succeed.

    Args:
        message: What the server said, or what kept it from being asked.
        status: HTTP status; None when there was no answer.
    """

    retry_after_s: float | None = None
    """Shortest wait that the server asks for."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Transient(KubeError):
    """May succeed if tried again: overload, a lost connection, an old resource version.

    Args:
        message: What happened.
        status: HTTP status; None when there was no answer.
        retry_after_s: Shortest wait that the server asks for.
    """

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, status=status)
        self.retry_after_s = retry_after_s


class Conflict(Transient):
    """The object has changed since it was read, or exists already."""


class Terminal(KubeError):
    """The server will refuse the same request again; only another manifest helps."""


class Forbidden(Terminal):
    """A permission is missing; the message says which rule to grant."""


class Gone(KubeError):
    """The object, or the namespace it belongs to, is no more or is about to go."""


def error_from_answer(
    status: int, answer: Mapping[str, Any], retry_after: str | None = None
) -> KubeError:
    """Return the error that an unsuccessful answer stands for.

    Args:
        status: HTTP status.
        answer: The `Status` object of the body; empty if the body was something else.
        retry_after: `Retry-After` header in seconds.
    """
    message = str(answer.get("message") or f"HTTP {status}")
    match status:
        case HTTPStatus.NOT_FOUND | HTTPStatus.GONE:
            return Gone(message, status=status)
        case HTTPStatus.CONFLICT:
            return Conflict(message, status=status)
        case HTTPStatus.FORBIDDEN:
            return _forbidden(message, answer)
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.REQUEST_TIMEOUT | HTTPStatus.TOO_MANY_REQUESTS:
            return Transient(message, status=status, retry_after_s=_seconds(retry_after))
        case _ if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            if message.startswith(UNTYPED_PATCH):
                return Terminal(message, status=status)
            return Transient(message, status=status, retry_after_s=_seconds(retry_after))
        case _:
            return Terminal(message, status=status)


def _forbidden(message: str, answer: Mapping[str, Any]) -> KubeError:
    causes = (answer.get("details") or {}).get("causes") or []
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return Gone(message, status=HTTPStatus.FORBIDDEN)
    if denial := _RBAC_DENIAL.search(message):
        remedy = "grant verb {verb} on {resource} (API group '{group}') to the operator's role"
        message = f"{remedy.format(**denial.groupdict())}: {message}"
        return Forbidden(message, status=HTTPStatus.FORBIDDEN)
    return Terminal(message, status=HTTPStatus.FORBIDDEN)


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:
        return None
