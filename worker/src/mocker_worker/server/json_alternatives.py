"""The ways to satisfy a set of JSON schemas: `anyOf`, `oneOf`, `not` and `if` resolved.

Each way is a conjunction: schemas whose own keywords must all hold, and branches that must not.
Ways are found one at a time, in the order that the caller gives to the options of each choice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mocker_worker.server.json_schema import Schema
from mocker_worker.server.json_schema_check import Checker, Steps

_NULL = frozenset(["null"])

Excluded = tuple[Schema | None, Sequence[Schema]]
"""Schemas that must not hold, but for the first of the pair (the chosen branch of a `oneOf`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Conjunction:
    """One way to satisfy a set of schemas."""

    parts: Sequence[Schema]
    """Schemas of which the own keywords must hold; what they refer to is among them."""
    excluded: Sequence[Excluded]

    def excludes(self, value: object, checker: Checker) -> bool:
        """Whether a branch that must not hold does hold for `value`."""
        return any(
            checker.holds(schema, value)
            for chosen, group in self.excluded
            for schema in group
            if schema is not chosen
        )


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One way to satisfy one choice."""

    include: Sequence[Schema]
    excluded: Sequence[Excluded] = ()

    @property
    def height(self) -> float:
        """The least number of levels of a value, as far as that is known."""
        return max((schema.height for schema in self.include), default=0)

    @property
    def is_null(self) -> bool:
        """Whether only null satisfies it."""
        return any(schema.types == _NULL for schema in self.include)


Choice = Sequence[Option]
Order = Callable[[Choice], list[Option]]


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """A conjunction in the making."""

    new: Sequence[Schema]
    parts: dict[Schema, None]
    excluded: tuple[Excluded, ...]
    choices: tuple[Choice, ...]


def conjunctions(schemas: Sequence[Schema], steps: Steps, order: Order) -> Iterator[Conjunction]:
    """Yield the ways to satisfy all of `schemas`; `order` also drops options."""
    stack = [_Open(schemas, {}, (), ())]
    while stack:
        open_ = _join(stack.pop(), steps)
        if not open_.choices:
            yield Conjunction(tuple(open_.parts), open_.excluded)
            continue
        choice, *others = open_.choices
        steps.spend(len(choice))
        stack.extend(
            _Open(option.include, open_.parts, (*open_.excluded, *option.excluded), tuple(others))
            for option in reversed(order(choice))
        )


def _join(open_: _Open, steps: Steps) -> _Open:
    """Take the new schemas in, with all that they refer to."""
    parts = dict(open_.parts)
    excluded, choices = list(open_.excluded), list(open_.choices)
    steps.spend(len(parts) + len(excluded) + len(choices))
    pending = list(reversed(open_.new))
    while pending:
        steps.spend(1)
        schema = pending.pop()
        if schema in parts:
            continue
        parts[schema] = None
        pending.extend(reversed(schema.all_of))
        choices.extend(_choices(schema))
        if schema.negated is not None:
            excluded.append((None, [schema.negated]))
    return _Open((), parts, tuple(excluded), tuple(choices))


def _choices(schema: Schema) -> Iterator[Choice]:
    if schema.any_of:
        yield [Option([branch]) for branch in schema.any_of]
    if schema.one_of:
        branches = schema.one_of
        yield [Option([branch], [(branch, branches)]) for branch in branches]
    if schema.condition is not None:
        met, unmet = schema.consequence, schema.alternative
        yield [
            Option([schema.condition] if met is None else [schema.condition, met]),
            Option([] if unmet is None else [unmet], [(None, [schema.condition])]),
        ]
