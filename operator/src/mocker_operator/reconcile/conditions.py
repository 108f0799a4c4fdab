"""The four conditions of a MockerDeployment.

Ready is the summary; it is True only when everything that is wanted, for the generation that it
names, is up to date and ready. `lastTransitionTime` changes with the status and with nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from mocker_operator.reconcile.model import Manifest
from mocker_operator.reconcile.rollout import Rollout

READY: Final = "Ready"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
SCALING_ACTIVE: Final = "ScalingActive"
INVALID_SPEC: Final = "InvalidSpec"
_MAX_MESSAGE_LENGTH: Final = 1024


class Finding(NamedTuple):
    """A condition without its times."""

    type: str
    status: str
    reason: str
    message: str


def progress(rollouts: Sequence[Rollout], *, applied: bool) -> list[Finding]:
    """Return Ready, Progressing and Degraded for a valid spec.

    Args:
        rollouts: All roles that are wanted.
        applied: Whether the children were found as they are wanted.
    """
    waiting = [f"{item.role} {item.ready}/{item.desired}" for item in rollouts if not item.complete]
    if waiting or not applied:
        message = f"waiting for {', '.join(waiting)}" if waiting else "children are being applied"
        findings = [
            Finding(READY, "False", "Progressing", message),
            Finding(PROGRESSING, "True", "RollingOut", message),
        ]
    else:
        message = "all wanted pods are up to date and ready"
        findings = [
            Finding(READY, "True", "AllReady", message),
            Finding(PROGRESSING, "False", "Complete", message),
        ]
    return [*findings, degraded(rollouts)]


def invalid_spec(message: str, rollouts: Sequence[Rollout]) -> list[Finding]:
    """Return all conditions for a spec that cannot be carried out."""
    kept = "nothing is changed until the spec is valid"
    return [
        Finding(READY, "False", INVALID_SPEC, message),
        Finding(PROGRESSING, "False", INVALID_SPEC, kept),
        degraded(rollouts),
        Finding(SCALING_ACTIVE, "False", INVALID_SPEC, kept),
    ]


def degraded(rollouts: Iterable[Rollout]) -> Finding:
    """Return Degraded: what the first Deployment that cannot go on says."""
    failures = [item.failure for item in rollouts if item.failure is not None]
    if not failures:
        return Finding(DEGRADED, "False", "AsExpected", "no Deployment reports a failure")
    reason, message = failures[0]
    return Finding(DEGRADED, "True", reason, message)


def stamped(
    findings: Iterable[Finding],
    before: Mapping[str, Mapping[str, Any]],
    *,
    generation: int,
    now: datetime,
) -> list[Manifest]:
    """Return the conditions as they are written, sorted by type.

    Args:
        findings: What was found.
        before: The observed conditions by type.
        generation: Generation of the resource that was judged.
        now: Time of a transition.
    """
    return [
        {
            "type": finding.type,
            "status": finding.status,
            "reason": finding.reason,
            "message": finding.message[:_MAX_MESSAGE_LENGTH],
            "lastTransitionTime": _since(finding, before.get(finding.type, {}), now),
            "observedGeneration": generation,
        }
        for finding in sorted(findings)
    ]


def timestamp(moment: datetime) -> str:
    """Return a time as the API server writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _since(finding: Finding, before: Mapping[str, Any], now: datetime) -> str:
    if before.get("status") == finding.status and "lastTransitionTime" in before:
        return str(before["lastTransitionTime"])
    return timestamp(now)
