"""A second opinion on JSON schemas: a checker by the letter of the standard, without any bounds.

It shares nothing with the worker. Formats are looked at for the form that matters to a reader, and
keywords that the worker does not support are left out.
"""

import re
from datetime import date, datetime
from fractions import Fraction
from uuid import UUID


def is_valid(schema, value, root=None):
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    judges = (_general, _combined, _text, _number, _array, _object)
    return all(judge(schema, value, root) for judge in judges)


def _kinds(value):
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if value % 1 == 0 else {"number"}
    return {{str: "string", list: "array", dict: "object"}[type(value)]}


def _same(one, other):
    if _kinds(one) != _kinds(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return one == other


def _general(schema, value, root):
    wanted = schema.get("type", list(_kinds(value)))
    return (
        bool(_kinds(value) & {*([wanted] if isinstance(wanted, str) else wanted)})
        and ("enum" not in schema or any(_same(value, item) for item in schema["enum"]))
        and ("const" not in schema or _same(value, schema["const"]))
    )


def _combined(schema, value, root):
    def holds(part):
        return is_valid(part, value, root)

    branch = True
    if "if" in schema:
        branch = schema.get("then" if holds(schema["if"]) else "else", True)
    return (
        holds(_target(root, schema["$ref"]) if "$ref" in schema else True)
        and holds(branch)
        and all(map(holds, schema.get("allOf", [])))
        and any(map(holds, schema.get("anyOf", [True])))
        and sum(map(holds, schema.get("oneOf", [True]))) == 1
        and not holds(schema.get("not", False))
    )


def _target(root, ref):
    for key in ref.split("/")[1:]:
        root = root[int(key) if isinstance(root, list) else key]
    return root


_FORMATS = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "time": lambda text: datetime.fromisoformat(f"2026-01-01T{text}"),
    "email": lambda text: re.fullmatch(r"[^@]+@[^@]+", text).group(),
    "uuid": UUID,
    "uri": lambda text: re.fullmatch(r"https?://\S+", text).group(),
}


def _text(schema, value, root):
    if not isinstance(value, str):
        return True
    try:
        _FORMATS.get(schema.get("format"), str)(value)
    except (ValueError, AttributeError):
        return False
    longest = schema.get("maxLength", len(value))
    return (
        schema.get("minLength", 0) <= len(value) <= longest
        and re.search(schema.get("pattern", ""), value) is not None
    )


def _number(schema, value, root):
    if "number" not in _kinds(value):
        return True
    factor = Fraction(str(value)) / Fraction(str(schema.get("multipleOf", value or 1)))
    return (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and not value <= schema.get("exclusiveMinimum", value - abs(value) - 1)
        and not value >= schema.get("exclusiveMaximum", value + abs(value) + 1)
        and factor.denominator == 1
    )


def _array(schema, value, root):
    if not isinstance(value, list):
        return True
    first = schema.get("prefixItems", [])
    rest = [schema.get("items", True)] * len(value[len(first) :])
    twins = any(_same(a, b) for i, a in enumerate(value) for b in value[:i])
    return (
        schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        and not (schema.get("uniqueItems") and twins)
        and all(is_valid(s, v, root) for s, v in zip([*first, *rest], value, strict=False))
    )


def _object(schema, value, root):
    if not isinstance(value, dict):
        return True
    declared, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    return (
        schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value))
        and all(name in value for name in schema.get("required", []))
        and all(is_valid(schema.get("propertyNames", True), name, root) for name in value)
        and all(is_valid(declared.get(name, other), v, root) for name, v in value.items())
    )
