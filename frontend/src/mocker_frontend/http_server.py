"""HTTP server whose own errors have vLLM's form, too: those of requests that reach no handler.

aiohttp answers what it cannot parse, and expectations that it does not know, with plain text.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from aiohttp import web

from mocker_frontend.errors import error_body

_MOST_OF_A_REASON = 200
"""Characters; it can quote all of a long header."""
_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def running_server(
    app: web.Application,
    *,
    shutdown_timeout_s: float,
    **settings: Any,  # noqa: ANN401 - aiohttp's
) -> AsyncIterator[web.BaseRunner]:
    """Run an application without a log of accesses; gives what sites are added to.

    Args:
        app: What is served.
        shutdown_timeout_s: Time that open connections get in the end.
        settings: Of `aiohttp.web.RequestHandler`.
    """
    application = web.AppRunner(app)
    await application.setup()
    runner = None
    try:
        assert application.server is not None, "it has just been set up"
        server = _Server(application.server, settings | {"access_log": None})
        runner = web.ServerRunner(server, shutdown_timeout=shutdown_timeout_s)
        await runner.setup()
        yield runner
    finally:
        if runner is not None:
            await runner.cleanup()
        await application.cleanup()


class _Server(web.Server):
    """Serves what another server does."""

    def __init__(self, served: web.Server, settings: dict[str, Any]) -> None:
        super().__init__(
            _worded(served.request_handler),
            request_factory=served.request_factory,
            handler_cancellation=True,  # a client that leaves ends its request
        )
        self._settings = settings

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self._settings)


class _Connection(web.RequestHandler):
    """One connection."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Log an error, answer it and close the connection.

        Raises:
            ConnectionError: if half an answer is out.
        """
        super().handle_error(request, status, exc, message)
        is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        reason = " ".join((message or "").split())[:_MOST_OF_A_REASON]
        answer = _error(status, "internal error" if is_ours else f"bad request: {reason}")
        answer.force_close()
        return answer


def _worded(handler: _Handler) -> _Handler:
    """Return the same, but for errors that are raised before an application's middleware."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _error(error.status, error.reason)

    return answer


def _error(status: int, message: str) -> web.Response:
    body = error_body(HTTPStatus(status), message)
    return web.Response(status=status, body=body, content_type="application/json")
