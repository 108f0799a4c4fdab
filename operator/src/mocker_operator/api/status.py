"""The status of a MockerDeployment, for its schema; `reconcile.status` writes it."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from mocker_operator.api.fields import Struct
from mocker_protocol.decisions import MAX_INTEGER

_Generation = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
_Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Condition(Struct):
    """One aspect of the current state."""

    type: str = Field(max_length=316)
    """Ready, Progressing, Degraded or ScalingActive."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str = Field(max_length=1024)
    """Why, in one word."""
    message: str = Field(max_length=32768)
    """Why, for people."""
    last_transition_time: datetime
    """When the status changed last."""
    observed_generation: _Generation
    """Generation of the resource that this is about."""


class RoleStatus(Struct):
    """Pods of one role."""

    replicas: _Count
    """Pods that exist."""
    ready_replicas: _Count
    """Pods that are ready."""
    updated_replicas: _Count
    """Pods that have the current configuration."""
    desired_replicas: _Count
    """Pods that are wanted."""
    ready: str = Field(max_length=32)
    """Ready and wanted pods, such as 1/2."""


class RolesStatus(Struct):
    """Pods per role; roles that are not wanted are absent."""

    prefill: RoleStatus | None = None
    """Workers that compute prompts."""
    decode: RoleStatus | None = None
    """Workers that generate tokens."""
    aggregated: RoleStatus | None = None
    """Workers that do both."""
    frontend: RoleStatus | None = None
    """The OpenAI-compatible entry."""


class DecisionStatus(Struct):
    """What became of the planner's latest decision."""

    observed_id: Annotated[int, Field(ge=0, le=MAX_INTEGER)]
    """Id of the decision that is in effect."""
    applied_id: Annotated[int, Field(ge=0, le=MAX_INTEGER)] | None = None
    """Id of the decision that was carried out last."""
    source: Literal["planner"]
    """Where the decision came from."""
    time: datetime | None = None
    """When the decision was written."""
    clamped: bool
    """Whether a count was moved into the bounds of its role."""


class MockerDeploymentStatus(Struct):
    """Observed state of a MockerDeployment."""

    observed_generation: _Generation | None = None
    """Generation of the resource that this status is about."""
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    )
    """Ready, Progressing, Degraded and ScalingActive."""
    roles: RolesStatus | None = None
    """Pods per role."""
    endpoint: str | None = Field(default=None, max_length=512)
    """Base URL of the OpenAI API inside the cluster."""
    decision: DecisionStatus | None = None
    """What became of the planner's latest decision."""
