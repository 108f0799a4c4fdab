"""What a role may change about its pods: a small typed part of the pod template.

A whole PodSpec would make the CRD too large for client-side `kubectl apply`, and would let a
resource undo the restricted security context.
"""

from collections.abc import Iterable
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mocker_operator.api.fields import (
    BY_NAME,
    INTEGRAL,
    LABEL_KEY_PATTERN,
    MAX_ITEMS,
    LabelKey,
    LabelValue,
    Named,
    Quantity,
    Struct,
    UniqueNames,
    cel,
    without_nulls,
)
from mocker_operator.api.quantity import parse_quantity
from mocker_operator.constants import (
    COMPONENT_LABEL,
    GROUP,
    INSTANCE_LABEL,
    MANAGED_BY_LABEL,
    NAME_LABEL,
)

OWN_ENV: Final = ("POD_NAME", "POD_UID", "POD_IP", "POD_NAMESPACE", "DYN_NAMESPACE")
"""Environment variables that the operator sets itself."""
_OWN_PREFIX: Final = f"{GROUP}/"
_OWN_LABELS: Final = (NAME_LABEL, INSTANCE_LABEL, COMPONENT_LABEL, MANAGED_BY_LABEL)


def _listed(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


_OWN_KEYS_MESSAGE: Final = f"keys under {_OWN_PREFIX} and the operator's own labels cannot be set"
OBJECT_NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_ONE_SOURCE: Final = "give one of secretKeyRef and configMapKeyRef"
_VALUE_OR_SOURCE: Final = "value must be empty when valueFrom is given"
_OWN_ENV_MESSAGE: Final = f"the operator itself sets {', '.join(OWN_ENV)}"


def _no_own_keys(values: dict[str, str]) -> dict[str, str]:
    if any(key.startswith(_OWN_PREFIX) or key in _OWN_LABELS for key in values):
        raise ValueError(_OWN_KEYS_MESSAGE)
    return values


_NO_OWN_KEYS: Final = cel(
    (
        f"self.all(k, !k.startsWith('{_OWN_PREFIX}') && !(k in {_listed(_OWN_LABELS)}))",
        _OWN_KEYS_MESSAGE,
    )
)
Labels = Annotated[
    dict[LabelKey, LabelValue],
    Field(max_length=MAX_ITEMS),
    BeforeValidator(without_nulls),
]


class KeyReference(Named):
    """A key of a Secret or ConfigMap in the namespace of the resource."""

    name: str = Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)
    """Name of the object."""
    key: str = Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    """Key of the value in it."""
    optional: bool | None = None
    """Whether the variable stays unset where the key is missing (false: the pod waits)."""


class EnvSource(
    Struct,
    json_schema_extra=cel(("has(self.secretKeyRef) != has(self.configMapKeyRef)", _ONE_SOURCE)),
):
    """Where the value of a variable is kept."""

    secret_key_ref: KeyReference | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.secret_key_ref is None) == (self.config_map_key_ref is None):
            raise ValueError(_ONE_SOURCE)
        return self


class EnvVar(
    Named,
    json_schema_extra=cel(
        ("!has(self.valueFrom) || !has(self.value) || self.value == ''", _VALUE_OR_SOURCE)
    ),
):
    """An environment variable."""

    name: str = Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the variable."""
    value: str = Field(default="", max_length=4096)
    """Its value; $(NAME) refers to another variable."""
    value_from: EnvSource | None = None
    """Where its value is kept, in place of value."""

    @model_validator(mode="after")
    def _value_or_source(self) -> Self:
        if self.value and self.value_from is not None:
            raise ValueError(_VALUE_OR_SOURCE)
        return self


def _no_own_env(items: list[EnvVar]) -> list[EnvVar]:
    if any(item.name in OWN_ENV for item in items):
        raise ValueError(_OWN_ENV_MESSAGE)
    return items


class SecretReference(Named):
    """A secret in the namespace of the resource."""

    name: str = Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)
    """Name of the secret."""


class Toleration(
    Struct,
    json_schema_extra=cel(
        (
            "!has(self.operator) || self.operator != 'Exists' || !has(self.value) "
            "|| self.value == ''",
            "value must be empty when operator is Exists",
        ),
        (
            "(has(self.key) && self.key != '') "
            "|| (has(self.operator) && self.operator == 'Exists')",
            "operator must be Exists when key is empty",
        ),
        (
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "effect must be NoExecute when tolerationSeconds is set",
        ),
    ),
):
    """A taint of nodes that the pods put up with."""

    key: str | None = Field(default=None, max_length=317, pattern=rf"^$|{LABEL_KEY_PATTERN}")
    """Key of the taint; absent matches all."""
    operator: Literal["Exists", "Equal"] | None = None
    """How the value is compared (Equal)."""
    value: LabelValue | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; absent matches all."""
    toleration_seconds: Annotated[int, Field(ge=0, le=2**31 - 1), INTEGRAL] | None = None
    """Seconds until eviction by a NoExecute taint; absent means never."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError("value must be empty when operator is Exists")
        if not self.key and self.operator != "Exists":
            raise ValueError("operator must be Exists when key is empty")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("effect must be NoExecute when tolerationSeconds is set")
        return self


class ResourceQuantities(Struct):
    """Amounts of compute resources."""

    cpu: Quantity | None = None
    """Cores, such as 500m."""
    memory: Quantity | None = None
    """Bytes, such as 64Mi."""

    def amounts(self) -> dict[str, str]:
        """Return the amounts that are given."""
        return self.model_dump(exclude_none=True)


class ResourcesSpec(Struct):
    """Compute resources of the container."""

    requests: ResourceQuantities = Field(default_factory=ResourceQuantities)
    """What the scheduler sets aside."""
    limits: ResourceQuantities = Field(default_factory=ResourceQuantities)
    """What the container may use at most."""

    @model_validator(mode="after")
    def _requests_fit(self) -> Self:
        limits = self.limits.amounts()
        for name, amount in self.requests.amounts().items():
            if name in limits and parse_quantity(amount) > parse_quantity(limits[name]):
                raise ValueError(f"requests.{name} {amount} is greater than its limit")
        return self


class TemplateSpec(Struct):
    """How the pods of a role differ from the operator's defaults."""

    resources: ResourcesSpec | None = None
    """Compute resources, in place of the defaults."""
    env: Annotated[list[EnvVar], UniqueNames, AfterValidator(_no_own_env)] = Field(
        default_factory=list,
        max_length=MAX_ITEMS,
        json_schema_extra={
            **BY_NAME,
            **cel((f"self.all(e, !(e.name in {_listed(OWN_ENV)}))", _OWN_ENV_MESSAGE)),
        },
    )
    """More environment variables."""
    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: list[Toleration] = Field(
        default_factory=list,
        max_length=MAX_ITEMS,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """Taints of nodes that the pods put up with."""
    labels: Annotated[Labels, AfterValidator(_no_own_keys)] = Field(
        default_factory=dict, json_schema_extra=_NO_OWN_KEYS
    )
    """More labels of the pods."""
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]],
        Field(max_length=MAX_ITEMS),
        BeforeValidator(without_nulls),
        AfterValidator(_no_own_keys),
    ] = Field(default_factory=dict, json_schema_extra=_NO_OWN_KEYS)
    """More annotations of the pods."""
    image_pull_secrets: Annotated[list[SecretReference], UniqueNames] = Field(
        default_factory=list, max_length=MAX_ITEMS, json_schema_extra=BY_NAME
    )
    """Secrets to pull the image with."""
