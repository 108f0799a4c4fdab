"""What Kubernetes, Prometheus and load generators ask about the worker itself."""

from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web

from mocker_protocol import __version__
from mocker_worker.lifecycle import Lifecycle, LifeState


class Probes:
    """Answers from the worker's state."""

    def __init__(self, lifecycle: Lifecycle, render_metrics: Callable[[], bytes]) -> None:
        self._lifecycle = lifecycle
        self._render_metrics = render_metrics

    def add_routes(self, app: web.Application) -> None:
        """Add the routes."""
        router = app.router
        router.add_get("/live", self.live)
        router.add_get("/ready", self.ready)
        router.add_get("/health", self.health)
        router.add_get("/ping", self.health)
        router.add_post("/ping", self.health)
        router.add_get("/metrics", self.metrics)
        router.add_get("/version", self.version)
        router.add_get("/load", self.load)

    async def live(self, request: web.Request) -> web.Response:
        """Answer 200: the loop runs."""
        return web.Response()

    async def ready(self, request: web.Request) -> web.Response:
        """Answer 200 if new requests should come here."""
        state = self._lifecycle.state
        return _probe(state is LifeState.READY, state)

    async def health(self, request: web.Request) -> web.Response:
        """Answer 200, empty as in vLLM, if requests are answered."""
        return _probe(self._lifecycle.takes_requests, self._lifecycle.state)

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer with the Prometheus text format."""
        return web.Response(
            body=self._render_metrics(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def version(self, request: web.Request) -> web.Response:
        """Answer with the version of this project."""
        return web.json_response({"version": __version__})

    async def load(self, request: web.Request) -> web.Response:
        """Answer with the number of requests that are being answered."""
        return web.json_response({"server_load": self._lifecycle.in_flight})


def _probe(is_good: bool, state: LifeState) -> web.Response:
    if is_good:
        return web.Response()
    return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{state}\n")
