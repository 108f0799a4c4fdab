"""The decision of one pass: observed and desired state in, a plan out. Pure.

Level-triggered: the plan follows from what is there, not from what happened. It never raises for
what a resource contains; a spec that cannot be carried out becomes a condition, and its running
pods stay as they are. In the steady state the plan is empty.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from mocker_operator.api.errors import InvalidSpec
from mocker_operator.api.parse import parse_spec
from mocker_operator.api.spec import FRONTEND, WORKER_ROLES, MockerDeploymentSpec, ScalingSource
from mocker_operator.constants import DEPLOYMENT_KIND, ROLE_LABEL
from mocker_operator.reconcile.conditions import (
    SCALING_ACTIVE,
    Finding,
    invalid_spec,
    progress,
    stamped,
)
from mocker_operator.reconcile.drift import is_carried_out, needs_apply
from mocker_operator.reconcile.model import (
    DecisionState,
    Key,
    Manifest,
    ObjectRef,
    Observed,
    Plan,
)
from mocker_operator.reconcile.rollout import Rollout, rollout
from mocker_operator.reconcile.status import (
    decision_status,
    observed_conditions,
    observed_status,
    roles_status,
)
from mocker_operator.reconcile.transitions import Step, events
from mocker_operator.render import RenderSettings, endpoint, render
from mocker_operator.scaling.policy import Past, scale

_LOOK_AGAIN_S: Final = 2.0
"""While old pods keep a decision from being acknowledged; their end is watched as well."""


@dataclass(frozen=True, slots=True)
class _World:
    """What was observed, indexed."""

    observed: Observed
    children: Mapping[tuple[str, str], Manifest]
    """By kind and name."""
    status: Manifest

    @property
    def key(self) -> Key:
        metadata = self.observed.resource["metadata"]
        return Key(metadata["namespace"], metadata["name"])

    @property
    def uid(self) -> str:
        return str(self.observed.resource["metadata"]["uid"])

    @property
    def generation(self) -> int:
        return int(self.observed.resource["metadata"].get("generation", 0))

    def live(self, manifest: Manifest) -> Manifest | None:
        """Return the live child that a manifest is about."""
        return self.children.get(_identity(manifest))

    def own(self) -> list[Manifest]:
        """Return the children that belong to this resource and not to a deleted namesake."""
        return [child for child in self.children.values() if _is_owned(child, self.uid)]


def plan(
    observed: Observed,
    decisions: DecisionState | None,
    held: Mapping[str, int],
    settings: RenderSettings,
    now: datetime,
) -> Plan:
    """Decide what one pass does.

    Args:
        observed: The resource, its children and its pods.
        decisions: What the planner's bucket says; None while it cannot be read.
        held: The counts of the last pass in this process; empty after a start.
        settings: What the operator's installation adds to the manifests.
        now: Time of this pass (aware).
    """
    resource = observed.resource
    if "deletionTimestamp" in resource["metadata"]:
        return Plan()
    world = _World(
        observed,
        {_identity(child): child for child in observed.children},
        observed_status(resource),
    )
    try:
        spec = parse_spec(resource)
    except InvalidSpec as error:
        return _refuse(world, error, held, now)
    return _carry_out(world, spec, decisions, _past(world, held), settings=settings, now=now)


def reference(child: Manifest) -> ObjectRef:
    """Return what names an observed child."""
    metadata = child["metadata"]
    return ObjectRef(child["apiVersion"], child["kind"], metadata["name"], metadata["uid"])


def _carry_out(
    world: _World,
    spec: MockerDeploymentSpec,
    decisions: DecisionState | None,
    past: Past,
    *,
    settings: RenderSettings,
    now: datetime,
) -> Plan:
    counts, verdict = scale(spec, decisions, past)
    desired = render(world.key, world.uid, spec, counts, settings)
    rollouts = _rollouts(world, desired)
    workers = [item for item in rollouts if item.role != FRONTEND]
    settled = verdict.decision is not None and all(item.settled for item in workers)
    findings = progress(
        rollouts, applied=all(is_carried_out(item, world.live(item)) for item in desired)
    )
    findings.append(Finding(SCALING_ACTIVE, verdict.active, verdict.reason, verdict.message))
    planned = spec.scaling.source is ScalingSource.PLANNER
    status = _status(
        world,
        _stamped(world, findings, now),
        rollouts,
        endpoint=endpoint(world.key, spec),
        decision=decision_status(
            verdict, world.status.get("decision") if planned else None, applied=settled
        ),
    )
    unanswered = (
        verdict.decision is not None
        and decisions is not None
        and decisions.acknowledged_id != verdict.decision.decision_id
    )
    lingering = any(item.lingering for item in workers)
    return Plan(
        apply=tuple(item for item in desired if needs_apply(item, world.live(item))),
        delete=_unwanted(world, desired),
        status=None if status == world.status else status,
        events=events(world.status, status, Step(spec, verdict, counts, past.observed)),
        acknowledge=verdict.decision.decision_id
        if verdict.decision is not None and unanswered and settled
        else None,
        held=counts,
        requeue_after_s=_LOOK_AGAIN_S if unanswered and lingering else None,
    )


def _refuse(world: _World, error: InvalidSpec, held: Mapping[str, int], now: datetime) -> Plan:
    """Report an invalid spec and leave everything else alone."""
    deployments = {
        child["metadata"]["labels"].get(ROLE_LABEL): child
        for child in world.own()
        if child["kind"] == DEPLOYMENT_KIND
    }
    rollouts = [
        rollout(role, desired=None, live=deployments[role], pods=world.observed.pods)
        for role in (*WORKER_ROLES, FRONTEND)
        if role in deployments
    ]
    status = _status(
        world,
        _stamped(world, invalid_spec(str(error), rollouts), now),
        rollouts,
        endpoint=world.status.get("endpoint"),
        decision=world.status.get("decision"),
    )
    return Plan(
        status=None if status == world.status else status,
        events=events(world.status, status, None),
        held=dict(held),
    )


def _status(
    world: _World,
    conditions: list[Manifest],
    rollouts: Iterable[Rollout],
    *,
    endpoint: str | None,
    decision: Manifest | None,
) -> Manifest:
    status = {
        "observedGeneration": world.generation,
        "conditions": conditions,
        "roles": roles_status(rollouts),
        "endpoint": endpoint,
        "decision": decision,
    }
    return {name: value for name, value in status.items() if value is not None}


def _stamped(world: _World, findings: Iterable[Finding], now: datetime) -> list[Manifest]:
    before = observed_conditions(world.status)
    return stamped(findings, before, generation=world.generation, now=now)


def _rollouts(world: _World, desired: Iterable[Manifest]) -> list[Rollout]:
    return [
        rollout(
            item["metadata"]["labels"][ROLE_LABEL],
            desired=item,
            live=world.live(item),
            pods=world.observed.pods,
        )
        for item in desired
        if item["kind"] == DEPLOYMENT_KIND
    ]


def _past(world: _World, held: Mapping[str, int]) -> Past:
    """Return the counts so far.

    A resource without a status had no pass yet: what is held is that of a deleted namesake.
    """
    return Past(
        created_at=_created_at(world.observed.resource),
        held=held if "observedGeneration" in world.status else {},
        observed={
            child["metadata"]["labels"][ROLE_LABEL]: child["spec"].get("replicas", 1)
            for child in world.own()
            if child["kind"] == DEPLOYMENT_KIND
            and child["metadata"].get("labels", {}).get(ROLE_LABEL) in WORKER_ROLES
        },
    )


def _created_at(resource: Manifest) -> datetime | None:
    try:
        created_at = datetime.fromisoformat(str(resource["metadata"].get("creationTimestamp")))
    except ValueError:
        return None
    return created_at if created_at.tzinfo else created_at.replace(tzinfo=UTC)


def _unwanted(world: _World, desired: Iterable[Manifest]) -> tuple[ObjectRef, ...]:
    wanted = {_identity(item) for item in desired}
    return tuple(
        reference(child)
        for identity, child in sorted(world.children.items())
        if identity not in wanted
        and _is_owned(child, world.uid)
        and "deletionTimestamp" not in child["metadata"]
    )


def _is_owned(child: Manifest, uid: str) -> bool:
    owners = child["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def _identity(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]
