"""What stands before the handlers: the API key, and one form for all errors."""

import hashlib
import logging
import secrets
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from mocker_frontend.errors import UNAUTHORIZED, RequestFailed, invalid_request

log = logging.getLogger(__name__)

_GUARDED: Final = "/v1"


def require_key(keys: Sequence[str]) -> Middleware:
    """Return what answers 401 below `/v1` to whoever shows none of the keys, as vLLM does."""
    known = [_digest(key) for key in keys]

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_guarded = request.path.startswith(_GUARDED) and request.method != hdrs.METH_OPTIONS
        if is_guarded and not _shows_one_of(known, request):
            return web.Response(
                status=HTTPStatus.UNAUTHORIZED, body=UNAUTHORIZED, content_type="application/json"
            )
        return await handler(request)

    return check


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error with an error object; nothing a client sends ends the server."""
    try:
        return await handler(request)
    except RequestFailed as failed:
        return failure(failed)
    except web.HTTPException as error:
        answer = failure(RequestFailed(HTTPStatus(error.status), error.reason))
        if (allowed := error.headers.get(hdrs.ALLOW)) is not None:
            answer.headers[hdrs.ALLOW] = allowed
        return answer
    except (ConnectionResetError, web.RequestPayloadError) as error:
        reason = getattr(error.__cause__, "message", "it did not arrive")
        return failure(invalid_request(f"the body cannot be read: {reason}"))
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return failure(RequestFailed(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"))


def failure(failed: RequestFailed) -> web.Response:
    """Return the HTTP answer of a request that the frontend answers itself."""
    answer = web.Response(status=failed.status, body=failed.body, content_type="application/json")
    if failed.retry_after_s:
        answer.headers[hdrs.RETRY_AFTER] = str(failed.retry_after_s)
    return answer


def _shows_one_of(digests: Sequence[bytes], request: web.Request) -> bool:
    scheme, _, key = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    shown = _digest(key.strip())
    # All are compared, in constant time: the answer's delay tells nothing about them.
    matches = [secrets.compare_digest(shown, known) for known in digests]
    return scheme.lower() == "bearer" and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
