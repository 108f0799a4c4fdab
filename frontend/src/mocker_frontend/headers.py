"""Which headers travel through the frontend: all but those of one connection or one body.

So what a client says to a worker (`Authorization`, `X-Data-Parallel-Rank`, `X-Return-Error`,
`endpoint-load-metrics-format`, ...) and what a worker answers (`X-Pod-Name`, `Retry-After`, ...)
arrives without being known here. Bytes that are no UTF-8 cannot be sent on, and are left out.
"""

import uuid
from collections.abc import Collection
from typing import Final

from multidict import CIMultiDict, MultiMapping

REQUEST_ID: Final = "X-Request-Id"
RETURN_ERROR: Final = "X-Return-Error"
"""Asks a worker to fail, for tests of clients."""
_OF_CONNECTIONS: Final = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade".split()
)
_OF_REQUESTS: Final = frozenset(
    "accept-encoding content-encoding content-length content-type expect host x-request-id".split()
)
_OF_ANSWERS: Final = frozenset("content-length date server x-request-id".split())


def request_id_of(headers: MultiMapping[str]) -> str:
    """Return the id that the client gave, or a new one if it gave none that a header can hold."""
    given = headers.get(REQUEST_ID, "")
    return given if given and given.isascii() and given.isprintable() else uuid.uuid4().hex


def to_worker(headers: MultiMapping[str], request_id: str) -> CIMultiDict[str]:
    """Return the headers of a request to a worker: the client's, for a JSON body."""
    passed = _without(headers, _OF_REQUESTS)
    passed[REQUEST_ID] = request_id
    passed["Content-Type"] = "application/json"
    # Events are cut at their ends on the way, which compressed bytes would not show.
    passed["Accept-Encoding"] = "identity"
    return passed


def to_prefill_worker(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """Return the headers of the prefill leg: a fault that a client asks for is the answer's."""
    return _without(headers, frozenset({RETURN_ERROR.lower()}))


def to_client(headers: MultiMapping[str], request_id: str) -> CIMultiDict[str]:
    """Return the headers of an answer to a client."""
    passed = _without(headers, _OF_ANSWERS)
    passed[REQUEST_ID] = request_id
    return passed


def _without(headers: MultiMapping[str], dropped: Collection[str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if (lower := name.lower()) not in dropped
        and lower not in _OF_CONNECTIONS
        and lower not in named
        and (value.isascii() or _is_utf8(value))
    )


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
