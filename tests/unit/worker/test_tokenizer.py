from hypothesis import given
from hypothesis import strategies as st

from mocker_worker.tokenizer import (
    TOKEN_TEXTS,
    WORDS,
    can_be_generated,
    detokenize,
    render_chat,
    tokenize,
)

generated = st.lists(st.integers(100, 200), max_size=50)
wordy = st.lists(st.one_of(st.sampled_from([f" {w}" for w in WORDS]), st.text(max_size=5))).map(
    "".join
)


def test_the_vocabulary_covers_every_id_that_the_engine_generates():
    assert sorted(TOKEN_TEXTS) == list(range(100, 201))
    assert len(set(WORDS)) == 101


@given(st.one_of(st.text(), wordy))
def test_text_survives_the_round_trip(text):
    token_ids = tokenize(text)

    assert detokenize(token_ids) == text
    assert all(0 <= token_id < 2**32 for token_id in token_ids)


@given(st.text(alphabet=st.characters(categories=["Cs", "Ll"])))
def test_lone_surrogates_survive_the_round_trip(text):
    assert detokenize(tokenize(text)) == text


@given(generated)
def test_generated_text_tokenizes_back_to_its_ids(token_ids):
    assert tokenize(detokenize(token_ids)) == token_ids


@given(wordy, wordy)
def test_appended_text_changes_only_the_last_tokens(text, more):
    before, after = tokenize(text), tokenize(text + more)

    longest_word = max(len(word) for word in WORDS) + 1
    kept = max(0, len(before) - longest_word // 3 - 1)
    assert after[:kept] == before[:kept]


@given(generated, st.text(max_size=20))
def test_the_next_turn_of_a_chat_starts_with_the_tokens_of_this_one(answer, question):
    messages = [("system", "Be brief."), ("user", question)]
    first = tokenize(render_chat(messages))

    messages += [("assistant", detokenize(answer)), ("user", "And then?")]
    second = tokenize(render_chat(messages))

    so_far = first + answer
    kept = len(so_far) if answer else len(so_far) - 1
    assert second[:kept] == so_far[:kept]


def test_ids_without_a_text_become_replacement_characters():
    assert detokenize([3, 100, 512 + 0xFF]) == "\ufffd the\ufffd"


def test_only_text_of_lower_case_words_can_be_generated():
    assert can_be_generated(" the of")
    assert not can_be_generated("\n")
    assert not can_be_generated("</s>")
    assert not can_be_generated("")
