"""JSON schemas (draft 2020-12) of structured answers, compiled into linked, checked objects.

Compiling resolves every `$ref`, checks the type of every keyword and bounds what a schema can cost,
so that neither the generator nor the checker meets a surprise: keywords that apply to the same
value nest at most 32 levels and never lead back to themselves, and each schema knows the least
number of levels that a value of it has. Unknown keywords are ignored, as the standard asks.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Annotated, Any, TypeAlias
from urllib.parse import unquote

import msgspec
from msgspec import UNSET

MAX_LEVELS = 32
"""Levels of arrays and objects in a value, and of keywords that apply to the same value."""
MAX_SCHEMAS = 10_000
_MAX_POINTER = 4 * MAX_LEVELS

SCALAR_TYPES = ("string", "integer", "number", "boolean", "null")
TYPES = (*SCALAR_TYPES, "array", "object")

Json: TypeAlias = Any
"""Any JSON value as Python's json gives it."""
Pointer = tuple[str | int, ...]
Count = Annotated[int, msgspec.Meta(ge=0)]
Number = int | float
Subschemas = Annotated[list[Any], msgspec.Meta(min_length=1)]

_HINTS: Mapping[str, Sequence[str]] = {
    "object": ("properties", "required", "additionalProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_UNSUPPORTED: Mapping[str, str | None] = {
    "contains": "array",
    "unevaluatedItems": "array",
    "dependentRequired": "object",
    "dependentSchemas": "object",
    "dependencies": "object",
    "unevaluatedProperties": "object",
    "$dynamicRef": None,
    "$recursiveRef": None,
}
"""Keywords that change what is valid, with the type of the values that they look at."""


class InvalidSchema(ValueError):
    """A schema that is malformed or has no valid value; `path` says where, "" is the root."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


class UnsupportedSchema(ValueError):
    """A schema that needs the keyword at `path`, which the mock engine does not do."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: not supported by the mock engine")
        self.path = path


class Keywords(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The keywords of one schema object as they were sent, with their types checked."""

    type: str | list[str] | None = None
    enum: Subschemas | None = None
    const: Any = UNSET
    ref: str | None = msgspec.field(name="$ref", default=None)
    all_of: Subschemas | None = None
    any_of: Subschemas | None = None
    one_of: Subschemas | None = None
    not_: Any = msgspec.field(name="not", default=UNSET)
    if_: Any = msgspec.field(name="if", default=UNSET)
    then: Any = UNSET
    else_: Any = msgspec.field(name="else", default=UNSET)
    properties: dict[str, Any] | None = None
    pattern_properties: dict[str, Any] | None = None
    additional_properties: Any = UNSET
    property_names: Any = UNSET
    required: list[str] | None = None
    min_properties: Count = 0
    max_properties: Count | None = None
    items: Any = UNSET
    prefix_items: Subschemas | None = None
    min_items: Count = 0
    max_items: Count | None = None
    unique_items: bool = False
    min_length: Count = 0
    max_length: Count | None = None
    pattern: str | None = None
    format: str | None = None
    minimum: Number | None = None
    maximum: Number | None = None
    exclusive_minimum: Number | None = None
    exclusive_maximum: Number | None = None
    multiple_of: Number | None = None


_NO_KEYWORDS = Keywords()
_NAMES = frozenset(Keywords.__struct_encode_fields__)


@dataclass(slots=True, eq=False)
class Schema:
    """One schema with links to the schemas that it is made of."""

    pointer: Pointer
    never: bool = False
    """True for the schema `false`."""
    keywords: Keywords = _NO_KEYWORDS
    types: frozenset[str] | None = None
    """Allowed types; `number` stands with `integer`. None: all."""
    hints: frozenset[str] = frozenset()
    """Types that the keywords speak of, for a schema without `type`."""
    literals: Sequence[Any] | None = None
    """The values of `enum`, or the one of `const`; `literal_keys` are those of both together."""
    literal_keys: frozenset[Hashable] = frozenset()
    unsupported: Sequence[str] = ()
    all_of: list["Schema"] = field(default_factory=list)
    """Schemas that hold for the same value: those of `allOf`, and the target of `$ref`."""
    any_of: list["Schema"] = field(default_factory=list)
    one_of: list["Schema"] = field(default_factory=list)
    negated: "Schema | None" = None
    condition: "Schema | None" = None
    consequence: "Schema | None" = None
    alternative: "Schema | None" = None
    properties: dict[str, "Schema"] = field(default_factory=dict)
    additional: "Schema | None" = None
    property_names: "Schema | None" = None
    prefix_items: list["Schema"] = field(default_factory=list)
    items: "Schema | None" = None
    height: float = inf
    """A lower bound of the levels of arrays and objects in a value; infinite: it needs itself."""

    @property
    def path(self) -> str:
        """The place in the root schema in the form `properties.city.anyOf[0]`."""
        return self.path_of()

    def path_of(self, *keys: str | int) -> str:
        """Return the place of what `keys` lead to from here."""
        parts = [f"[{k}]" if isinstance(k, int) else f".{k}" for k in (*self.pointer, *keys)]
        return "".join(parts).removeprefix(".")

    def item(self, index: int) -> "Schema | None":
        """Return the schema of an array's item; None when there is none."""
        return self.prefix_items[index] if index < len(self.prefix_items) else self.items

    def property(self, name: str) -> "Schema | None":
        """Return the schema of an object's property; None when there is none."""
        return self.properties.get(name, self.additional)

    def refuse_unsupported(self, kind: str) -> None:
        """Raise UnsupportedSchema if a keyword that is not supported looks at values of a type."""
        for keyword in self.unsupported:
            if _UNSUPPORTED[keyword] in (None, kind):
                raise UnsupportedSchema(self.path_of(keyword))

    def same_value(self) -> Iterator["Schema"]:
        """Yield the schemas that look at the same value as this one."""
        yield from (*self.all_of, *self.any_of, *self.one_of)
        parts = (self.negated, self.condition, self.consequence, self.alternative)
        yield from (part for part in parts if part is not None)

    def required_parts(self) -> Iterator["Schema"]:
        """Yield the schemas of the items and properties that a value must have."""
        for name in self.keywords.required or ():
            if (part := self.property(name)) is not None:
                yield part
        for index in range(min(self.keywords.min_items, len(self.prefix_items) + 1)):
            if (part := self.item(index)) is not None:
                yield part


def compile_schema(root: Mapping[str, Any]) -> Schema:
    """Return the compiled form of a root schema.

    Raises:
        InvalidSchema: if it is malformed, too big, or leads to itself for the same value.
    """
    compiler = _Compiler(root)
    schema = compiler.compile()
    schemas = list(compiler.schemas.values())
    depths: dict[Schema, int] = {}
    for each in schemas:
        _same_value_levels(each, depths, MAX_LEVELS)
    schemas.reverse()
    for _ in range(MAX_LEVELS + 2):
        lowered = [_lower_height(each) for each in schemas]
        if not any(lowered):
            break
    return schema


def literal_key(value: Json) -> Hashable:
    """Return what is equal for two JSON values if and only if they are the same to JSON."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, Mapping):
        return frozenset((name, literal_key(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return ("array", *map(literal_key, value))
    key: str | int | float | None = value
    return key


class _Compiler:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.schemas: dict[Pointer, Schema] = {}
        self._root = root
        self._open: list[tuple[Schema, Mapping[str, Any]]] = []

    def compile(self) -> Schema:
        if not isinstance(self._root, Mapping):
            raise InvalidSchema("", "must be an object")
        root = self._schema((), self._root)
        while self._open:
            self._fill(*self._open.pop())
        return root

    def _schema(self, pointer: Pointer, raw: Json) -> Schema:
        known = self.schemas.get(pointer)
        if known is not None:
            return known
        schema = self.schemas[pointer] = Schema(pointer)
        if len(pointer) > _MAX_POINTER:
            raise InvalidSchema(schema.path, "is nested too deep; flatten it or use $ref")
        if len(self.schemas) > MAX_SCHEMAS:
            raise InvalidSchema("", f"has more than {MAX_SCHEMAS} subschemas; simplify it")
        if isinstance(raw, bool):
            schema.never = not raw
            schema.height = inf if schema.never else 0
        elif isinstance(raw, Mapping):
            self._open.append((schema, raw))
        else:
            raise InvalidSchema(schema.path, "must be a schema: an object, true or false")
        return schema

    def _fill(self, schema: Schema, raw: Mapping[str, Any]) -> None:
        schema.keywords = keywords = _keywords(schema, raw)
        schema.types, schema.hints = _types(schema), _hints(raw)
        schema.literals, schema.literal_keys = _literals(schema)
        schema.unsupported = tuple(name for name in _UNSUPPORTED if name in raw)
        schema.all_of = self._list(schema, "allOf", keywords.all_of)
        if keywords.ref is not None:
            schema.all_of.append(self._target(schema, keywords.ref))
        schema.any_of = self._list(schema, "anyOf", keywords.any_of)
        schema.one_of = self._list(schema, "oneOf", keywords.one_of)
        schema.negated = self._one(schema, "not", keywords.not_)
        schema.condition = self._one(schema, "if", keywords.if_)
        schema.consequence = self._one(schema, "then", keywords.then)
        schema.alternative = self._one(schema, "else", keywords.else_)
        schema.properties = {
            name: self._schema((*schema.pointer, "properties", name), part)
            for name, part in (keywords.properties or {}).items()
        }
        schema.additional = self._one(
            schema, "additionalProperties", keywords.additional_properties
        )
        schema.property_names = self._one(schema, "propertyNames", keywords.property_names)
        schema.prefix_items = self._list(schema, "prefixItems", keywords.prefix_items)
        schema.items = self._one(schema, "items", keywords.items)

    def _one(self, schema: Schema, keyword: str, raw: Json) -> Schema | None:
        return None if raw is UNSET else self._schema((*schema.pointer, keyword), raw)

    def _list(self, schema: Schema, keyword: str, raws: list[Any] | None) -> list[Schema]:
        return [
            self._schema((*schema.pointer, keyword, index), raw)
            for index, raw in enumerate(raws or ())
        ]

    def _target(self, schema: Schema, ref: str) -> Schema:
        """Return the schema that a `$ref` leads to: a JSON pointer into the root."""
        if ref != "#" and not ref.startswith("#/"):
            raise InvalidSchema(schema.path_of("$ref"), "must have the form #/$defs/NAME")
        pointer: list[str | int] = []
        target: Any = self._root
        for token in ref.split("/")[1:]:
            key: str | int = unquote(token).replace("~1", "/").replace("~0", "~")
            try:
                if isinstance(target, list):
                    key = int(key)
                target = target[key]
            except (KeyError, IndexError, TypeError, ValueError):
                reason = f"leads nowhere: there is no {ref[:100]!r} in the schema"
                raise InvalidSchema(schema.path_of("$ref"), reason) from None
            pointer.append(key)
        return self._schema(tuple(pointer), target)


def _keywords(schema: Schema, raw: Mapping[str, Any]) -> Keywords:
    try:
        keywords = msgspec.convert(raw, Keywords)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        path = schema.path_of(place.rstrip("`")) if place else schema.path
        raise InvalidSchema(path, reason) from None
    for name, value in raw.items():
        if name not in _NAMES or name == "const":
            continue
        if value is None or (isinstance(value, float) and not isfinite(value)):
            raise InvalidSchema(schema.path_of(name), "must have a value; leave it out")
    if keywords.multiple_of is not None and keywords.multiple_of <= 0:
        raise InvalidSchema(schema.path_of("multipleOf"), "must be greater than 0")
    return keywords


def _types(schema: Schema) -> frozenset[str] | None:
    names = schema.keywords.type
    if names is None:
        return None
    names = [names] if isinstance(names, str) else names
    if not names or any(name not in TYPES for name in names):
        raise InvalidSchema(schema.path_of("type"), f"must be of {', '.join(TYPES)}")
    return frozenset(names) | (frozenset(["integer"]) if "number" in names else frozenset())


def _hints(raw: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(kind for kind, names in _HINTS.items() if any(name in raw for name in names))


def _literals(schema: Schema) -> tuple[Sequence[Any] | None, frozenset[Hashable]]:
    const, enum = schema.keywords.const, schema.keywords.enum
    if const is UNSET and enum is None:
        return None, frozenset()
    for keyword, value in (("const", const), ("enum", [] if enum is None else enum)):
        if _is_deeper(value, MAX_LEVELS + (keyword == "enum")):
            reason = f"is nested deeper than {MAX_LEVELS} levels; flatten it"
            raise InvalidSchema(schema.path_of(keyword), reason)
    if enum is None:
        return [const], frozenset([literal_key(const)])
    keys = frozenset(map(literal_key, enum))
    return (enum, keys) if const is UNSET else ([const], keys & {literal_key(const)})


def _is_deeper(value: Json, levels: int) -> bool:
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            item
            for container in layer
            if isinstance(container, dict | list)
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        if not layer:
            return False
    return True


def _same_value_levels(schema: Schema, known: dict[Schema, int], left: int) -> int:
    """Return how deep the schemas that look at one value nest; refuse loops and deep chains."""
    levels = known.get(schema, 1)
    if levels > left:
        reason = f"refers to itself, or nests deeper than {MAX_LEVELS} levels; break the chain"
        raise InvalidSchema(schema.path, reason)
    if schema not in known:
        known[schema] = 1 + max(
            (_same_value_levels(part, known, left - 1) for part in schema.same_value()), default=0
        )
    return known[schema]


def _lower_height(schema: Schema) -> bool:
    """Bring a schema's height up to date; True if that changed it."""
    before, schema.height = schema.height, _height(schema)
    return schema.height < before


def _height(schema: Schema) -> float:
    if schema.never:
        return inf
    choices = [part for part in (schema.any_of, schema.one_of) if part]
    height = max(
        0 if schema.literals is not None else _own_height(schema),
        max((part.height for part in schema.all_of), default=0),
        max((min(part.height for part in choice) for choice in choices), default=0),
    )
    return height if height <= MAX_LEVELS else inf


def _own_height(schema: Schema) -> float:
    kinds = schema.types or schema.hints
    if not kinds or any(kind in SCALAR_TYPES for kind in kinds):
        return 0
    if "array" in kinds and not schema.keywords.min_items:
        return 0
    return 1 + max((part.height for part in schema.required_parts()), default=-1)
