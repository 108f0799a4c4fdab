"""Field types of the resource that judge a value as the API server does.

Numbers are strict, integral floats are taken for integers, explicit nulls are dropped, and every
string, list and map is bounded: what one judge accepts, the other must.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from mocker_operator.api.quantity import QUANTITY_PATTERN
from mocker_protocol.decisions import integral

MAX_REPLICAS = 1000
MAX_ITEMS = 64
_VALIDATIONS = "x-kubernetes-validations"
_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY_PATTERN = rf"^([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}$"
LABEL_VALUE_PATTERN = rf"^({_LABEL_NAME})?$"

NamedItem = TypeVar("NamedItem", bound="Named")


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """Return the schema extension that makes the API server check (rule, message) pairs."""
    return {_VALIDATIONS: [{"rule": rule, "message": message} for rule, message in rules]}


def without_nulls(value: Any) -> Any:  # noqa: ANN401 - a validator sees whatever was sent
    """Drop explicit nulls from a map, as the API server prunes them."""
    if not isinstance(value, Mapping):
        return value
    return {key: item for key, item in value.items() if item is not None}


class Struct(BaseModel):
    """An object of the resource: camelCase outside, snake_case inside."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:  # noqa: ANN401 - a validator sees whatever was sent
        return without_nulls(data)


class Named(Struct):
    """An item of a list that is merged by name."""

    name: str


def _unique_names(items: list[NamedItem]) -> list[NamedItem]:
    seen: set[str] = set()
    for item in items:
        if item.name in seen:
            raise ValueError(f"Duplicate value {item.name!r}; names must be unique")
        seen.add(item.name)
    return items


UniqueNames = AfterValidator(_unique_names)
BY_NAME: dict[str, Any] = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}


def _quantity(value: Any) -> Any:  # noqa: ANN401 - a validator sees whatever was sent
    value = integral(value)
    return str(value) if type(value) is int else value


INTEGRAL = BeforeValidator(integral)
Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS), INTEGRAL]
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, le=3_600_000, allow_inf_nan=False)]
Quantity = Annotated[
    str,
    Field(pattern=QUANTITY_PATTERN),
    BeforeValidator(_quantity),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN}),
]
LabelKey = Annotated[str, Field(max_length=317, pattern=LABEL_KEY_PATTERN)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]
