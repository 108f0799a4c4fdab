"""Kopf's part: it watches, and every event wakes the key it belongs to.

Only the low-level half of Kopf is used. It keeps nothing about an object, writes nothing to one,
and needs no finalizer; what an event says is ignored, for the pass reads the world itself.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf

from mocker_operator import constants
from mocker_operator.kube import kinds
from mocker_operator.reconcile.model import Key

WATCHED_CHILDREN = (*kinds.CHILDREN, kinds.POD)
_SERVER_TIMEOUT_S = 300
"""An integer: the server refuses a watch with 300.0, and Kopf then ends the process."""
_CLIENT_TIMEOUT_S = 310
_CONNECT_TIMEOUT_S = 10


def build_registry(
    *,
    wake: Callable[[Key], None],
    login: Callable[[], Awaitable[kopf.ConnectionInfo]],
    stop: Callable[[], Awaitable[None]],
    probes: Mapping[str, Callable[[], object]],
) -> kopf.OperatorRegistry:
    """Return the handlers of one operator.

    Args:
        wake: Makes a key due.
        login: Finds the credentials, again whenever they were refused.
        stop: Ends the tasks that are not Kopf's, before Kopf takes them for its own and waits.
        probes: Values that the liveness endpoint shows.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, id="login")
    async def log_in(**_: Any) -> kopf.ConnectionInfo:  # noqa: ANN401 - Kopf's calling convention
        return await login()

    @kopf.on.cleanup(registry=registry, id="stop")
    async def clean_up(**_: Any) -> None:  # noqa: ANN401
        await stop()

    @kopf.on.event(
        constants.GROUP, constants.VERSION, constants.PLURAL, registry=registry, id="mkd"
    )
    async def resource_changed(namespace: str | None, name: str, **_: Any) -> None:  # noqa: ANN401
        wake(Key(namespace or "", name))

    async def child_changed(
        namespace: str | None,
        meta: Mapping[str, Any],
        **_: Any,  # noqa: ANN401
    ) -> None:
        for owner in owners_of(meta):
            wake(Key(namespace or "", owner))

    for kind in WATCHED_CHILDREN:
        kopf.on.event(kind.group, _version(kind), kind.plural, registry=registry, id=kind.plural)(
            child_changed
        )
    for name, value in probes.items():
        kopf.on.probe(registry=registry, id=name)(_probe(value))
    return registry


def owners_of(metadata: Mapping[str, Any]) -> set[str]:
    """Return the MockerDeployments that a child belongs to by its label or its owner.

    Pods have only the label, and a child whose label was edited has only its owner.
    """
    labels = metadata.get("labels") or {}
    references = metadata.get("ownerReferences") or ()
    owners = {each["name"] for each in references if each["kind"] == constants.KIND}
    return owners | {labels[label] for label in (constants.DEPLOYMENT_LABEL,) if label in labels}


def operator_settings() -> kopf.OperatorSettings:
    """Return Kopf's settings: watch what is ours, scan for nothing, post nothing."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = _SERVER_TIMEOUT_S
    settings.watching.client_timeout = _CLIENT_TIMEOUT_S
    settings.watching.connect_timeout = _CONNECT_TIMEOUT_S
    settings.networking.enforce_retry_after = True
    for kind in WATCHED_CHILDREN:
        selector = (kind.group, _version(kind), kind.plural)
        settings.watching.label_selectors[selector] = constants.MANAGED_BY_SELECTOR
    return settings


def _version(kind: kinds.ResourceKind) -> str:
    return kind.api_version.rpartition("/")[2]


def _probe(value: Callable[[], object]) -> Callable[..., Awaitable[object]]:
    async def probe(**_: Any) -> object:  # noqa: ANN401 - Kopf's calling convention
        return value()

    return probe
