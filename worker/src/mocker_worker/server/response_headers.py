"""Headers that answers carry beside their content: which pod answered, the request, the load."""

import uuid
from collections.abc import Callable, Mapping

from aiohttp import web

from mocker_worker.server import orca

REQUEST_ID = "X-Request-Id"
_WITH_LOAD = frozenset({"/v1/completions", "/v1/chat/completions"})

LoadReport = Callable[[str], str | None]
"""Gives the value of the header for a format that a client names (ORCA); None: no such format."""


class ResponseHeaders:
    """Adds the headers just before an answer's head is written; once per request."""

    def __init__(
        self,
        *,
        pod_name: str | None,
        pod_namespace: str | None,
        has_request_id: bool,
        load_report: LoadReport,
    ) -> None:
        self._has_request_id = has_request_id
        self._load_report = load_report
        names = {
            "X-Pod-Name": pod_name,
            "x-inference-pod": pod_name,
            "x-inference-namespace": pod_namespace,
        }
        self._identity = {name: value for name, value in names.items() if value}

    def listens_on(self, port: int) -> None:
        """Name the port in the answers of a pod."""
        if self._identity:
            self._identity["x-inference-port"] = str(port)

    async def add(self, http: web.Request, response: web.StreamResponse) -> None:
        """Add them; a handler of the signal `on_response_prepare`."""
        response.headers.update(self._identity)
        if self._has_request_id:
            response.headers[REQUEST_ID] = given_request_id(http.headers) or uuid.uuid4().hex
        wanted = http.headers.get(orca.REQUEST_HEADER)
        if wanted is not None and http.path in _WITH_LOAD:
            report = self._load_report(wanted)
            if report is not None:
                response.headers[orca.RESPONSE_HEADER] = report


def given_request_id(headers: Mapping[str, str]) -> str:
    """Return the id that the client gave; empty without one that headers and JSON can hold."""
    given = headers.get(REQUEST_ID, "")
    return given if given.isascii() and given.isprintable() else ""
