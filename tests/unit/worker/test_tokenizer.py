import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_worker import tokenizer
from mocker_worker.tokenizer import TOKEN_TEXTS, WORDS, BuiltinTokenizer, render_chat

TOKENIZER = BuiltinTokenizer()
encode, decode = TOKENIZER.encode, TOKENIZER.decode

generated = st.lists(st.integers(100, 200), max_size=50)
word = st.one_of(
    st.sampled_from([f" {word}" for word in WORDS]),
    st.from_regex(" {0,3}[a-z0-9]{1,25}", fullmatch=True),
    st.text(max_size=5),
)
wordy = st.lists(word).map("".join)
token_ids = st.lists(
    st.one_of(
        st.integers(0, 2000),
        st.integers(0, 2**32 - 1),
        wordy.map(encode).filter(bool).flatmap(st.sampled_from),
    )
)


def streamed(tokenizer, ids):
    """Return the pieces that a stream decoder makes of tokens."""
    decoder = tokenizer.stream_decoder()
    return [*map(decoder.push, ids), decoder.flush()]


def test_the_vocabulary_covers_every_id_that_the_engine_generates():
    assert sorted(TOKEN_TEXTS) == list(range(100, 201))
    assert len(set(WORDS)) == 101
    assert TOKENIZER.generated_texts is TOKEN_TEXTS


@given(st.one_of(st.text(), wordy))
def test_text_survives_the_round_trip(text):
    ids = encode(text)

    assert decode(ids) == text
    assert all(0 <= token_id < 2**31 for token_id in ids)


@given(wordy, st.integers(0, 30))
def test_text_is_cut_the_same_way_in_sections_of_any_size(text, size):
    whole = encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "_SECTION_CHARACTERS", size)

        assert encode(text) == whole


@pytest.mark.parametrize(
    "text", ["the  of", "the of ", "the \n", "the of  \n", " ", "  ", "the \n \n"]
)
def test_a_section_never_ends_between_a_space_and_those_that_belong_to_it(text, monkeypatch):
    whole = encode(text)
    monkeypatch.setattr(tokenizer, "_SECTION_CHARACTERS", 0)

    assert encode(text) == whole


@given(wordy)
def test_every_tokenizer_cuts_the_same_way_whatever_it_saw_before(text):
    assert BuiltinTokenizer().encode(text) == encode(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (" the of and", 3),
        ("w17 w5 w1024", 3),
        (" international", 3),
        (" Water, please", 3 + 2),
        ("        indented", 3 + 2),
        ("a" * 20, 4),
        ("a" * 21, 7),
        ("", 0),
        (" ", 1),
    ],
)
def test_words_have_one_token_per_five_characters_and_the_rest_one_per_three_bytes(text, count):
    assert len(encode(text)) == count


@given(st.text(alphabet=st.characters(categories=["Cs", "Ll"]), min_size=1))
def test_lone_surrogates_which_no_request_can_hold_become_replacement_characters(text):
    assert decode(encode(text)).encode("utf-8")


@given(generated)
def test_generated_text_tokenizes_back_to_its_ids(ids):
    assert encode(decode(ids)) == ids


@given(wordy, wordy)
def test_appended_text_changes_only_the_last_tokens(text, more):
    before, after = encode(text), encode(text + more)

    most_changed = 1 + (20 + 1 + 2) // 3
    kept = max(0, len(before) - most_changed)
    assert after[:kept] == before[:kept]


@given(generated, st.text(max_size=20))
def test_the_next_turn_of_a_chat_starts_with_the_tokens_of_this_one(answer, question):
    messages = [("system", "Be brief."), ("user", question)]
    first = encode(render_chat(messages))

    messages += [("assistant", decode(answer)), ("user", "And then?")]
    second = encode(render_chat(messages))

    so_far = first + answer
    kept = len(so_far) if answer else len(so_far) - 1
    assert second[:kept] == so_far[:kept]


def test_a_chat_can_be_rendered_without_the_start_of_the_answer():
    turns = [("user", "Hi")]

    assert TOKENIZER.render_chat(turns) == "<|user|>\nHi<|end|>\n<|assistant|>\n"
    assert TOKENIZER.render_chat(turns, opens_answer=False) == "<|user|>\nHi<|end|>\n"


@given(token_ids)
def test_any_ids_have_a_text_and_a_stream_has_the_same(ids):
    text = decode(ids)

    assert text.encode("utf-8").decode() == text
    assert "".join(streamed(TOKENIZER, ids)) == text


def test_a_stream_holds_a_character_back_until_it_is_whole():
    ids = encode("\U0001f600!")

    assert streamed(TOKENIZER, ids) == ["", "\U0001f600!", ""]
    assert streamed(TOKENIZER, [ids[0], 100]) == ["", "\ufffd the", ""]
    assert streamed(TOKENIZER, [ids[0]]) == ["", "\ufffd"]


@pytest.mark.parametrize("token_id", [0, 3, 99, 201, 1023, 2**26 - 1, 2**27, 2**31, 2**32 - 1])
def test_ids_without_a_text_become_replacement_characters(token_id):
    assert decode([100, token_id, 101]) == " the\ufffd of"
    assert TOKENIZER.token_text(token_id) == "\ufffd"


def test_the_memory_of_words_is_bounded():
    tokenizer = BuiltinTokenizer()
    text = " ".join(f"w{number}" for number in range(40_000))

    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer._memo) <= 2**14
