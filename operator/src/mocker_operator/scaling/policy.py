"""How many workers of each role there are to be, from the spec, the planner and the past.

Pure. A decision is clamped into the bounds of its role, never rejected: a planner whose write is
refused stops for good. Ids are compared for equality only, so a planner that starts again at 0 is
obeyed. A key that vanishes from the bucket leaves the counts alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from mocker_operator.api.spec import (
    BoundsSpec,
    MockerDeploymentSpec,
    RoleSpec,
    ScalingSource,
    WorkerRole,
)
from mocker_operator.reconcile.model import DecisionState
from mocker_protocol.decisions import ScalingDecision


class ScalingReason(StrEnum):
    """Reasons of the ScalingActive condition."""

    MANUAL = "Manual"
    BUCKET_UNAVAILABLE = "BucketUnavailable"
    WAITING_FOR_DECISION = "WaitingForDecision"
    DECISION_IGNORED = "DecisionIgnored"
    FOLLOWING_DECISION = "FollowingDecision"
    CLAMPED = "Clamped"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is made of the planner's bucket."""

    active: Literal["True", "False", "Unknown"]
    reason: ScalingReason
    message: str
    decision: ScalingDecision | None = None
    """The decision that is in effect."""
    written_at: datetime | None = None
    """When it was written."""

    @property
    def clamped(self) -> bool:
        """Whether a count was moved into its bounds."""
        return self.reason is ScalingReason.CLAMPED


@dataclass(frozen=True, slots=True)
class Past:
    """What the counts were before this pass."""

    created_at: datetime | None
    """Creation of the resource: what was written before is meant for a deleted namesake."""
    held: Mapping[str, int]
    """Counts of the last pass in this process."""
    observed: Mapping[str, int]
    """`spec.replicas` of the live Deployments."""


def scale(
    spec: MockerDeploymentSpec, decisions: DecisionState | None, past: Past
) -> tuple[dict[str, int], Verdict]:
    """Return the replicas per worker role, and what was made of the planner's bucket."""
    verdict = judge(spec.scaling.source, decisions, past.created_at)
    if spec.scaling.source is ScalingSource.MANUAL:
        return {role: wanted.replicas for role, wanted in spec.roles.items()}, verdict
    counts: dict[str, int] = {}
    moved: list[str] = []
    for role, wanted in spec.roles.items():
        asked = decided(verdict.decision, role)
        counts[role] = clamp(_kept(role, wanted, past) if asked is None else asked, wanted.scaling)
        if asked is not None and asked != counts[role]:
            bounds = wanted.scaling
            moved.append(
                f"{role} {asked} -> {counts[role]} "
                f"(bounds {bounds.min_replicas}..{bounds.max_replicas})"
            )
    return counts, _clamped(verdict, moved) if moved else verdict


def clamp(count: int, bounds: BoundsSpec) -> int:
    """Return the count within the bounds that is nearest."""
    return max(bounds.min_replicas, min(count, bounds.max_replicas))


_COUNT_OF_ROLE: Final[dict[WorkerRole, str]] = {
    "prefill": "prefill",
    "decode": "decode",
    "aggregated": "decode",
}
"""Aggregated workers take the count for decode, as with Dynamo's planner."""


def decided(decision: ScalingDecision | None, role: WorkerRole) -> int | None:
    """Return the count that a decision has for a role; None leaves the role alone."""
    count: int | None = getattr(decision, _COUNT_OF_ROLE[role], None)
    return count


def judge(
    source: ScalingSource, decisions: DecisionState | None, created_at: datetime | None
) -> Verdict:
    """Return what is to be made of the planner's bucket, before any clamping."""
    manual = source is ScalingSource.MANUAL
    if decisions is None and not manual:
        return Verdict(
            "Unknown",
            ScalingReason.BUCKET_UNAVAILABLE,
            "the planner's bucket cannot be read; the counts stay as they are",
        )
    if decisions is not None and (complaint := _complaint(decisions, manual, created_at)):
        return Verdict("False" if manual else "True", ScalingReason.DECISION_IGNORED, complaint)
    if manual:
        return Verdict("False", ScalingReason.MANUAL, "spec.scaling.source is manual")
    decision = decisions.decision if decisions is not None else None
    if decisions is None or decision is None:
        return Verdict(
            "True",
            ScalingReason.WAITING_FOR_DECISION,
            "the planner has not decided yet; the counts stay as they are",
        )
    return Verdict(
        "True",
        ScalingReason.FOLLOWING_DECISION,
        f"{describe(decision)} is in effect",
        decision,
        decisions.written_at,
    )


def describe(decision: ScalingDecision) -> str:
    """Return a decision in words."""
    return f"decision {decision.decision_id}"


def _complaint(decisions: DecisionState, manual: bool, created_at: datetime | None) -> str | None:
    """Return why what is in the bucket is not acted upon; None if it is, or if there is nothing."""
    if decisions.decision is None and decisions.invalid is None:
        return None
    written_at = decisions.written_at
    name = "the message" if decisions.decision is None else describe(decisions.decision)
    if created_at is not None and written_at is not None and written_at < created_at:
        return f"{name} is older than this resource and meant for a deleted one"
    if decisions.decision is None:
        return f"not a decision: {decisions.invalid}"
    if manual:
        return f"{name} is ignored: set spec.scaling.source to planner to follow it"
    return None


def _kept(role: WorkerRole, wanted: RoleSpec, past: Past) -> int:
    return past.held.get(role, past.observed.get(role, wanted.replicas))


def _clamped(verdict: Verdict, moved: list[str]) -> Verdict:
    decision = verdict.decision
    named = "" if decision is None else describe(decision)
    return replace(
        verdict, reason=ScalingReason.CLAMPED, message=f"{named} was clamped: {', '.join(moved)}"
    )
