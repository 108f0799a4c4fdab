import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_worker.server.stops import StopMatcher


def matched(stops, pieces, *, include=False, may_stop_from=0):
    matcher = StopMatcher(stops, include=include)
    sent = []
    for index, piece in enumerate(pieces):
        sent.append(matcher.push(piece, may_stop=index >= may_stop_from))
        if matcher.matched is not None:
            return sent, matcher.matched
    sent.append(matcher.flush())
    return sent, None


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stop"),
    [
        (["end"], ["the ", "end", " of"], "the ", "end"),
        (["end"], ["the e", "n", "d of"], "the ", "end"),
        (["end"], ["the e", "ne", "nd"], "the ene"[:-1], "end"),
        (["ab", "b"], ["xaby"], "x", "ab"),
        (["b", "ab"], ["xaby"], "xa", "b"),
        (["abcd", "bc"], ["xabcdy"], "xa", "bc"),
        (["never"], ["a", "b"], "ab", None),
        (["x"], ["x"], "", "x"),
    ],
)
def test_text_ends_before_the_stop_string(stops, pieces, text, stop):
    sent, found = matched(stops, pieces)

    assert ("".join(sent), found) == (text, stop)


def test_the_stop_string_can_be_included():
    sent, found = matched(["end"], ["the ", "end", " of"], include=True)

    assert ("".join(sent), found) == ("the end", "end")


def test_what_may_become_a_stop_string_is_held_back_only_if_it_is_cut_off():
    assert matched(["end"], ["e", "n", "x"])[0] == ["", "", "e", "nx"]
    assert matched(["end"], ["e", "n", "x"], include=True)[0] == ["e", "n", "x", ""]


def test_a_stop_string_before_min_tokens_is_passed_over():
    sent, found = matched(["a"], ["a", "b", "a"], may_stop_from=2)

    assert ("".join(sent), found) == ("ab", "a")


def test_a_stop_string_that_ends_after_min_tokens_counts():
    assert matched(["end", "x"], ["xen", "d"], may_stop_from=1) == (["x", ""], "end")


@given(
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.booleans(),
)
def test_cutting_the_text_differently_changes_nothing(stops, pieces, include):
    text = "".join(pieces)
    sent, found = matched(stops, pieces, include=include)
    at_once, found_at_once = matched(stops, [text], include=include)

    assert ("".join(sent), found) == ("".join(at_once), found_at_once)
    assert (found is None) == all(stop not in text for stop in stops)
    assert text.startswith("".join(sent))
    if found is None:
        assert "".join(sent) == text
    elif include:
        assert "".join(sent).endswith(found)
    else:
        assert all(stop not in "".join(sent) for stop in stops)
