"""The bodies of the prefill leg and the decode leg."""

import pytest

from mocker_frontend.disagg import InvalidBody, decode_body, parse_body, prefill_body, with_usage

BODY = {
    "model": "mock",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 50,
    "min_tokens": 10,
    "ignore_eos": True,
    "vendor_field": {"deep": [1, None]},
}


def test_the_prefill_leg_asks_for_one_token_and_a_hand_off():
    assert prefill_body(BODY) == {
        "model": "mock",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": False,
        "max_tokens": 1,
        "ignore_eos": True,
        "vendor_field": {"deep": [1, None]},
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        },
    }


def test_the_newer_token_limit_is_lowered_only_if_it_was_given():
    assert "max_completion_tokens" not in prefill_body(BODY)
    assert prefill_body({**BODY, "max_completion_tokens": 50})["max_completion_tokens"] == 1


def test_the_decode_leg_is_the_original_plus_the_hand_off():
    assert decode_body(BODY, {"remote_port": 5600}) == {
        **BODY,
        "kv_transfer_params": {"remote_port": 5600},
    }


def test_a_local_prefill_is_the_original():
    assert decode_body(BODY, None) == BODY


def test_the_legs_leave_the_original_alone():
    before = repr(BODY)
    prefill_body(BODY)
    decode_body(BODY, {})
    with_usage(BODY)
    assert repr(BODY) == before


HIDDEN = {"include_usage": True, "usage_is_hidden": True}


@pytest.mark.parametrize(
    ("body", "expected", "hidden"),
    [
        ({}, {}, False),
        ({"stream": False}, {"stream": False}, False),
        ({"stream": True}, {"stream": True, "stream_options": HIDDEN}, True),
        (
            {"stream": True, "stream_options": None},
            {"stream": True, "stream_options": HIDDEN},
            True,
        ),
        (
            {"stream": True, "stream_options": {"include_usage": False, "x": 1}},
            {"stream": True, "stream_options": HIDDEN | {"x": 1}},
            True,
        ),
        (
            {"stream": True, "stream_options": {"include_usage": True}},
            {"stream": True, "stream_options": {"include_usage": True}},
            False,
        ),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            {"stream": True, "stream_options": HIDDEN | {"continuous_usage_stats": False}},
            True,
        ),
        ({"stream": True, "stream_options": 5}, {"stream": True, "stream_options": 5}, False),
    ],
)
def test_usage_is_asked_for_on_behalf_of_streams(body, expected, hidden):
    assert with_usage(body) == (expected, hidden)


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"null", b"\xff\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(payload):
    with pytest.raises(InvalidBody, match=r"request body"):
        parse_body(payload)
