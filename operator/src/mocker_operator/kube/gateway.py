"""The only writer and reader of the cluster, on the asyncio client of the `kubernetes` package.

Manifests are plain dictionaries both ways: the typed models drop fields they do not know and the
typed calls misread some answers. Writes are server-side applies under one field manager, so there
is no read-modify-write. Every call has a timeout and ends in a result or an error of
`mocker_operator.kube.errors`.
"""

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from mocker_operator import constants
from mocker_operator.kube import kinds
from mocker_operator.kube.errors import Conflict, Gone, Terminal, Transient, error_from_answer
from mocker_operator.kube.events import EventSeries, event_manifest, series_patch
from mocker_operator.kube.kinds import ResourceKind
from mocker_operator.reconcile.model import Event, Key, Manifest, ObjectRef
from mocker_operator.telemetry import Metrics

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON = "application/json"
REQUEST_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 5.0


class Gateway:
    """Reads and writes on behalf of reconcile passes.

    Args:
        configuration: How to reach the API server.
        metrics: Counts the requests.
        user_agent: What the server's audit log shows.
    """

    def __init__(
        self, configuration: Configuration, metrics: Metrics, user_agent: str = "mocker-operator"
    ) -> None:
        self._client = ApiClient(configuration)
        self._client.user_agent = user_agent
        self._metrics = metrics
        self._series = EventSeries()
        self._timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get_resource(self, key: Key) -> Manifest | None:
        """Return the MockerDeployment, or None if there is none."""
        try:
            return await self._call("GET", kinds.MOCKER_DEPLOYMENT, key.namespace, key.name)
        except Gone:
            return None

    async def list_children(self, key: Key) -> tuple[Manifest, ...]:
        """Return the Deployments, Services and ConfigMaps that carry the resource's label."""
        lists = await asyncio.gather(*(self._list(kind, key) for kind in kinds.CHILDREN))
        return tuple(item for items in lists for item in items)

    async def list_pods(self, key: Key) -> tuple[Manifest, ...]:
        """Return the pods that carry the resource's label, terminating ones too."""
        return tuple(await self._list(kinds.POD, key))

    async def claim(self, manifest: Manifest) -> None:
        """See that a child that was not observed may be made.

        Raises:
            Terminal: if an object that no MockerDeployment owns has its name; to apply to that
                would take it over, and delete it with the resource.
        """
        metadata = manifest["metadata"]
        kind = kinds.child_kind(manifest["apiVersion"], manifest["kind"])
        try:
            live = await self._call("GET", kind, metadata["namespace"], metadata["name"])
        except Gone:
            return
        owners = live["metadata"].get("ownerReferences") or ()
        if not any(owner["kind"] == constants.KIND for owner in owners):
            raise Terminal(
                f"{kind.kind} {metadata['name']} exists and belongs to no MockerDeployment; "
                "delete it, or give the MockerDeployment another name"
            )

    async def apply(self, manifest: Manifest) -> None:
        """Create the child, or take over the fields that the manifest names."""
        metadata = manifest["metadata"]
        kind = kinds.child_kind(manifest["apiVersion"], manifest["kind"])
        await self._call(
            "PATCH", kind, metadata["namespace"], metadata["name"],
            body=manifest, content_type=APPLY,
        )  # fmt: skip

    async def delete(self, namespace: str, ref: ObjectRef, *, keep_pods: bool = False) -> None:
        """Delete the very child that was observed; a namesake made since then stays.

        Args:
            namespace: Its namespace.
            ref: The child.
            keep_pods: Whether a Deployment's pods stay, for the next one to adopt.
        """
        kind = kinds.child_kind(ref.api_version, ref.kind)
        policy = "Orphan" if keep_pods else "Background"
        options = {"preconditions": {"uid": ref.uid}, "propagationPolicy": policy}
        try:
            await self._call("DELETE", kind, namespace, ref.name, body=options)
        except (Gone, Conflict):
            return

    async def apply_status(self, resource: Manifest, status: Manifest) -> None:
        """Write the whole status, provided the resource is still the one that was read.

        Raises:
            Conflict: if it has changed since.
        """
        metadata = resource["metadata"]
        body = {
            "apiVersion": constants.API_VERSION,
            "kind": constants.KIND,
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "status": status,
        }
        await self._call(
            "PATCH", kinds.MOCKER_DEPLOYMENT, metadata["namespace"], metadata["name"], "status",
            body=body, content_type=APPLY,
        )  # fmt: skip

    async def post_event(self, resource: Manifest, event: Event, now: datetime) -> None:
        """Post an event about the resource; the same event again raises the count of the first."""
        manifest = event_manifest(resource, event, now)
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        count = self._series.count(name)
        if count == 1:
            try:
                await self._call("POST", kinds.EVENT, namespace, body=manifest)
                return
            except Conflict:
                count = self._series.count(name)
        patch = series_patch(count, now)
        try:
            await self._call("PATCH", kinds.EVENT, namespace, name, body=patch, content_type=MERGE)
        except Gone:
            self._series.forget(name)
            await self._call("POST", kinds.EVENT, namespace, body=manifest)

    async def _list(self, kind: ResourceKind, key: Key) -> list[Manifest]:
        selector = constants.selector_for(key.name)
        answer = await self._call("GET", kind, key.namespace, query={"labelSelector": selector})
        # Items of a list of a built-in kind name neither their kind nor its version.
        return [
            {"apiVersion": kind.api_version, "kind": kind.kind, **item}
            for item in answer.get("items") or ()
        ]

    async def _call(
        self,
        method: str,
        kind: ResourceKind,
        namespace: str,
        *tail: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = JSON,
    ) -> Manifest:
        parameters = dict(query or {})
        if method in ("PATCH", "POST"):
            parameters["fieldManager"] = constants.FIELD_MANAGER
        if content_type == APPLY:
            parameters["force"] = "true"
        try:
            status, answer, retry_after = await self._request(
                method, kind.path(namespace, *tail), list(parameters.items()), body, content_type
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._metrics.request(method, kind.plural, None)
            reason = str(error) or type(error).__name__
            raise Transient(f"no answer from the API server: {reason}") from error
        self._metrics.request(method, kind.plural, status)
        if not 200 <= status < 300:
            raise error_from_answer(status, answer, retry_after)
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        body: Manifest | None,
        content_type: str,
    ) -> tuple[int, Manifest, str | None]:
        _, url, headers, payload, _ = await self._client.param_serialize(
            method,
            path,
            query_params=query,
            header_params={"Accept": JSON, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self._client.call_api(
            method, url, headers, payload, _request_timeout=self._timeout
        )
        raw = await response.read()  # type: ignore[no-untyped-call]
        return response.status, _as_object(raw), response.headers.get("Retry-After")


def _as_object(raw: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"message": raw[:200].decode(errors="replace")}
