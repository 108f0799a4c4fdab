"""From a manifest to a spec, or to the one complaint that a user needs first."""

import re
from typing import Any, Final, Literal

from pydantic import ValidationError

from mocker_operator.api.engine_arguments import engine_arguments
from mocker_operator.api.errors import InvalidSpec
from mocker_operator.api.spec import MockerDeploymentSpec
from mocker_operator.constants import MAX_NAME_LENGTH

NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""Of a MockerDeployment: a DNS label that begins with a letter, as names of Services must."""


def parse_spec(
    resource: dict[str, Any], *, unknown: Literal["ignore", "forbid"] = "ignore"
) -> MockerDeploymentSpec:
    """Validate a MockerDeployment and return its spec.

    Args:
        resource: The manifest.
        unknown: What to do with fields that this version does not know: `ignore` what the
            cluster holds (a newer CRD may be installed), `forbid` in files.

    Raises:
        InvalidSpec: naming the first field at fault.
    """
    _check_name(resource.get("metadata"))
    try:
        spec = MockerDeploymentSpec.model_validate(resource.get("spec") or {}, extra=unknown)
    except ValidationError as error:
        raise _first_complaint(error) from error
    for role in spec.roles:
        engine_arguments(spec, role)
    return spec


def _check_name(metadata: object) -> None:
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidSpec("metadata.name", "must be given")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidSpec("metadata.name", f"must have at most {MAX_NAME_LENGTH} characters")
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidSpec(
            "metadata.name",
            "must consist of a-z, 0-9 and -, begin with a letter and not end with -",
        )


def _first_complaint(error: ValidationError) -> InvalidSpec:
    first = error.errors()[0]
    path = "spec"
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    if first["type"] == "extra_forbidden":
        return InvalidSpec(path, "unknown field; remove it or correct its spelling")
    return InvalidSpec(path, first["msg"].removeprefix("Value error, "))
