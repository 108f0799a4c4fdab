"""Decisions: what a planner may write, and what its rubbish does."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.decisions import (
    MAX_INTEGER,
    DeploymentKey,
    InvalidDecision,
    ScalingDecision,
    encode_acknowledgement,
    parse_acknowledgement,
    parse_decision,
    parse_key,
)

COUNTS = st.none() | st.integers(0, 2**31 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)

GOOD = [
    ('{"decision_id": 7, "prefill": 2, "decode": 3}', (7, 2, 3)),
    ('{"decision_id": 0}', (0, None, None)),
    ('{"decision_id": 1, "prefill": 0}', (1, 0, None)),
    ('{"decision_id": 1, "decode": 0, "prefill": null}', (1, None, 0)),
    ('{"decision_id": 2.0, "decode": 3.0}', (2, None, 3)),
    ('{"decision_id": 9223372036854775807}', (MAX_INTEGER, None, None)),
    ('{"decision_id": 1, "prefill": 2147483647}', (1, 2**31 - 1, None)),
    ('{"decision_id": 1, "decode": 1, "reason": "load"}', (1, None, 1)),
    ('  {"decision_id": 1}\n', (1, None, None)),
]

BAD = [
    ("", "not JSON"),
    ("scale up", "not JSON"),
    ('{"decision_id": 1', "not JSON"),
    ("null", "decision"),
    ("[]", "decision"),
    ("7", "decision"),
    ("{}", "decision_id"),
    ('{"prefill": 1}', "decision_id"),
    ('{"decision_id": null}', "decision_id"),
    ('{"decision_id": "7"}', "decision_id"),
    ('{"decision_id": true}', "decision_id"),
    ('{"decision_id": -1}', "decision_id"),
    ('{"decision_id": 1.5}', "decision_id"),
    ('{"decision_id": 9223372036854775808}', "decision_id"),
    ('{"decision_id": 1, "prefill": -1}', "prefill"),
    ('{"decision_id": 1, "prefill": "2"}', "prefill"),
    ('{"decision_id": 1, "prefill": true}', "prefill"),
    ('{"decision_id": 1, "decode": 2.5}', "decode"),
    ('{"decision_id": 1, "decode": [3]}', "decode"),
    ('{"decision_id": 1, "decode": 2147483648}', "decode"),
    ('{"decision_id": 1, "decode": NaN}', "decode"),
    ('{"decision_id": 1, "decode": Infinity}', "decode"),
    ('{"decision_id": 1, "decode": 1e400}', "decode"),
    ('{"decision_id": ' + "9" * 5000 + "}", ""),
    ("[" * 100_000, "not JSON"),
]


@pytest.mark.parametrize(("text", "expected"), GOOD)
def test_a_good_decision_is_understood(text, expected):
    decision = parse_decision(text.encode())
    assert (decision.decision_id, decision.prefill, decision.decode) == expected


@pytest.mark.parametrize(("text", "field"), BAD, ids=lambda value: value[:40])
def test_a_bad_decision_is_refused_by_field(text, field):
    with pytest.raises(InvalidDecision) as caught:
        parse_decision(text.encode())
    assert field in str(caught.value)


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(InvalidDecision, match="not JSON"):
        parse_decision(b"\xff\xfe\x00\xd8")


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_parsing_raises_only_invalid_decision(payload):
    with suppress(InvalidDecision):
        parse_decision(payload)


@given(
    st.fixed_dictionaries(
        {"decision_id": JSON}, optional={"prefill": JSON, "decode": JSON, "x": JSON}
    )
)
def test_parsing_objects_raises_only_invalid_decision(value):
    with suppress(InvalidDecision):
        decision = parse_decision(json.dumps(value).encode())
        assert 0 <= decision.decision_id <= MAX_INTEGER


@given(st.integers(0, MAX_INTEGER), COUNTS, COUNTS)
def test_a_decision_survives_the_wire(decision_id, prefill, decode):
    decision = ScalingDecision(decision_id=decision_id, prefill=prefill, decode=decode)
    assert parse_decision(decision.encode()) == decision


def test_roles_left_alone_are_not_written():
    assert ScalingDecision(decision_id=7, decode=0).encode() == b'{"decision_id":7,"decode":0}'


def test_keys_name_the_deployment():
    key = DeploymentKey("default", "chat")
    assert key.decision == "default.chat"
    assert key.scaled == "default.chat.scaled"
    assert parse_key("default.chat") == key
    assert parse_key("default.chat.v2") == DeploymentKey("default", "chat.v2")


@pytest.mark.parametrize("key", ["", "chat", ".chat", "default.", "default.chat.scaled"])
def test_foreign_keys_name_no_deployment(key):
    assert parse_key(key) is None


def test_an_acknowledgement_survives_the_wire():
    assert encode_acknowledgement(7) == b'{"scaled_decision_id": 7}'
    assert parse_acknowledgement(encode_acknowledgement(7)) == 7


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"7",
        b"[]",
        b"null",
        b"\xff",
        b"{}",
        b'{"scaled_decision_id": "7"}',
        b'{"scaled_decision_id": true}',
        b'{"scaled_decision_id": 7.5}',
    ],
)
def test_a_foreign_acknowledgement_is_none(payload):
    assert parse_acknowledgement(payload) is None


@given(st.binary())
def test_parsing_an_acknowledgement_never_raises(payload):
    parse_acknowledgement(payload)


def test_a_deeply_nested_acknowledgement_is_none():
    assert parse_acknowledgement(b"[" * 100_000) is None
