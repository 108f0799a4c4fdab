"""What follows from the two keys of a deployment, and how it is worded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_planner import report
from mocker_planner.status import Status, read_status
from mocker_protocol.decisions import DeploymentKey, ScalingDecision, encode_acknowledgement

KEY = DeploymentKey("team", "chat")
DECISION = ScalingDecision(decision_id=7, prefill=0)


@pytest.mark.parametrize(
    ("decision", "acknowledgement", "next_id", "pending"),
    [
        (None, None, 0, False),
        (DECISION.encode(), None, 8, True),
        (DECISION.encode(), encode_acknowledgement(6), 8, True),
        (DECISION.encode(), encode_acknowledgement(7), 8, False),
        (DECISION.encode(), encode_acknowledgement(11), 12, True),
        (None, encode_acknowledgement(4), 5, False),
        (b"rubbish", encode_acknowledgement(4), 5, False),
        (DECISION.encode(), b"rubbish", 8, True),
    ],
)
def test_the_next_id_is_after_all_that_were_used(decision, acknowledgement, next_id, pending):
    status = read_status(decision, acknowledgement)
    assert (status.next_decision_id, status.pending) == (next_id, pending)


@given(st.none() | st.binary(), st.none() | st.binary())
def test_no_payload_makes_reading_fail(decision, acknowledgement):
    assert read_status(decision, acknowledgement).next_decision_id >= 0


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (Status(None, None), "team/chat: no decision"),
        (Status(DECISION, 7), "team/chat: decision 7: prefill=0 decode unchanged: scaled"),
        (
            Status(DECISION, 6),
            "team/chat: decision 7: prefill=0 decode unchanged: not scaled yet (last scaled: 6)",
        ),
    ],
)
def test_status_is_one_readable_line(status, text):
    assert report.status_text(KEY, status) == text


def test_scaled_tells_the_seconds():
    assert report.scaled(KEY, DECISION, 4.26).endswith("scaled after 4.3 s")


def test_json_has_every_key_always():
    empty = json.loads(report.as_json(KEY, Status(None, None)))
    full = json.loads(report.as_json(KEY, Status(DECISION, 7), scaled_after_s=1.23456))
    assert empty.keys() == full.keys()
    assert full["scaled_after_s"] == 1.235
