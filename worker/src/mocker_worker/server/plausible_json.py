"""A value that is valid for a JSON schema: what a mock model answers when it is asked for JSON.

Values are made for a conjunction of schemas (`json_alternatives`), in an order drawn from the seed.
Alternatives, optional properties and array items that cannot be made are left out where the
schema allows that. All work is counted and the recursion follows the levels of the value, so every
schema comes to an end.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mocker_worker.server.json_alternatives import Choice, Conjunction, Option, conjunctions
from mocker_worker.server.json_scalars import formatted, mix, number, text
from mocker_worker.server.json_schema import (
    MAX_LEVELS,
    SCALAR_TYPES,
    InvalidSchema,
    Json,
    Schema,
    UnsupportedSchema,
    compile_schema,
    literal_key,
)
from mocker_worker.server.json_schema_check import Checker, Steps

__all__ = ["InvalidSchema", "UnsupportedSchema", "plausible"]

OPTIONAL_LEVELS = 4
"""From this level on, optional properties and items are left out."""
OPTIONAL_VALUES = 200
"""After this many values, too, so that schemas that refer to themselves give short answers."""
_TRIES = 4
_UNIQUE_TRIES = 32
_STEPS_PER_VALUE = 3
_CHARACTERS_PER_STEP = 32
_MASK = 2**64 - 1
_ANY_KIND = ("string", "integer", "boolean", "null", "array", "object")
_LITERAL = "literal"


def plausible(schema: Mapping[str, Any], seed: int) -> Json:
    """Return a value that is valid for `schema`, the same for the same schema and seed.

    The value may share parts with `schema` (those of `enum` and `const`): do not change it.

    Raises:
        InvalidSchema: if the schema is malformed, contradicts itself, requires itself without end,
            or needs more than 32 levels or about 10,000 values.
        UnsupportedSchema: if all values that were found hang on a keyword that is not supported,
            such as a `pattern` without `enum`, `const` or a known `format`.
    """
    root = compile_schema(schema)
    return _Generator().value([root], mix(seed & _MASK, "$"), 0)


class _NoValue(InvalidSchema):
    """Nothing was found here; other alternatives may have a value."""


class _Generator:
    """Makes the values of one answer."""

    def __init__(self) -> None:
        self._steps = Steps()
        self._checker = Checker(self._steps, trust_patterns=False)
        self._trusting_checker = Checker(self._steps, trust_patterns=True)
        self._num_values = 0

    def value(self, schemas: Sequence[Schema], state: int, level: int) -> Json:
        """Return a value that is valid for all of `schemas`."""
        self._steps.spend(_STEPS_PER_VALUE)
        self._num_values += 1
        if level > MAX_LEVELS or any(each.height > MAX_LEVELS - level for each in schemas):
            raise _too_high(schemas)
        failure: _NoValue | UnsupportedSchema | None = None
        brief = self._is_brief(level)

        def order(choice: Choice) -> list[Option]:
            return _ordered(choice, state, level, brief=brief)

        for conjunction in conjunctions(schemas, self._steps, order):
            for kind in _kinds(conjunction.parts, state, brief=brief):
                try:
                    return self._candidate(conjunction, kind, state, level)
                except (_NoValue, UnsupportedSchema) as error:
                    if failure is None or isinstance(error, UnsupportedSchema):
                        failure = error
        raise failure or _not_found(schemas)

    def _is_brief(self, level: int) -> bool:
        return level >= OPTIONAL_LEVELS or self._num_values >= OPTIONAL_VALUES

    def _candidate(self, conjunction: Conjunction, kind: str, state: int, level: int) -> Json:
        """Return a value of one kind that no excluded branch takes."""
        parts = conjunction.parts
        if kind == _LITERAL:
            return self._literal(conjunction, state)
        for part in parts:
            part.refuse_unsupported(kind)
        for attempt in range(_TRIES if conjunction.excluded else 1):
            self._steps.spend(len(parts))
            value = self._build(parts, kind, mix(state, attempt), level)
            if not conjunction.excludes(value, self._checker):
                return value
        raise _not_found(parts)

    def _literal(self, conjunction: Conjunction, state: int) -> Json:
        parts = conjunction.parts
        literals = next(part.literals for part in parts if part.literals is not None)
        for index in range(len(literals)):
            value = literals[(state + index) % len(literals)]
            if all(
                self._trusting_checker.holds(part, value) for part in parts
            ) and not conjunction.excludes(value, self._checker):
                return value
        raise _not_found(parts)

    def _build(self, parts: Sequence[Schema], kind: str, state: int, level: int) -> Json:
        if kind == "array":
            return self._array(parts, state, level)
        if kind == "object":
            return self._object(parts, state, level)
        if kind == "string":
            return self._string(parts, state)
        if kind == "null":
            return None
        if kind == "boolean":
            return bool(state & 1)
        value = number([part.keywords for part in parts], state, whole=kind == "integer")
        if value is None:
            raise _not_found(parts)
        return value

    def _string(self, parts: Sequence[Schema], state: int) -> str:
        least = max((part.keywords.min_length for part in parts), default=0)
        most = _limit(parts, least, (part.keywords.max_length for part in parts))
        for part in parts:
            value = formatted(part.keywords.format, state)
            if value is None:
                continue
            if len(value) < least or (most is not None and len(value) > most):
                raise UnsupportedSchema(part.path_of("format"))
            return value
        for part in parts:
            if part.keywords.pattern is not None:
                raise UnsupportedSchema(part.path_of("pattern"))
        self._steps.spend(least // _CHARACTERS_PER_STEP)
        return text(state, at_least=least, at_most=most)

    def _array(self, parts: Sequence[Schema], state: int, level: int) -> list[Any]:
        least = max((part.keywords.min_items for part in parts), default=0)
        most = _limit(parts, least, (part.keywords.max_items for part in parts))
        usual = max((len(part.prefix_items) for part in parts), default=0) or 1 + state % 3
        wanted = least if self._is_brief(level) else max(least, usual)
        seen: set[Any] | None = set() if any(p.keywords.unique_items for p in parts) else None
        items: list[Any] = []
        for index in range(wanted if most is None else min(wanted, most)):
            try:
                items.append(self._item(parts, index, mix(state, index), level, seen))
            except (_NoValue, UnsupportedSchema):
                if len(items) < least:
                    raise
                break
        return items

    def _item(
        self, parts: Sequence[Schema], index: int, state: int, level: int, seen: set[Any] | None
    ) -> Json:
        """Return an item that is not among those `seen`, and note it there."""
        schemas = [item for part in parts if (item := part.item(index)) is not None]
        for attempt in range(_UNIQUE_TRIES):
            value = self.value(schemas, mix(state, attempt), level + 1)
            if seen is None:
                return value
            if (key := literal_key(value)) not in seen:
                seen.add(key)
                return value
        raise UnsupportedSchema(
            next(p for p in parts if p.keywords.unique_items).path_of("uniqueItems")
        )

    def _object(self, parts: Sequence[Schema], state: int, level: int) -> dict[str, Any]:
        required = dict.fromkeys(name for part in parts for name in part.keywords.required or ())
        declared = dict.fromkeys(name for part in parts for name in part.properties)
        least = max((part.keywords.min_properties for part in parts), default=0)
        limits = (part.keywords.max_properties for part in parts)
        most = _limit(parts, max(least, len(required)), limits)
        patterned = [part for part in parts if part.keywords.pattern_properties]
        brief = self._is_brief(level) or patterned
        num_optional = least - len(required) if brief else len(declared)
        if most is not None:
            num_optional = min(num_optional, most - len(required))
        made: dict[str, Any] = {}
        for name in declared | required:
            if name not in required and num_optional <= 0:
                continue
            try:
                made[name] = self._property(parts, name, mix(state, name), level)
            except (_NoValue, UnsupportedSchema):
                if name in required:
                    raise
            else:
                num_optional -= name not in required
        while len(made) < least:
            self._add_property(parts, made, state, level)
        if made and patterned:
            raise UnsupportedSchema(patterned[0].path_of("patternProperties"))
        return made

    def _property(self, parts: Sequence[Schema], name: str, state: int, level: int) -> Json:
        for part in parts:
            rule = part.property_names
            if rule is not None and not self._checker.holds(rule, name):
                raise _NoValue(rule.path, f"does not allow the property {name[:100]!r}")
        schemas = [each for part in parts if (each := part.property(name)) is not None]
        return self.value(schemas, state, level + 1)

    def _add_property(
        self, parts: Sequence[Schema], made: dict[str, Any], state: int, level: int
    ) -> None:
        """Give an object one more property with a name that is not declared."""
        rules = [part.property_names for part in parts if part.property_names is not None]
        for attempt in range(_UNIQUE_TRIES):
            name_state = mix(state, f"name {len(made)} {attempt}")
            name = self.value(rules, name_state, level) if rules else _name(name_state)
            if isinstance(name, str) and name not in made:
                made[name] = self._property(parts, name, name_state, level)
                return
        raise _not_found(parts)


def _name(state: int) -> str:
    return text(state).replace(" ", "_")


def _limit(parts: Sequence[Schema], least: int, limits: Iterable[int | None]) -> int | None:
    """Return the lowest limit, None if there is none; it must not be below `least`."""
    most = min((limit for limit in limits if limit is not None), default=None)
    if most is not None and most < least:
        raise _not_found(parts)
    return most


def _kinds(parts: Sequence[Schema], state: int, *, brief: bool) -> Sequence[str]:
    """Return the types that a value may have, the one to try first at the front."""
    if any(part.literals is not None for part in parts):
        return [_LITERAL]
    typed = [part.types for part in parts if part.types is not None]
    hinted = frozenset[str]().union(*(part.hints for part in parts))
    if not typed and not hinted:
        return _ANY_KIND
    kinds = frozenset.intersection(*typed) if typed else hinted
    if "number" in kinds:
        kinds -= {"integer"}

    def rank(kind: str) -> tuple[bool, int]:
        return (kind not in SCALAR_TYPES if brief else kind == "null"), mix(state, kind)

    return sorted(kinds, key=rank)


def _ordered(choice: Choice, state: int, level: int, *, brief: bool) -> list[Option]:
    """Order options by chance, null last; in brief parts of a value the flattest first."""

    def rank(index: int) -> tuple[float, int]:
        first = choice[index].height if brief else choice[index].is_null
        return first, mix(state, f"option {index}")

    possible = [i for i, option in enumerate(choice) if option.height <= MAX_LEVELS - level]
    return [choice[index] for index in sorted(possible, key=rank)]


def _not_found(schemas: Sequence[Schema]) -> _NoValue:
    path = schemas[0].path if schemas else ""
    return _NoValue(path, "no value was found that all keywords allow; loosen them")


def _too_high(schemas: Sequence[Schema]) -> _NoValue:
    """Return the error of schemas whose values have too many levels, and name the cause."""
    cause = following = max(schemas, key=lambda schema: schema.height)
    seen: set[Schema] = set()
    while following not in seen:
        cause = following
        seen.add(cause)
        needs = (*cause.all_of, *cause.any_of, *cause.one_of, *cause.required_parts())
        following = next((part for part in needs if part.height > MAX_LEVELS), cause)
    if cause.never:
        return _NoValue(cause.path, "is false, which no value satisfies; leave it out")
    reason = f"requires itself without end, or nests deeper than {MAX_LEVELS} levels"
    return _NoValue(cause.path, f"{reason}; make a property optional")
