"""One reconcile pass: observe, plan, and carry the plan out.

A pass reads its resource and its children from the API server every time; nothing that was seen
before is trusted, and no annotation or status is the operator's memory. What is kept per key is the
counts to hold on to while a planner is silent, and which manifests the server has refused.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Protocol

from mocker_operator.constants import DEPLOYMENT_KIND
from mocker_operator.errors import SourceUnavailable
from mocker_operator.kube.errors import Gone, KubeError, Terminal
from mocker_operator.reconcile.drift import was_accepted
from mocker_operator.reconcile.model import (
    DecisionState,
    Event,
    EventType,
    Key,
    Manifest,
    ObjectRef,
    Observed,
    Plan,
)
from mocker_operator.reconcile.plan import plan, reference
from mocker_operator.refusals import REASON, Refusals, failed_status
from mocker_operator.render import RenderSettings

_log = logging.getLogger(__name__)

ACKNOWLEDGE_AGAIN_S = 5.0
REPLACEMENT_DUE_S = 1.0
"""After the deletion of a child that is to be made again; its end is watched as well."""


class Cluster(Protocol):
    """The API server as a pass sees it; `kube.gateway.Gateway` is the real one."""

    async def get_resource(self, key: Key) -> Manifest | None:
        """Return the resource, or None."""

    async def list_children(self, key: Key) -> tuple[Manifest, ...]:
        """Return its children."""

    async def list_pods(self, key: Key) -> tuple[Manifest, ...]:
        """Return its pods."""

    async def claim(self, manifest: Manifest) -> None:
        """Raise Terminal if somebody else's object has a child's name."""

    async def apply(self, manifest: Manifest) -> None:
        """Apply a child."""

    async def delete(self, namespace: str, ref: ObjectRef, *, keep_pods: bool = False) -> None:
        """Delete a child; a Deployment's pods can be left to the next one."""

    async def apply_status(self, resource: Manifest, status: Manifest) -> None:
        """Write the status."""

    async def post_event(self, resource: Manifest, event: Event, now: datetime) -> None:
        """Post an event."""


class DecisionSource(Protocol):
    """Where a planner's decisions come from."""

    def state(self, key: Key) -> DecisionState | None:
        """Return what is known; None if nothing can be known at the moment."""

    async def acknowledge(self, key: Key, decision_id: int) -> None:
        """Say that a decision was carried out."""


@dataclass(slots=True)
class _Memory:
    uid: str
    held: Mapping[str, int] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)


class Controller:
    """Runs passes.

    Args:
        cluster: The API server.
        source: The planner's decisions.
        settings: What manifests are rendered with.
        now: The clock (aware).
        resync_s: Draws how long a resource may go without a pass.
    """

    def __init__(
        self,
        cluster: Cluster,
        source: DecisionSource,
        settings: RenderSettings,
        *,
        now: Callable[[], datetime],
        resync_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._settings = settings
        self._now = now
        self._resync_s = resync_s
        self._memories: dict[Key, _Memory] = {}

    @property
    def keys(self) -> Sequence[Key]:
        """Resources that existed when they had their last pass."""
        return list(self._memories)

    def knows(self, key: Key) -> bool:
        """Whether the resource existed when it had its last pass, or has one just now."""
        return key in self._memories

    async def reconcile(self, key: Key) -> float | None:
        """Run one pass; return after how many seconds the next is due, None if there is none.

        Raises:
            Transient: if the pass could not be completed and should be tried again.
        """
        resource = await self._cluster.get_resource(key)
        if resource is None or "deletionTimestamp" in resource["metadata"]:
            # Applying to a resource that is being deleted would race the garbage collector.
            self._memories.pop(key, None)
            return None
        try:
            return await self._reconcile(key, resource)
        except Gone as error:
            _log.info("%s/%s is going away: %s", key.namespace, key.name, error)
            return self._resync_s()

    async def _reconcile(self, key: Key, resource: Manifest) -> float:
        memory = self._memory_of(key, resource["metadata"]["uid"])
        observed = Observed(
            resource=resource,
            children=await self._cluster.list_children(key),
            pods=await self._cluster.list_pods(key),
        )
        now = self._now()
        decisions = self._source.state(key)
        intent = plan(observed, decisions, memory.held, self._settings, now)
        # Before anything is written: a pass that is cut short has perhaps scaled already.
        memory.held = intent.held
        replaced = await self._apply(intent, memory.refusals, observed.children, now)
        for ref in intent.delete:
            _log.info("%s/%s: delete %s %s", key.namespace, key.name, ref.kind, ref.name)
            await self._cluster.delete(key.namespace, ref)
        await self._report(observed.resource, intent, memory.refusals, now)
        waits = [self._resync_s(), intent.requeue_after_s, memory.refusals.retry_after_s(now)]
        if replaced:
            waits.append(REPLACEMENT_DUE_S)
        if intent.acknowledge is not None and not memory.refusals.messages:
            waits.append(await self._acknowledge(key, intent.acknowledge))
        return min(wait for wait in waits if wait is not None)

    def _memory_of(self, key: Key, uid: str) -> _Memory:
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = _Memory(uid)
        return memory

    async def _apply(
        self, intent: Plan, refusals: Refusals, children: Sequence[Manifest], now: datetime
    ) -> bool:
        """Apply what differs; return whether a child was deleted in order to be made again."""
        refusals.keep_only(intent.apply)
        seen = {_identity(child): child for child in children}
        replaced = False
        for manifest in intent.apply:
            if refusals.still_refused(manifest, now):
                continue
            live = seen.get(_identity(manifest))
            try:
                if live is None:
                    await self._cluster.claim(manifest)
                await self._cluster.apply(manifest)
                refusals.accepted(manifest)
            except Terminal as error:
                if live is not None and await self._replace(
                    manifest, live, error, refusals=refusals, now=now
                ):
                    replaced = True
                    continue
                _log.error("%s %s: %s", manifest["kind"], manifest["metadata"]["name"], error)
                refusals.refused(manifest, str(error), now)
        return replaced

    async def _replace(
        self,
        manifest: Manifest,
        live: Manifest,
        error: Terminal,
        *,
        refusals: Refusals,
        now: datetime,
    ) -> bool:
        """Delete a child whose edits an apply cannot undo; return False if that is not the case.

        An apply leaves the fields of others, and some contradict ours: a handler of another kind
        in a probe, a second port of the same name, `immutable`.
        """
        if error.status != HTTPStatus.UNPROCESSABLE_ENTITY or not was_accepted(manifest, live):
            return False
        if "deletionTimestamp" in live["metadata"]:
            return True
        if not refusals.may_replace(manifest, now):
            return False
        ref = reference(live)
        _log.warning("%s %s is made again: %s", ref.kind, ref.name, error)
        keep_pods = ref.kind == DEPLOYMENT_KIND
        await self._cluster.delete(live["metadata"]["namespace"], ref, keep_pods=keep_pods)
        return True

    async def _report(
        self, resource: Manifest, intent: Plan, refusals: Refusals, now: datetime
    ) -> None:
        status, events = intent.status, intent.events
        if refusals.messages:
            status = failed_status(resource, intent.status, refusals.messages, now)
            events = ()
            if status is not None:
                message = "; ".join(refusals.messages)
                events = (Event(EventType.WARNING, REASON, message),)
        if status is not None:
            await self._cluster.apply_status(resource, status)
        for event in events:
            await self._post(resource, event, now)

    async def _post(self, resource: Manifest, event: Event, now: datetime) -> None:
        try:
            await self._cluster.post_event(resource, event, now)
        except KubeError as error:
            # What an event says is in the conditions too; a pass does not fail for it.
            _log.warning("event %s not posted: %s", event.reason, error)

    async def _acknowledge(self, key: Key, decision_id: int) -> float | None:
        try:
            await self._source.acknowledge(key, decision_id)
        except SourceUnavailable as error:
            _log.warning("%s/%s: decision %d: %s", key.namespace, key.name, decision_id, error)
            return ACKNOWLEDGE_AGAIN_S
        _log.info("%s/%s: decision %d carried out", key.namespace, key.name, decision_id)
        return None


def _identity(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]
