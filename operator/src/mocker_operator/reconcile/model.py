"""What one reconcile pass reads and what it decides: the values between the shell and the core.

The shell observes the cluster and the planner's bucket, the pure `plan` turns that into a `Plan`,
and the shell carries the plan out. Manifests are plain dictionaries, as server-side apply wants
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from mocker_protocol.decisions import ScalingDecision

Manifest: TypeAlias = dict[str, Any]


class Key(NamedTuple):
    """Names one MockerDeployment."""

    namespace: str
    name: str


class ObjectRef(NamedTuple):
    """Names one child of a MockerDeployment in its namespace."""

    api_version: str
    kind: str
    name: str
    uid: str


class EventType(StrEnum):
    """Kubernetes event types."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Event(NamedTuple):
    """A Kubernetes event about the MockerDeployment, posted on a transition only."""

    type: EventType
    reason: str
    message: str
    """At most 1,024 characters."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The cluster as one pass read it, by GET and LIST, never from a cache."""

    resource: Manifest
    """The MockerDeployment."""
    children: tuple[Manifest, ...] = ()
    """Deployments, Services and ConfigMaps that carry this deployment's labels."""
    pods: tuple[Manifest, ...] = ()
    """Pods that carry this deployment's labels, terminating ones too."""


@dataclass(frozen=True, slots=True)
class DecisionState:
    """What the planner's bucket says about one MockerDeployment."""

    decision: ScalingDecision | None = None
    invalid: str | None = None
    """Why the latest message is no decision; None if it is one, or if there is none."""
    written_at: datetime | None = None
    """When the latest message was stored, by the server's clock (aware, UTC)."""
    acknowledged_id: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pass wants done, in this order: apply, delete, status, events, acknowledge."""

    apply: tuple[Manifest, ...] = ()
    """Manifests that differ from what was observed; empty in the steady state."""
    delete: tuple[ObjectRef, ...] = ()
    status: Manifest | None = None
    """The whole status, or None when it already says so."""
    events: tuple[Event, ...] = ()
    acknowledge: int | None = None
    """Id of the decision that has been carried out and is not yet acknowledged."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Replicas wanted per role, for the next pass to hold on to."""
    requeue_after_s: float | None = None
