"""Scaling decisions of a planner, and their acknowledgement, in a JetStream key-value bucket.

The bucket holds the latest decision of each MockerDeployment under `<namespace>.<name>` and the
id of the last one that was carried out under `<namespace>.<name>.scaled`. The meaning is that of
Dynamo's VirtualConnector: a count that is absent is left alone, 0 is legal, and nothing a planner
writes is ever rejected.
"""

import json
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

BUCKET = "mocker-planner"
_SCALED = "scaled"
MAX_INTEGER = 2**63 - 1


def integral(value: Any) -> Any:  # noqa: ANN401 - a validator sees whatever was sent
    """Take 2.0 for 2, as the API server and most JSON writers do; leave all else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, BeforeValidator(integral), Field(ge=0, le=2**31 - 1)]
DecisionId = Annotated[int, BeforeValidator(integral), Field(ge=0, le=MAX_INTEGER)]


class InvalidDecision(ValueError):
    """A message that cannot be understood as a decision; the text names the field."""


class ScalingDecision(BaseModel):
    """How many ready workers a planner wants of each role; None leaves the role alone."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    decision_id: DecisionId
    prefill: Count | None = None
    decode: Count | None = None

    def encode(self) -> bytes:
        """Return the JSON that goes into the bucket, without the roles left alone."""
        return self.model_dump_json(exclude_none=True).encode()


class DeploymentKey(NamedTuple):
    """Names one MockerDeployment in the bucket."""

    namespace: str
    name: str

    @property
    def decision(self) -> str:
        """Key that holds the latest decision."""
        return f"{self.namespace}.{self.name}"

    @property
    def scaled(self) -> str:
        """Key that holds the acknowledgement."""
        return f"{self.decision}.{_SCALED}"


def parse_key(key: str) -> DeploymentKey | None:
    """Return whose decision a bucket key holds; None for acknowledgements and foreign keys.

    A name may contain dots, so `a.b.scaled` could be the decision of a deployment called
    `b.scaled`: such names are kept out by the resource's schema.
    """
    namespace, _, name = key.partition(".")
    if not namespace or not name or name.endswith(f".{_SCALED}"):
        return None
    return DeploymentKey(namespace, name)


def parse_decision(payload: bytes) -> ScalingDecision:
    """Parse what a planner wrote.

    Raises:
        InvalidDecision: if it is not JSON, or a field is missing or out of its range.
    """
    try:
        data = json.loads(payload)
    except (ValueError, RecursionError) as error:  # also integers of thousands of digits
        raise InvalidDecision(f"not JSON: {error}") from error
    try:
        return ScalingDecision.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "decision"
        raise InvalidDecision(f"{field}: {first['msg']}") from error


def encode_acknowledgement(decision_id: int) -> bytes:
    """Return the JSON that says a decision was carried out."""
    return json.dumps({"scaled_decision_id": decision_id}).encode()


def parse_acknowledgement(payload: bytes) -> int | None:
    """Return the id of the decision that was carried out; None if the payload is something else."""
    try:
        value = json.loads(payload)["scaled_decision_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if type(value) is int else None
