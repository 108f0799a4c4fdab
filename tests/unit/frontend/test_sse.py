"""Streams pass through a frontend unchanged, however they are cut."""

from itertools import pairwise

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
    stream = EventStream(hide_usage=False, opens_with_role=True)
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
    assert stream.finish() == b'data: {"cho'
    assert not stream.done


def test_usage_is_read_from_a_whole_answer():
    payload = b'{"choices":[{}],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
    assert read_usage(payload) == Usage(3, 2)
    assert read_usage(b'{"choices":[]}') is None
    assert read_usage(b'{"usage":null}') is None
    assert read_usage(b"rubbish\xff") is None
