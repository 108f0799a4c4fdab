"""What vLLM's operators ask an engine: reset its cache, tell its configuration."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from mocker_protocol import __version__
from mocker_worker.config import WorkerConfig
from mocker_worker.driver import EngineDriver
from mocker_worker.server.errors import InvalidRequest, NotSupported

_RESET_RUNNING = "reset_running_requests"
_TRUE = ("true", "1")
_FALSE = ("false", "0")
EventSource = Mapping[str, Any]


class EngineControl:
    """Answers about the engine of one worker."""

    def __init__(
        self,
        config: WorkerConfig,
        ranks: Sequence[EngineDriver],
        event_sources: Callable[[], Sequence[EventSource]],
    ) -> None:
        """Take what is asked about.

        Args:
            config: Of this worker.
            ranks: Drivers by data-parallel rank.
            event_sources: Says where each rank publishes KV events on ZMQ; empty without ZMQ.
        """
        self._config = config
        self._ranks = ranks
        self._event_sources = event_sources

    def add_routes(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        app.router.add_get("/kv_event_sources", self.kv_event_sources)
        app.router.add_get("/server_info", self.server_info)
        app.router.add_get("/openapi.json", self.openapi)

    async def reset_prefix_cache(self, http: web.Request) -> web.Response:
        """Forget all cached blocks of ranks whose requests hold none.

        The status is 200 in any case, as in vLLM; the body, which vLLM leaves empty, tells whether
        all ranks did it.
        """
        _check_reset(http.query.getall(_RESET_RUNNING, []))
        done = [rank.reset_prefix_cache() for rank in self._ranks]
        return _json({"reset": all(done)})

    async def kv_event_sources(self, http: web.Request) -> web.Response:
        """List where each rank publishes KV events on ZMQ (vLLM 0.33)."""
        return _json(list(self._event_sources()))

    async def server_info(self, http: web.Request) -> web.Response:
        """Answer with the engine's arguments and what this worker is."""
        config = self._config
        return _json(
            {
                "version": __version__,
                "model": config.model_name,
                "worker_id": str(config.worker_id),
                "worker_type": str(config.args.worker_type),
                "mode": str(config.server.mode),
                "engine_args": config.args.model_dump(mode="json", exclude={"timing_model"}),
            }
        )

    async def openapi(self, http: web.Request) -> web.Response:
        """Answer with the description of all that is served."""
        # Only who asks for it pays for its schemas.
        from mocker_worker.server.openapi import describe

        return _json(describe(needs_key=bool(self._config.server.api_keys)))


def _check_reset(wanted: Sequence[str]) -> None:
    """See that nobody wants running requests to lose their blocks."""
    for text in wanted:
        if text.lower() in _TRUE:
            raise NotSupported(_RESET_RUNNING, "leave it out, and wait for an idle worker")
        if text.lower() not in _FALSE:
            raise InvalidRequest(_RESET_RUNNING, f"{_RESET_RUNNING}: must be true or false")


def _json(data: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(data), content_type="application/json")
