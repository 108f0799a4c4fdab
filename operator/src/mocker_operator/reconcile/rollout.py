"""How far the pods of each role are, read from the role's Deployment and its pods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mocker_operator.constants import ROLE_LABEL
from mocker_operator.reconcile.drift import is_carried_out
from mocker_operator.reconcile.model import Manifest

_FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Rollout:
    """Pods of one role against what is wanted."""

    role: str
    desired: int
    replicas: int = 0
    ready: int = 0
    updated: int = 0
    current: bool = False
    """Whether the counts are about the Deployment that is wanted."""
    pods: int = 0
    """Pods that exist, terminating ones too; finished ones that nobody deletes do not count."""
    failure: tuple[str, str] | None = None
    """Reason and message if the Deployment reports that it cannot make progress."""

    @property
    def complete(self) -> bool:
        """Whether all wanted pods are up to date and ready, and no other is counted."""
        return self.current and self.desired == self.replicas == self.ready == self.updated

    @property
    def lingering(self) -> bool:
        """Whether the roll-out is complete but for old pods that are still there."""
        return self.complete and self.pods != self.desired

    @property
    def settled(self) -> bool:
        """Whether the roll-out is complete and the old pods are gone."""
        return self.complete and self.pods == self.desired


def rollout(
    role: str, *, desired: Manifest | None, live: Manifest | None, pods: Sequence[Manifest]
) -> Rollout:
    """Return how far a role is.

    Args:
        role: The role.
        desired: Its Deployment as wanted; None if that cannot be told, for a spec is invalid.
        live: Its Deployment as observed.
        pods: All pods of the MockerDeployment.
    """
    source = desired or live or {}
    wanted = int(source.get("spec", {}).get("replicas") or 0)
    here = sum(_is_present(pod, role) for pod in pods)
    if live is None:
        return Rollout(role, wanted, pods=here)
    status = live.get("status") or {}
    generation = live["metadata"].get("generation", 0)
    return Rollout(
        role,
        wanted,
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current=(
            is_carried_out(source, live) and status.get("observedGeneration", -1) >= generation
        ),
        pods=here,
        failure=_failure(live, status),
    )


def _is_present(pod: Manifest, role: str) -> bool:
    metadata = pod["metadata"]
    if (metadata.get("labels") or {}).get(ROLE_LABEL) != role:
        return False
    # An evicted pod stays as a record; one that is being deleted is gone in a moment.
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" in metadata or phase not in _FINISHED


def _failure(live: Manifest, status: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what a Deployment says about pods that cannot be made, or do not become ready."""
    name = live["metadata"]["name"]
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    refused = conditions.get("ReplicaFailure", {})
    if refused.get("status") == "True":
        return "ReplicaFailure", f"Deployment {name}: {refused.get('message', '')}"
    progress = conditions.get("Progressing", {})
    if progress.get("reason") == "ProgressDeadlineExceeded":
        return "ProgressDeadlineExceeded", f"Deployment {name}: {progress.get('message', '')}"
    return None
