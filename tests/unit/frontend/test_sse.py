"""Streams pass through a frontend unchanged, however they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_frontend.sse import EventStream, Usage, read_usage

TOKENS = [b'data: {"choices":[{"index":0,"text":"a %d"}]}\n\n' % number for number in range(5)]
USAGE = (
    b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,'
    b'"total_tokens":12}}\n\n'
)
DONE = b"data: [DONE]\n\n"
WHOLE = b"".join([*TOKENS, USAGE, DONE])
CUTS = st.lists(st.integers(0, len(WHOLE)), max_size=20).map(sorted)


def pass_through(stream, cuts, data=WHOLE):
    bounds = [0, *cuts, len(data)]
    pieces = [data[a:b] for a, b in pairwise(bounds)]
    return b"".join(stream.feed(piece) for piece in pieces if piece) + stream.finish()


@given(CUTS)
def test_a_stream_passes_unchanged(cuts):
    stream = EventStream(hide_usage=False)
    assert pass_through(stream, cuts) == WHOLE
    assert stream.token_events == 5
    assert stream.usage == Usage(7, 5)
    assert stream.done


@given(CUTS)
def test_usage_that_was_not_asked_for_is_withheld(cuts):
    stream = EventStream(hide_usage=True)
    assert pass_through(stream, cuts) == b"".join([*TOKENS, DONE])
    assert stream.token_events == 5
    assert stream.usage == Usage(7, 5)


@given(CUTS)
def test_the_event_that_opens_a_chat_is_no_token(cuts):
    stream = EventStream(hide_usage=False, opening_events=1)
    assert pass_through(stream, cuts) == WHOLE
    assert stream.token_events == 4


def test_spaces_after_colons_make_no_difference():
    stream = EventStream(hide_usage=True)
    spaced = USAGE.replace(b'"choices":[]', b'"choices": []')
    assert stream.feed(spaced + DONE) == DONE
    assert stream.usage == Usage(7, 5)


def test_text_that_looks_like_a_usage_chunk_is_a_token():
    stream = EventStream(hide_usage=True)
    event = b'data: {"choices":[{"text":"\\"choices\\":[]"}]}\n\n'
    assert stream.feed(event) == event
    assert stream.token_events == 1


def test_a_chunk_without_choices_and_usage_passes():
    stream = EventStream(hide_usage=True)
    event = b'data: {"choices":[]}\n\n'
    assert stream.feed(event) == event
    assert stream.usage is None


def test_a_stream_that_breaks_off_is_not_done():
    stream = EventStream(hide_usage=False)
    assert stream.feed(TOKENS[0] + b'data: {"cho') == TOKENS[0]
    assert stream.finish() == b""
    assert not stream.done
    assert not stream.ended


def test_an_end_mark_without_its_empty_line_gets_one():
    stream = EventStream(hide_usage=False)
    assert stream.feed(TOKENS[0] + b"data: [DONE]\n") == TOKENS[0]
    assert stream.finish() == DONE
    assert stream.ended


@pytest.mark.parametrize("done", [b"", DONE])
def test_an_error_in_the_middle_of_a_stream_is_no_token(done):
    stream = EventStream(hide_usage=True)
    event = b'data: {"error":{"message":"broken"}}\n\n'
    assert stream.feed(TOKENS[0] + event + done) == TOKENS[0] + event + done
    assert stream.token_events == 1
    assert stream.failed
    assert stream.ended


def test_text_that_quotes_the_marks_is_a_token():
    stream = EventStream(hide_usage=True)
    event = b'data: {"choices":[{"text":"data: [DONE] data: {\\"error\\""}]}\n\n'
    assert stream.feed(event) == event
    assert stream.token_events == 1
    assert not stream.ended


@given(CUTS)
def test_every_choice_of_a_chat_opens_with_an_event_of_its_own(cuts):
    stream = EventStream(hide_usage=False, opening_events=3)
    assert pass_through(stream, cuts) == WHOLE
    assert stream.token_events == 2


def test_usage_is_read_from_a_whole_answer():
    payload = b'{"choices":[{}],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
    assert read_usage(payload) == Usage(3, 2)
    cached = b'{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}'
    assert read_usage(cached) == Usage(3, 0, 2)
    assert read_usage(b'{"usage":{"prompt_tokens_details":null}}') == Usage(0, 0)
    assert read_usage(b'{"choices":[]}') is None
    assert read_usage(b'{"usage":null}') is None
    assert read_usage(b"rubbish\xff") is None
