import contextlib
import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_schema_judge import is_valid

from mocker_worker.server.plausible_json import InvalidSchema, UnsupportedSchema, plausible
from mocker_worker.tokenizer import WORDS

MAX_LEVELS = 32
busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(-(2**70), 2**70)
names = st.sampled_from(["a", "b", "c", "city", "é", ""])
counts = st.integers(0, 4)
bounds = st.one_of(st.integers(-20, 20), st.sampled_from([0.5, -0.25, 2.5, 1e9, -1e300]))
types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from([1.0, 0.5, "", "x"])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(names, inner, max_size=2)),
    max_leaves=3,
)


def some_of(**keywords):
    return st.fixed_dictionaries({}, optional=keywords)


any_leaves = st.one_of(
    some_of(type=st.one_of(types, st.lists(types, min_size=1, max_size=3))),
    some_of(type=st.just("string"), minLength=counts, maxLength=st.integers(0, 90)),
    some_of(
        type=st.sampled_from(["integer", "number"]),
        minimum=bounds,
        maximum=bounds,
        exclusiveMinimum=bounds,
        exclusiveMaximum=bounds,
        multipleOf=st.sampled_from([1, 2, 3, 0.1, 0.25, 7]),
    ),
    some_of(enum=st.lists(json_values, min_size=1, max_size=3), type=types),
    some_of(const=json_values),
    some_of(format=st.sampled_from(["date", "date-time", "time", "email", "uuid", "uri", "odd"])),
    st.just({"pattern": "^a+$", "enum": ["a", "aa"]}),
    st.just({"$ref": "#/$defs/one"}),
    st.just({"$ref": "#/$defs/two"}),
    st.booleans(),
)


def any_combinations(inner):
    branches = st.lists(inner, min_size=1, max_size=3)
    properties = st.dictionaries(names, inner, max_size=3)
    return st.one_of(
        some_of(
            type=st.just("object"),
            properties=properties,
            required=st.lists(names, max_size=2),
            additionalProperties=inner,
            propertyNames=st.just({"enum": ["a", "b", "x"]}),
            minProperties=counts,
            maxProperties=counts,
        ),
        some_of(
            type=st.just("array"),
            items=inner,
            prefixItems=branches,
            minItems=counts,
            maxItems=counts,
            uniqueItems=st.booleans(),
        ),
        some_of(anyOf=branches, properties=properties),
        some_of(oneOf=branches, type=types),
        some_of(allOf=branches, required=st.lists(names, max_size=1)),
        st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner}),
        st.fixed_dictionaries({"not": inner}, optional={"type": types}),
    )


any_schemas = st.recursive(any_leaves, any_combinations, max_leaves=8)
any_roots = st.builds(
    lambda root, one, two: {"allOf": [root], "$defs": {"one": one, "two": two}},
    *[any_schemas] * 3,
)

satisfiable_leaves = st.one_of(
    types.map(lambda kind: {"type": kind}),
    st.lists(types, min_size=1, max_size=3).map(lambda kinds: {"type": kinds}),
    st.lists(json_values, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.integers(0, 200).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + n % 3}),
    st.integers(-(2**63), 2**63).map(lambda n: {"type": "integer", "minimum": n, "maximum": n}),
    st.tuples(st.floats(-1e9, 1e9), st.floats(1e-3, 10)).map(
        lambda b: {"type": "number", "exclusiveMinimum": b[0], "exclusiveMaximum": b[0] + b[1]}
    ),
    st.floats(-1e307, 1e307).map(lambda low: {"type": "number", "exclusiveMinimum": low}),
    st.floats(-1e307, 1e307).map(lambda high: {"type": "number", "exclusiveMaximum": high}),
    st.just({}),
)


def satisfiable_combinations(inner):
    properties = st.dictionaries(names, inner, max_size=3)
    branches = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        properties.map(lambda p: {"type": "object", "properties": p, "required": list(p)}),
        properties.map(lambda p: {"properties": p, "additionalProperties": False}),
        inner.map(lambda s: {"type": "array", "items": s, "minItems": 2, "maxItems": 3}),
        branches.map(lambda s: {"anyOf": s}),
        branches.map(lambda s: {"prefixItems": s, "items": False, "minItems": len(s)}),
        branches.map(lambda s: {"oneOf": [tagged(i, part) for i, part in enumerate(s)]}),
        st.tuples(properties, properties).map(
            lambda p: {
                "allOf": [
                    {"type": "object", "properties": {f"0{k}": v for k, v in p[0].items()}},
                    {"type": "object", "properties": p[1], "required": list(p[1])},
                ]
            }
        ),
    )


def tagged(tag, schema):
    properties = {"kind": {"const": tag}, "value": schema}
    return {"type": "object", "properties": properties, "required": ["kind", "value"]}


satisfiable_schemas = st.recursive(satisfiable_leaves, satisfiable_combinations, max_leaves=10)


def levels(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


def object_of(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


@busy
@given(any_roots, seeds)
def test_whatever_is_answered_is_valid(schema, seed):
    try:
        value = plausible(schema, seed)
    except (InvalidSchema, UnsupportedSchema):
        return

    assert is_valid(schema, value)
    assert json.loads(json.dumps(value)) == value


@busy
@given(satisfiable_schemas, seeds)
def test_a_usual_schema_is_answered(schema, seed):
    assert is_valid(schema, plausible(schema, seed))


@busy
@given(any_roots, seeds)
def test_the_same_schema_and_seed_give_the_same_answer(schema, seed):
    def outcome():
        try:
            return json.dumps(plausible(schema, seed))
        except (InvalidSchema, UnsupportedSchema) as error:
            return str(error)

    assert outcome() == outcome()


def test_other_seeds_give_other_answers():
    schema = object_of(city={"type": "string"}, days={"type": "integer"})

    assert len({json.dumps(plausible(schema, seed)) for seed in range(20)}) > 15


keywords = ["type", "enum", "properties", "items", "anyOf", "$ref", "required", "minItems", "not"]


@busy
@given(st.dictionaries(st.sampled_from(keywords), json_values, max_size=4), seeds)
def test_no_schema_gives_another_error(schema, seed):
    with contextlib.suppress(InvalidSchema, UnsupportedSchema):
        plausible(schema, seed)


@pytest.mark.parametrize(
    "name", ["date", "time", "date-time", "email", "uri", "uuid", "hostname", "ipv4", "duration"]
)
def test_formats_are_kept_even_beside_a_pattern(name):
    schema = {"type": "string", "format": name, "pattern": "what the format says"}

    value = plausible(schema, 3)

    assert is_valid({"format": name}, value)
    assert " " not in value


def test_texts_are_made_of_the_words_of_the_vocabulary():
    assert all(set(plausible({"type": "string"}, seed).split()) <= {*WORDS} for seed in range(99))


def test_numbers_are_small_unless_the_schema_asks_for_more():
    assert all(0 <= plausible({"type": "number"}, seed) < 100 for seed in range(50))
    assert plausible({"type": "integer", "minimum": 2**70, "maximum": 2**70}, 0) == 2**70


def test_all_properties_are_filled_near_the_top_and_only_required_ones_below():
    schema = object_of(name={"type": "string"})
    schema["properties"]["child"] = {"$ref": "#"}

    value = plausible(schema, 0)

    for _ in range(4):
        assert list(value) == ["name", "child"]
        value = value["child"]
    assert list(value) == ["name"]


def test_a_required_recursion_ends_where_an_alternative_allows_it():
    tree = {
        "$defs": {
            "node": {"anyOf": [{"$ref": "#/$defs/sum"}, {"$ref": "#/$defs/leaf"}]},
            "sum": object_of(left={"$ref": "#/$defs/node"}, right={"$ref": "#/$defs/node"}),
            "leaf": object_of(value={"type": "number"}),
        },
        "$ref": "#/$defs/node",
    }
    values = [plausible(tree, seed) for seed in range(30)]

    assert all(is_valid(tree, value) for value in values)
    assert 3 < max(map(levels, values)) < 8


def test_a_schema_that_branches_widely_into_itself_gives_a_short_answer():
    schema = {"type": "object", "properties": {f"p{i}": {"$ref": "#"} for i in range(50)}}

    assert len(json.dumps(plausible(schema, 0))) < 10_000


def test_values_of_an_enum_are_bound_by_the_other_keywords():
    schema = {"enum": [1, "one", 2, "two", None], "type": "string", "maxLength": 3}

    assert {plausible(schema, seed) for seed in range(40)} == {"one", "two"}


def test_a_branch_of_one_of_is_not_taken_when_others_hold_as_well():
    schema = {"oneOf": [{"type": "number"}, {"type": "integer"}]}

    assert all(plausible(schema, seed) % 1 for seed in range(30))


def test_what_is_not_supported_is_left_out_where_the_schema_allows_that():
    patterned = {"type": "string", "pattern": "^[A-Z]{3}$"}

    assert plausible({"anyOf": [patterned, {"type": "null"}]}, 0) is None
    assert plausible({"type": "object", "properties": {"code": patterned}}, 0) == {}
    assert plausible({"type": "array", "items": patterned}, 0) == []


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (object_of(code={"type": "string", "pattern": "^x$"}), "properties.code.pattern"),
        ({"type": "array", "minItems": 1, "contains": {"const": 1}}, "contains"),
        ({"anyOf": [{"type": "string", "pattern": "x"}]}, "anyOf[0].pattern"),
        ({"$dynamicRef": "#node"}, "$dynamicRef"),
        ({"type": "string", "format": "date", "maxLength": 3}, "format"),
    ],
)
def test_a_keyword_that_is_not_supported_is_named(schema, path):
    with pytest.raises(UnsupportedSchema) as caught:
        plausible(schema, 0)

    assert caught.value.path == path
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ([], ""),
        ({"type": "text"}, "type"),
        ({"type": []}, "type"),
        ({"properties": {"a": {"minLength": "3"}}}, "properties.a.minLength"),
        ({"properties": {"a": 3}}, "properties.a"),
        ({"items": [{}]}, "items"),
        ({"anyOf": []}, "anyOf"),
        ({"enum": []}, "enum"),
        ({"required": "name"}, "required"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"maximum": float("inf")}, "maximum"),
        ({"format": None}, "format"),
        ({"allOf": [{"$ref": "#/$defs/none"}]}, "allOf[0].$ref"),
        ({"$ref": "https://example.com/schema"}, "$ref"),
        ({"$ref": "#"}, ""),
        ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, ""),
        (object_of(next={"$ref": "#"}), "properties.next"),
        (object_of(a=False), "properties.a"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, ""),
        (object_of(n={"type": "integer", "minimum": 1.2, "maximum": 1.8}), "properties.n"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, ""),
    ],
)
def test_a_schema_without_a_value_is_refused_with_the_place(schema, path):
    with pytest.raises(InvalidSchema) as caught:
        plausible(schema, 0)

    assert caught.value.path == path


def chain(length, keyword):
    links = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(length)}
    return {"$defs": {**links, f"d{length}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def nested(length, wrap):
    schema = {"type": "string"}
    for _ in range(length):
        schema = wrap(schema)
    return schema


impossible = {"allOf": [{"type": "string"}, {"type": "null"}]}


hostile = {
    "long chain": chain(5000, "allOf"),
    "branching allOf": chain(14, "allOf"),
    "branching anyOf": chain(14, "anyOf"),
    "branching oneOf": chain(14, "oneOf"),
    "deep not": nested(5000, lambda inner: {"not": inner}),
    "deep objects": nested(5000, lambda inner: object_of(a=inner)),
    "many items in many levels": nested(
        30, lambda inner: {"type": "array", "minItems": 3, "items": inner}
    ),
    "huge array": {"type": "array", "minItems": 10**9},
    "huge text": {"type": "string", "minLength": 10**12},
    "huge object": {"type": "object", "minProperties": 10**9},
    "few unique items": {
        "type": "array",
        "uniqueItems": True,
        "minItems": 3000,
        "items": {"type": "boolean"},
    },
    "wide oneOf": {"oneOf": [{"type": "integer"}] * 5000},
    "repeated anyOf": {"allOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}] * 4000},
    "anyOf without a way": {"allOf": [{"anyOf": [impossible, impossible]} for _ in range(100)]},
    "anyOf beside many bounds": {
        "anyOf": [impossible] * 2000,
        "allOf": [{"minimum": n} for n in range(2000)],
    },
    "long enum": {"enum": [[]] * 9000, "not": {"type": "array"}},
    "huge common multiple": {
        "allOf": [{"multipleOf": 10**40 + n} for n in range(1000)],
        "minimum": 1,
    },
    "huge number": {"type": "integer", "minimum": 10**4000},
    "deep const": {"const": nested(900, lambda inner: [inner])},
    "wide object": object_of(**{f"p{n}": {"anyOf": [impossible, {}]} for n in range(3000)}),
    "long name": {"properties": {"x" * 10**6: object_of(**{f"p{n}": {} for n in range(3000)})}},
    "many definitions": {"$defs": {f"d{n}": {} for n in range(20_000)}},
    "long reference": {"$ref": "#" + "/a" * 100_000},
}


@pytest.mark.parametrize("name", hostile)
def test_a_hostile_schema_comes_to_an_end(name):
    started = time.process_time()
    try:
        value = plausible(hostile[name], 0)
    except (InvalidSchema, UnsupportedSchema):
        value = None

    assert time.process_time() - started < 5
    assert levels(value) <= MAX_LEVELS
    assert json.dumps(value)
