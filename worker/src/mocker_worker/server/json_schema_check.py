"""Whether a value satisfies a compiled JSON schema, with a bound on the work.

The generator asks this about the branches that must not match (`not`, `oneOf`) and about values
that it did not make itself (`enum`). Formats that `json_scalars` can make count as assertions.
"""

from collections.abc import Iterator, Mapping

from mocker_worker.server.json_scalars import has_format, in_range
from mocker_worker.server.json_schema import (
    MAX_LEVELS,
    InvalidSchema,
    Json,
    Schema,
    UnsupportedSchema,
    literal_key,
)

MAX_STEPS = 30_000
"""Enough for some 10,000 values; takes about 0.1 s."""
_MAX_CHECK_LEVELS = 4 * MAX_LEVELS


class Steps:
    """Counts the work that one schema causes, so that none can hang the worker."""

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self._left = limit

    def spend(self, steps: int) -> None:
        """Take `steps` from the budget; InvalidSchema when it is used up."""
        self._left -= steps
        if self._left < 0:
            raise InvalidSchema("", "takes too much work to find a value for; simplify it")


class Checker:
    """Checks values within a budget; with `trust_patterns` every text matches every pattern."""

    def __init__(self, steps: Steps, *, trust_patterns: bool) -> None:
        self._steps = steps
        self._trust_patterns = trust_patterns
        self._level = 0

    def holds(self, schema: Schema, value: Json) -> bool:
        """Whether `value` is valid.

        Raises:
            UnsupportedSchema: if that hangs on a keyword that is not supported.
            InvalidSchema: if it takes too much work.
        """
        self._steps.spend(1)
        if self._level == _MAX_CHECK_LEVELS:
            raise InvalidSchema(schema.path, "is nested too deep; flatten it")
        self._level += 1
        try:
            return (
                self._own_keywords_hold(schema, value)
                and self._combinations_hold(schema, value)
                and self._children_hold(schema, value)
            )
        finally:
            self._level -= 1

    def _own_keywords_hold(self, schema: Schema, value: Json) -> bool:
        kind = type_of(value)
        if schema.never or (schema.types is not None and kind not in schema.types):
            return False
        if schema.literals is not None:
            self._steps.spend(_size(value))
            if literal_key(value) not in schema.literal_keys:
                return False
        if not _bounds_hold(schema, kind, value):
            return False
        schema.refuse_unsupported(kind)
        if kind == "string" and schema.keywords.pattern is not None and not self._trust_patterns:
            raise UnsupportedSchema(schema.path_of("pattern"))
        return True

    def _combinations_hold(self, schema: Schema, value: Json) -> bool:
        for part in schema.all_of:
            if not self.holds(part, value):
                return False
        if schema.any_of and not self._count(schema.any_of, value, enough=1):
            return False
        if schema.one_of and self._count(schema.one_of, value, enough=2) != 1:
            return False
        if schema.negated is not None and self.holds(schema.negated, value):
            return False
        if schema.condition is None:
            return True
        met = self.holds(schema.condition, value)
        branch = schema.consequence if met else schema.alternative
        return branch is None or self.holds(branch, value)

    def _count(self, branches: list[Schema], value: Json, *, enough: int) -> int:
        """Return how many of `branches` hold; counts no further than `enough`."""
        count = 0
        for branch in branches:
            count += self.holds(branch, value)
            if count == enough:
                break
        return count

    def _children_hold(self, schema: Schema, value: Json) -> bool:
        for part, child in _children(schema, value):
            if not self.holds(part, child):
                return False
        if schema.keywords.unique_items and isinstance(value, list):
            self._steps.spend(_size(value))
            return len(set(map(literal_key, value))) == len(value)
        return True


def type_of(value: Json) -> str:
    """Return the JSON type of a value, the narrower one for whole numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == value // 1 else "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def _bounds_hold(schema: Schema, kind: str, value: Json) -> bool:
    words = schema.keywords
    if kind == "string":
        return _is_between(words.min_length, len(value), words.max_length) and has_format(
            words.format, value
        )
    if kind in ("integer", "number"):
        return in_range(words, value)
    if kind == "array":
        return _is_between(words.min_items, len(value), words.max_items)
    if kind == "object":
        return _is_between(words.min_properties, len(value), words.max_properties) and all(
            name in value for name in words.required or ()
        )
    return True


def _is_between(least: int, count: int, most: int | None) -> bool:
    return least <= count and (most is None or count <= most)


def _children(schema: Schema, value: Json) -> Iterator[tuple[Schema, Json]]:
    """Yield the items, properties and property names of a value with their schemas."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            if (part := schema.item(index)) is not None:
                yield part, item
    if not isinstance(value, Mapping):
        return
    if schema.keywords.pattern_properties and value:
        raise UnsupportedSchema(schema.path_of("patternProperties"))
    for name, item in value.items():
        if schema.property_names is not None:
            yield schema.property_names, name
        if (part := schema.property(name)) is not None:
            yield part, item


def _size(value: Json) -> int:
    """Return how many arrays, objects and items a value has; values nest a bounded number deep."""
    if isinstance(value, Mapping):
        return 1 + sum(map(_size, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_size, value))
    return 1
