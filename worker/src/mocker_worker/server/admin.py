"""`/admin/config`: faults and jitter, seen and changed while the worker runs."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web

from mocker_worker.jitter import MAX_SHARE, Jitter
from mocker_worker.server.bodies import decode_body
from mocker_worker.server.faults import FaultKind, FaultPlan

Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Share = Annotated[float, msgspec.Meta(ge=0, le=MAX_SHARE)]


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What can be changed, complete."""

    failure_injection_rate: Percent
    failure_types: list[FaultKind]
    latency_jitter: Share


class AdminChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change; fields that are left out stay as they are."""

    failure_injection_rate: Percent | msgspec.UnsetType = msgspec.UNSET
    failure_types: list[FaultKind] | msgspec.UnsetType = msgspec.UNSET
    """Empty: all errors with a status of their own."""
    latency_jitter: Share | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(AdminChange)


class AdminApi:
    """Shows and changes the disturbances of one worker."""

    def __init__(self, faults: FaultPlan, jitters: Sequence[Jitter]) -> None:
        self._faults = faults
        self._jitters = jitters

    def add_routes(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/admin/config", self.show)
        app.router.add_post("/admin/config", self.change)

    async def show(self, http: web.Request) -> web.Response:
        """Answer with what is in force."""
        config = AdminConfig(
            failure_injection_rate=self._faults.rate_percent,
            failure_types=list(self._faults.kinds),
            latency_jitter=self._jitters[0].share,
        )
        return web.Response(body=msgspec.json.encode(config), content_type="application/json")

    async def change(self, http: web.Request) -> web.Response:
        """Change all that is given, or nothing if a part of it is wrong."""
        change = decode_body(_decoder, await http.read())
        if change.failure_injection_rate is not msgspec.UNSET:
            self._faults.rate_percent = change.failure_injection_rate
        if change.failure_types is not msgspec.UNSET:
            self._faults.kinds = change.failure_types
        if change.latency_jitter is not msgspec.UNSET:
            for jitter in self._jitters:
                jitter.share = change.latency_jitter
        return await self.show(http)
