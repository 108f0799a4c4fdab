import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from mocker_worker.hf_tokenizer import HfTokenizer, TokenizerUnusable, load_tokenizer
from mocker_worker.tokenizer import TOKEN_TEXTS, BuiltinTokenizer

LINES = ["The quick brown fox jumps over the lazy dog.", "Grüße aus Köln \U0001f600 und Zürich"] * 3


def bytes_model():
    """Return a byte-level BPE; its ids 100 to 200 are mostly bytes that are no text alone."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(LINES, trainer)
    model.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", model.token_to_id("<s>"))]
    )
    return model


def words_model():
    """Return a word-level tokenizer of 300 words that puts spaces between words."""
    vocabulary = {"[UNK]": 0} | {f"w{number}": number for number in range(1, 300)}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Metaspace()
    vocabulary = {"[UNK]": 0} | {f"\u2581w{number}": number for number in range(1, 300)}
    model.model = models.WordLevel(vocabulary, unk_token="[UNK]")
    return model


BYTES = HfTokenizer(bytes_model())
WORDS = HfTokenizer(words_model())


def streamed(tokenizer, ids):
    """Return the text of a stream decoder."""
    decoder = tokenizer.stream_decoder()
    return "".join(map(decoder.push, ids)) + decoder.flush()


@given(st.text())
def test_a_byte_level_tokenizer_is_reversible(text):
    assert BYTES.decode(BYTES.encode(text)) == text


@given(st.text(alphabet="aé\U0001f600\U0001f468\u200d \n.x"))
def test_a_stream_of_bytes_has_the_text_of_the_whole(text):
    ids = BYTES.encode(text, add_special_tokens=False)
    decoder = BYTES.stream_decoder()
    pieces = [*map(decoder.push, ids), decoder.flush()]

    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(1, 299)))
def test_a_stream_of_words_has_the_text_of_the_whole(ids):
    text = WORDS.decode(ids)

    assert streamed(WORDS, ids) == text == " ".join(f"w{number}" for number in ids)
    assert WORDS.encode(text) == ids


@given(st.lists(st.integers(0, 399)))
def test_a_stream_of_anything_has_the_text_of_the_whole(ids):
    assert streamed(BYTES, ids) == BYTES.decode(ids)


def test_special_tokens_are_added_by_default_and_have_no_text():
    with_special, without = BYTES.encode("fox"), BYTES.encode("fox", add_special_tokens=False)

    assert with_special == [0, *without]
    assert BYTES.decode(with_special) == "fox"
    assert BYTES.token_text(0) == "<s>"


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS])
def test_every_generated_id_has_a_visible_text(tokenizer):
    texts = tokenizer.generated_texts

    assert sorted(texts) == list(range(100, 201))
    assert all(text.strip() and text.isprintable() for text in texts.values())


def test_generated_ids_have_their_own_text_where_it_can_be_seen():
    assert WORDS.generated_texts[150] == " w150"
    assert BYTES.generated_texts[200] == TOKEN_TEXTS[200]


def test_log_probabilities_show_text_and_not_the_spelling_of_the_vocabulary():
    ids = BYTES.encode(" fox", add_special_tokens=False)

    assert BYTES.token_text(ids[0]).startswith("\u0120")
    assert "".join(map(BYTES.decoded_text, ids)) == " fox"
    assert WORDS.decoded_text(7) == " w7"
    assert BYTES.decoded_text(200) == BYTES.generated_texts[200]
    assert BYTES.decoded_text(0) == "<s>"


@pytest.mark.parametrize("token_id", [401, 5000, 2**32 - 1])
def test_unknown_ids_have_no_text(token_id):
    assert BYTES.decode([token_id]) == ""
    assert BYTES.token_text(token_id) == ""
    assert streamed(BYTES, [token_id, token_id]) == ""


def test_a_file_or_its_directory_can_be_named(tmp_path):
    bytes_model().save(str(tmp_path / "tokenizer.json"))

    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert load_tokenizer(path).encode("fox") == BYTES.encode("fox")
    assert isinstance(load_tokenizer(None), BuiltinTokenizer)


def test_truncation_and_padding_in_the_file_are_not_applied(tmp_path):
    model = bytes_model()
    model.enable_truncation(2)
    model.enable_padding(length=64)
    model.save(str(tmp_path / "tokenizer.json"))

    assert load_tokenizer(tmp_path).encode(LINES[0]) == BYTES.encode(LINES[0])


@pytest.mark.parametrize("content", ["", "{}", "[", json.dumps({"model": 3}), "\x00"])
def test_a_bad_file_is_named_with_the_flag(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)

    with pytest.raises(TokenizerUnusable, match=r"--tokenizer .*tokenizer.json: is not"):
        load_tokenizer(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TokenizerUnusable, match=r"--tokenizer .*cannot be read"):
        load_tokenizer(tmp_path / "none.json")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)

    with pytest.raises(TokenizerUnusable, match="needs the package tokenizers; install"):
        load_tokenizer(tmp_path)
