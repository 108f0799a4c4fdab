"""The status: read defensively, written whole, and only when it says something new."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mocker_operator.reconcile.conditions import (
    DEGRADED,
    PROGRESSING,
    READY,
    SCALING_ACTIVE,
    timestamp,
)
from mocker_operator.reconcile.model import Manifest
from mocker_operator.reconcile.rollout import Rollout
from mocker_operator.scaling.policy import Verdict

_OWN_CONDITIONS: Final = frozenset({READY, PROGRESSING, DEGRADED, SCALING_ACTIVE})


def observed_status(resource: Manifest) -> Manifest:
    """Return the status of the resource without the conditions that others have added."""
    status = resource.get("status")
    if not isinstance(status, dict):
        return {}
    own = sorted(observed_conditions(status).values(), key=lambda item: str(item["type"]))
    return {**status, "conditions": own} if own else status


def observed_conditions(status: Mapping[str, Any]) -> dict[str, Manifest]:
    """Return our conditions by type."""
    conditions = status.get("conditions")
    return {
        item["type"]: item
        for item in (conditions if isinstance(conditions, list) else [])
        if isinstance(item, dict) and item.get("type") in _OWN_CONDITIONS
    }


def roles_status(rollouts: Iterable[Rollout]) -> Manifest:
    """Return `status.roles`."""
    return {
        item.role: {
            "replicas": item.replicas,
            "readyReplicas": item.ready,
            "updatedReplicas": item.updated,
            "desiredReplicas": item.desired,
            "ready": f"{item.ready}/{item.desired}",
        }
        for item in rollouts
    }


def decision_status(verdict: Verdict, before: Manifest | None, *, applied: bool) -> Manifest | None:
    """Return `status.decision`; without a decision in effect it stays as it was.

    Args:
        verdict: What was made of the planner's bucket.
        before: The observed `status.decision`.
        applied: Whether the decision has been carried out.
    """
    decision = verdict.decision
    if decision is None:
        return before
    found: Manifest = {"observedId": decision.decision_id, "source": "planner"}
    applied_id = decision.decision_id if applied else (before or {}).get("appliedId")
    if applied_id is not None:
        found["appliedId"] = applied_id
    if verdict.written_at is not None:
        found["time"] = timestamp(verdict.written_at)
    return {**found, "clamped": verdict.clamped}
