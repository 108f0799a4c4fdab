"""A small administrator's client for tests: plain requests, plain answers."""

import json
import ssl
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp

PATHS = {
    "namespaces": "/api/v1",
    "pods": "/api/v1",
    "services": "/api/v1",
    "serviceaccounts": "/api/v1",
    "configmaps": "/api/v1",
    "deployments": "/apis/apps/v1",
    "events": "/apis/events.k8s.io/v1",
    "mockerdeployments": "/apis/mocker.dev/v1alpha1",
    "clusterroles": "/apis/rbac.authorization.k8s.io/v1",
    "clusterrolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
}
CONTENT_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]
    warnings: list[str]


class ApiError(Exception):
    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status}: {answer.body.get('message')}")
        self.answer = answer


class Api:
    """Talks to the API server as an administrator, in one namespace or in none."""

    def __init__(self, url: str, ca_file: Path, token: str) -> None:
        self._url, self._ca_file = url, ca_file
        self._headers = {"Authorization": f"Bearer {token}", "User-Agent": "test-suite"}

    async def __aenter__(self) -> Self:
        self._connect()
        return self

    def _connect(self) -> None:
        context = ssl.create_default_context(cafile=str(self._ca_file))
        connector = aiohttp.TCPConnector(ssl=context)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def reconnect(self) -> None:
        """Drop the connections to a server that was killed."""
        await self._session.close()
        self._connect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        **query: str,
    ) -> Answer:
        async with self._session.request(
            method,
            f"{self._url}{path}",
            json=body,
            headers={"Content-Type": content_type},
            params=query,
            timeout=aiohttp.ClientTimeout(total=20),
        ) as answer:
            text = await answer.text()
            content = json.loads(text) if text.startswith("{") else {"message": text}
            return Answer(answer.status, content, answer.headers.getall("Warning", []))

    async def get(self, plural: str, name: str, namespace: str | None = None) -> dict[str, Any]:
        return await self._ok("GET", _path(plural, namespace, name))

    async def find(
        self, plural: str, name: str, namespace: str | None = None
    ) -> dict[str, Any] | None:
        answer = await self.request("GET", _path(plural, namespace, name))
        if answer.status == 404:
            return None
        return _checked(answer)

    async def list(
        self, plural: str, namespace: str | None = None, **query: str
    ) -> list[dict[str, Any]]:
        answer = await self._ok("GET", _path(plural, namespace), **query)
        items: list[dict[str, Any]] = answer["items"]
        return items

    async def create(
        self, plural: str, body: dict[str, Any], namespace: str | None = None, **query: str
    ) -> dict[str, Any]:
        return await self._ok("POST", _path(plural, namespace), body, **query)

    async def merge(
        self,
        plural: str,
        name: str,
        body: dict[str, Any],
        namespace: str | None = None,
        subresource: str = "",
    ) -> dict[str, Any]:
        path = _path(plural, namespace, name, *filter(None, [subresource]))
        return await self._ok("PATCH", path, body, CONTENT_TYPES["merge"])

    async def edit(
        self, plural: str, name: str, patch: Sequence[dict[str, Any]], namespace: str
    ) -> dict[str, Any]:
        """Apply a JSON patch."""
        path = _path(plural, namespace, name)
        return await self._ok("PATCH", path, patch, CONTENT_TYPES["json"])

    async def delete(
        self, plural: str, name: str, namespace: str | None = None, **options: object
    ) -> None:
        answer = await self.request("DELETE", _path(plural, namespace, name), options or None)
        if answer.status != 404:
            _checked(answer)

    async def _ok(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        **query: str,
    ) -> dict[str, Any]:
        return _checked(await self.request(method, path, body, content_type, **query))


def _checked(answer: Answer) -> dict[str, Any]:
    if answer.status >= 300:
        raise ApiError(answer)
    return answer.body


def _path(plural: str, namespace: str | None, *tail: str) -> str:
    scope = [] if namespace is None else ["namespaces", namespace]
    return "/".join([PATHS[plural], *scope, plural, *tail])
