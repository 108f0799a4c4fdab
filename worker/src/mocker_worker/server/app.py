"""The worker's HTTP application: all routes, access, errors in one form, and the count."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Protocol

from aiohttp import hdrs, web

from mocker_worker.server.access import Access
from mocker_worker.server.errors import UNAUTHORIZED_BODY, ApiError, error_body
from mocker_worker.server.response_headers import ResponseHeaders
from mocker_worker.stats import HttpStats

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 2**20
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Routes(Protocol):
    """A part of the API."""

    def add_routes(self, app: web.Application) -> None:
        """Add its routes."""


def build_app(
    parts: Iterable[Routes], *, access: Access, http_stats: HttpStats, headers: ResponseHeaders
) -> web.Application:
    """Return the application with the routes of all parts."""
    edge = Edge(access, http_stats)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[edge.answer])
    app.on_response_prepare.append(headers.add)
    for part in parts:
        part.add_routes(app)
    return app


class Edge:
    """What every request passes through."""

    def __init__(self, access: Access, http_stats: HttpStats) -> None:
        self._access = access
        self._http_stats = http_stats

    @web.middleware
    async def answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answer every error with vLLM's error body; nothing a client sends ends the server."""
        start_s = time.monotonic()
        status: int = HTTPStatus.OK  # as in vLLM, if the client leaves before the end
        try:
            if self._access.allows(request):
                response = await _answer_or_error(request, handler)
            else:
                response = _response(HTTPStatus.UNAUTHORIZED, UNAUTHORIZED_BODY)
            status = response.status
            return response
        finally:
            self._count(request, status, time.monotonic() - start_s)

    def _count(self, request: web.Request, status: int, seconds: float) -> None:
        resource = request.match_info.route.resource
        route = "none" if resource is None else resource.canonical
        self._http_stats.observe(route, request.method, status, seconds)


async def _answer_or_error(http: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(http)
    except ApiError as error:
        return error_response(error)
    except web.HTTPRequestEntityTooLarge:
        message = f"the body has more than {MAX_BODY_BYTES} bytes; send a shorter prompt"
        return error_response(ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message))
    except web.HTTPException as error:
        response = error_response(ApiError(HTTPStatus(error.status), error.reason))
        if allowed := error.headers.get(hdrs.ALLOW):
            response.headers[hdrs.ALLOW] = allowed
        return response
    except (ConnectionResetError, web.RequestPayloadError) as error:
        reason = getattr(error.__cause__, "message", "it did not arrive")
        message = f"the body cannot be read: {reason}"
        return error_response(ApiError(HTTPStatus.BAD_REQUEST, message))
    except Exception:
        if http.writer.output_size:
            raise  # half an answer is out: aiohttp logs the error and closes the connection
        log.exception("%s %s failed", http.method, http.path)
        return error_response(ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"))


def error_response(error: ApiError) -> web.Response:
    """Return the HTTP answer of an error."""
    return _response(error.status, error_body(error))


def _response(status: HTTPStatus, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")
