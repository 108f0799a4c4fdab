"""The spec of a MockerDeployment, one class per object of the schema.

Cross-field rules stand twice, side by side: as CEL for the API server and as a validator for
files that never see one. Roles are objects rather than list entries, because a client-side
`kubectl apply` merges maps and replaces lists.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from mocker_operator.api.engine import EngineSpec
from mocker_operator.api.fields import INTEGRAL, Replicas, Struct, cel
from mocker_operator.api.kv_events import KvEventsSpec
from mocker_operator.api.template import TemplateSpec
from mocker_operator.api.tokenizer import TOKENIZER_ENV, TokenizerSpec
from mocker_protocol.engine_args import word

WorkerRole = Literal["prefill", "decode", "aggregated"]
WORKER_ROLES: Final[tuple[WorkerRole, ...]] = ("prefill", "decode", "aggregated")
FRONTEND: Final = "frontend"
_TOKENIZER_TWICE: Final = f"give either tokenizer, or {TOKENIZER_ENV} in the env of roles"


class Routing(StrEnum):
    """How the frontend chooses a worker."""

    ROUND_ROBIN = "roundRobin"
    LEAST_LOADED = "leastLoaded"


class ScalingSource(StrEnum):
    """Who decides how many workers there are."""

    MANUAL = "manual"
    PLANNER = "planner"


class ModelSpec(Struct):
    """The model that the workers pretend to serve."""

    name: str = Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")
    """Name under which the OpenAI API serves the model."""
    max_model_len: Annotated[int, Field(ge=1, le=2**31 - 1), INTEGRAL] | None = None
    """Longest prompt plus answer in tokens; absent leaves the KV cache as the only limit."""


class BoundsSpec(
    Struct,
    json_schema_extra=cel(
        (
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not be greater than maxReplicas",
        )
    ),
):
    """Bounds that a planner's counts are clamped to."""

    min_replicas: Replicas = 0
    """Fewest workers that a planner gets."""
    max_replicas: Replicas = 100
    """Most workers that a planner gets."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError("minReplicas must not be greater than maxReplicas")
        return self


class RoleSpec(Struct):
    """The workers of one role."""

    replicas: Replicas = 1
    """Workers wanted; with a planner only the number to begin with."""
    engine: EngineSpec = Field(default_factory=EngineSpec)
    """Engine arguments of this role, over those of spec.engine."""
    scaling: BoundsSpec = Field(default_factory=BoundsSpec)
    """Bounds for a planner; replicas of a manually scaled role are not bound by them."""
    template: TemplateSpec = Field(default_factory=TemplateSpec)
    """How the pods differ from the operator's defaults."""


class FrontendSpec(Struct):
    """The OpenAI-compatible entry in front of the workers."""

    enabled: bool = True
    """Whether there is one."""
    replicas: Annotated[int, Field(ge=0, le=100), INTEGRAL] = 1
    """Frontend pods wanted."""
    routing: Annotated[Routing, word(Routing)] = Routing.ROUND_ROBIN
    """How a worker is chosen: in turn, or the one with the fewest requests in flight."""
    template: TemplateSpec = Field(default_factory=TemplateSpec)
    """How the pods differ from the operator's defaults."""


class ScalingSpec(Struct):
    """Who scales the roles, and how long a worker that must go may take."""

    source: Annotated[ScalingSource, word(ScalingSource)] = ScalingSource.MANUAL
    """manual: the replicas in this resource; planner: the latest decision in the bucket."""
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=86_400), INTEGRAL] = 60
    """Seconds that a worker which must go gets to finish its requests."""


class MockerDeploymentSpec(
    Struct,
    json_schema_extra=cel(
        (
            "has(self.prefill) == has(self.decode)",
            "prefill and decode go together: give both or none",
        ),
        (
            "has(self.aggregated) != (has(self.prefill) || has(self.decode))",
            "give either prefill and decode, or aggregated",
        ),
        *(
            (
                f"!has(self.tokenizer) || !has(self.{role}) || !has(self.{role}.template) "
                f"|| !has(self.{role}.template.env) "
                f"|| self.{role}.template.env.all(e, e.name != '{TOKENIZER_ENV}')",
                _TOKENIZER_TWICE,
            )
            for role in WORKER_ROLES
        ),
    ),
):
    """Desired state of a MockerDeployment."""

    model: ModelSpec
    """The model that the workers pretend to serve."""
    image: str | None = Field(default=None, min_length=1, max_length=1024, pattern=r"^[^\s$]+$")
    """Image of all pods; absent means the operator's default."""
    tokenizer: TokenizerSpec | None = None
    """The model's own tokenizer for all workers; absent means the built-in one."""
    engine: EngineSpec = Field(default_factory=EngineSpec)
    """Engine arguments of all roles."""
    kv_events: KvEventsSpec = Field(default_factory=KvEventsSpec)
    """Where and how the workers publish KV events."""
    prefill: RoleSpec | None = None
    """Workers that compute prompts."""
    decode: RoleSpec | None = None
    """Workers that generate tokens."""
    aggregated: RoleSpec | None = None
    """Workers that do both, in place of prefill and decode."""
    frontend: FrontendSpec = Field(default_factory=FrontendSpec)
    """The OpenAI-compatible entry in front of the workers."""
    scaling: ScalingSpec = Field(default_factory=ScalingSpec)
    """Who scales the roles."""

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        if (self.prefill is None) != (self.decode is None):
            raise ValueError("prefill and decode go together: give both or none")
        if (self.aggregated is None) == (self.prefill is None):
            raise ValueError("give either prefill and decode, or aggregated")
        return self

    @model_validator(mode="after")
    def _one_tokenizer(self) -> Self:
        variables = (item for role in self.roles.values() for item in role.template.env)
        if self.tokenizer is not None and any(item.name == TOKENIZER_ENV for item in variables):
            raise ValueError(_TOKENIZER_TWICE)
        return self

    @property
    def roles(self) -> dict[WorkerRole, RoleSpec]:
        """Roles of the workers that are wanted."""
        found: dict[WorkerRole, RoleSpec | None] = {
            "prefill": self.prefill,
            "decode": self.decode,
            "aggregated": self.aggregated,
        }
        return {role: spec for role, spec in found.items() if spec is not None}
