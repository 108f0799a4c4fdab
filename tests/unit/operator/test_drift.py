"""Drift is a difference in what was applied, and nothing else."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_operator.api import parse_spec
from mocker_operator.api.quantity import parse_quantity
from mocker_operator.reconcile.drift import contains, is_carried_out, needs_apply
from mocker_operator.reconcile.model import Key
from mocker_operator.render import RenderSettings, render

SPEC = {
    "model": {"name": "m"},
    "prefill": {"template": {"env": [{"name": "A", "value": "1"}, {"name": "B"}]}},
    "decode": {"template": {"resources": {"limits": {"cpu": "0.5", "memory": "1Gi"}}}},
}
MANIFESTS = render(
    Key("team", "demo"),
    "the-uid",
    parse_spec({"metadata": {"name": "demo"}, "spec": SPEC}),
    {},
    RenderSettings("mocker:test", "IfNotPresent", "nats://nats:4222"),
)
manifests = st.sampled_from(MANIFESTS)
ATOMIC = {"args", "command", "drop"}
ATOMIC_MAPS = {"selector", "nodeSelector"}


def as_answered(value, field=""):
    """Return a manifest as an API server answers it: more fields, more items, other spellings."""
    if isinstance(value, dict):
        added = {} if field in ATOMIC_MAPS else {"addedByOthers": 1}
        return added | {k: as_answered(v, k) for k, v in value.items()}
    if isinstance(value, list) and field not in ATOMIC:
        return [{"name": "injected"}, *(as_answered(item) for item in reversed(value))]
    return {"0.5": "500m", "1Gi": "1024Mi"}.get(value, value) if isinstance(value, str) else value


def leaves(value, path=()):
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return [path]
    return [leaf for key, item in items for leaf in leaves(item, (*path, key))]


def parent_of(manifest, path):
    for key in path[:-1]:
        manifest = manifest[key]
    return manifest


def owned_leaves(manifest):
    return [path for path in leaves(manifest) if path[0] not in ("apiVersion", "kind")]


@given(manifests)
def test_what_others_add_is_no_drift(manifest):
    assert not needs_apply(manifest, as_answered(manifest))


@given(st.data())
def test_every_edited_field_is_drift(data):
    manifest = data.draw(manifests)
    path = data.draw(st.sampled_from(owned_leaves(manifest)))
    live = copy.deepcopy(manifest)
    parent_of(live, path)[path[-1]] = data.draw(st.sampled_from(["edited", 123_456]))
    assert needs_apply(manifest, live)


@given(st.data())
def test_every_removed_field_is_drift(data):
    manifest = data.draw(manifests)
    path = data.draw(st.sampled_from(owned_leaves(manifest)))
    live = copy.deepcopy(manifest)
    del parent_of(live, path)[path[-1]]
    assert needs_apply(manifest, live)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(json_values)
def test_every_value_contains_itself(value):
    assert contains(copy.deepcopy(value), value)


@given(json_values, json_values)
def test_comparing_never_fails(live, desired):
    contains(live, desired)


def test_an_absent_object_is_drift():
    assert needs_apply(MANIFESTS[0], None)


def test_a_field_that_is_no_longer_wanted_is_drift():
    live = copy.deepcopy(MANIFESTS[0])
    live["metadata"]["annotations"]["mocker.dev/desired-hash"] = "of-a-larger-manifest"
    assert needs_apply(MANIFESTS[0], live)


def test_lost_annotations_are_drift():
    live = copy.deepcopy(MANIFESTS[0])
    del live["metadata"]["annotations"]
    assert needs_apply(MANIFESTS[0], live)


def test_a_lost_label_does_not_undo_what_is_carried_out():
    live = copy.deepcopy(MANIFESTS[1])
    del live["metadata"]["labels"]["app.kubernetes.io/name"]
    assert needs_apply(MANIFESTS[1], live)
    assert is_carried_out(MANIFESTS[1], live)


def test_a_child_that_is_being_deleted_is_not_carried_out():
    live = copy.deepcopy(MANIFESTS[1])
    live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not is_carried_out(MANIFESTS[1], live)


@pytest.mark.parametrize("field", sorted(ATOMIC_MAPS))
def test_a_key_that_others_add_to_a_map_that_is_applied_as_a_whole_is_drift(field):
    assert not contains({"ours": "a", "theirs": "b"}, {"ours": "a"}, field)
    assert contains({"ours": "a"}, {"ours": "a"}, field)


def test_true_is_not_one():
    assert not contains(1, True)
    assert not contains({"a": True}, {"a": 1})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("500m", "0.5"),
        ("1", "1000m"),
        ("1Gi", "1024Mi"),
        ("1e3", "1k"),
        ("1E", "1e18"),
        (".5", "0.50"),
        ("128974848", "123Mi"),
        ("1u", "1000n"),
    ],
)
def test_quantities_are_compared_by_value(one, other):
    assert parse_quantity(one) == parse_quantity(other)
    assert contains({"limits": {"cpu": one}}, {"limits": {"cpu": other}})


@pytest.mark.parametrize("text", ["", "m", "1 Gi", "1gi", "0x1", "1e", "--1"])
def test_what_is_no_quantity_is_an_error(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)
