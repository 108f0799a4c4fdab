"""JSON schemas of pydantic, rewritten into the structural schemas that a CRD must hold.

The API server wants every type spelled out in place: no references, no unions, no nulls (also not
inside defaults), bounds in OpenAPI 3.0's boolean form. A construct without an equivalent is an
error here, because the server drops some of them with a mere warning.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]

_DROPPED: Final = frozenset({"title", "$defs", "examples"})
_GREATEST_INT64: Final = 2**63 - 1
_OF_STRINGS: Final = frozenset({"minLength", "maxLength", "pattern"})
_KEPT: Final = frozenset(
    "type format description default enum pattern properties required items "
    "additionalProperties minimum maximum exclusiveMinimum exclusiveMaximum "
    "minLength maxLength minItems maxItems minProperties maxProperties multipleOf".split()
)


def structural(schema: Mapping[str, Any]) -> Schema:
    """Return the structural form of what `model_json_schema()` gave.

    Raises:
        TypeError: if the schema holds something that a structural schema cannot say.
    """
    return _rewrite(dict(schema), schema.get("$defs", {}))


def _rewrite(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    schema = _in_place(schema, definitions)
    schema = {key: value for key, value in schema.items() if key not in _DROPPED}
    for step in (_description, _default, _constant, _bounds, _objects):
        step(schema)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _rewrite(schema[key], definitions)
    if "properties" in schema:
        schema["properties"] = {
            name: _rewrite(item, definitions) for name, item in schema["properties"].items()
        }
    _judge(schema)
    return schema


def _judge(schema: Schema) -> None:
    """Refuse what the API server would refuse, or drop without a word."""
    unknown = [key for key in schema if key not in _KEPT and not key.startswith("x-kubernetes-")]
    unknown += [key for key in _OF_STRINGS & schema.keys() if schema.get("type") == "object"]
    if unknown or not ({"type", "x-kubernetes-int-or-string"} & schema.keys()):
        raise TypeError(f"no structural form for {unknown or 'a schema without type'}: {schema}")


def _in_place(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Resolve references and optional types; keys beside them win over what they stand for."""
    while "$ref" in schema or "anyOf" in schema:
        schema = dict(schema)
        if "$ref" in schema:
            target = definitions[schema.pop("$ref").rpartition("/")[2]]
        else:
            options = [item for item in schema.pop("anyOf") if item.get("type") != "null"]
            if len(options) != 1:
                raise TypeError(f"no structural form for a union: {options}")
            target = options[0]
        schema = {**target, **schema}
    return schema


def _description(schema: Schema) -> None:
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())


def _default(schema: Schema) -> None:
    if "default" in schema and schema["default"] is None:
        del schema["default"]
    elif "default" in schema:
        schema["default"] = _without_nulls(schema["default"])


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _constant(schema: Schema) -> None:
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]


def _bounds(schema: Schema) -> None:
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        bound = schema.get(exclusive)
        if bound is not None and not isinstance(bound, bool):
            schema[inclusive], schema[exclusive] = bound, True
    if schema.get("maximum") == _GREATEST_INT64:
        # The API server holds bounds as floats: this one becomes 2**63, and then overflows.
        del schema["maximum"]
        schema["format"] = "int64"


def _objects(schema: Schema) -> None:
    if "properties" in schema or schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.pop("additionalProperties", None)
    schema.pop("propertyNames", None)
    if "patternProperties" in schema:
        _map_values(schema)


def _map_values(schema: Schema) -> None:
    """Keep the values of a map with constrained keys; the keys are judged by the operator."""
    (values,) = schema.pop("patternProperties").values()
    schema["additionalProperties"] = values
