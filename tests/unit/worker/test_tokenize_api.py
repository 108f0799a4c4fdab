import json

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from mocker_worker.config import ServerOptions
from mocker_worker.hf_tokenizer import TokenizerUnusable
from mocker_worker.serve import Worker
from mocker_worker.tokenizer import BuiltinTokenizer

TEXT = "Hello world, grüße \U0001f600: the of  and\n\tx = 1"


async def post(worker, path, body):
    """Return status and JSON of an answer."""
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    async with (
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.post(path, data=data) as response,
    ):
        return response.status, await response.json()


async def test_text_goes_to_tokens_and_back(run_worker):
    async with run_worker(max_model_len=4096) as worker:
        status, answer = await post(worker, "/tokenize", {"prompt": TEXT, "model": "mock"})

        assert status == 200
        assert answer["count"] == len(answer["tokens"])
        assert answer["max_model_len"] == 4096
        assert answer["token_strs"] is None
        status, answer = await post(worker, "/detokenize", {"tokens": answer["tokens"]})
        assert (status, answer) == (200, {"prompt": TEXT})


@pytest.fixture
def tokenizer_path(tmp_path):
    """A model's own tokenizer, which puts a special token in front."""
    model = Tokenizer(models.WordLevel({"[UNK]": 0, "<s>": 1, "world": 2}, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    model.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    model.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize("is_built_in", [False, True])
async def test_tokens_are_those_that_the_engine_counts(
    run_worker, tokenizer_path, is_built_in, special
):
    """Routers ask the one and send to the other."""
    server = ServerOptions(tokenizer_path=None if is_built_in else tokenizer_path)
    async with run_worker(server=server) as worker:
        chat = {"messages": [{"role": "user", "content": TEXT}], "add_special_tokens": special}
        text = {"prompt": TEXT, "add_special_tokens": special}
        rest = {"max_tokens": 1, "return_token_ids": True}
        _, chat_tokens = await post(worker, "/tokenize", chat)
        _, text_tokens = await post(worker, "/tokenize", text)
        _, chat_answer = await post(worker, "/v1/chat/completions", chat | rest)
        _, text_answer = await post(worker, "/v1/completions", text | rest)

        assert chat_tokens["tokens"] == chat_answer["prompt_token_ids"]
        assert text_tokens["tokens"] == text_answer["choices"][0]["prompt_token_ids"]
        if not is_built_in:
            assert (chat_tokens["tokens"][0] == 1) == (special is True)
            assert (text_tokens["tokens"][0] == 1) == (special is not False)


async def test_tokens_can_be_shown_as_text(run_worker):
    async with run_worker() as worker:
        body = {"prompt": " the\U0001f600", "return_token_strs": True}
        _, answer = await post(worker, "/tokenize", body)

        assert answer["token_strs"] == [" the", "\ufffd", "\ufffd"]


async def test_without_a_limit_the_cache_is_the_longest_context(run_worker):
    async with run_worker(num_gpu_blocks=10) as worker:
        _, answer = await post(worker, "/tokenize", {"prompt": ""})

        assert answer == {"count": 0, "max_model_len": 40, "tokens": [], "token_strs": None}


async def test_a_chat_can_be_tokenized_without_the_start_of_the_answer(run_worker):
    async with run_worker() as worker:
        body = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
        _, answer = await post(worker, "/tokenize", body)
        _, text = await post(worker, "/detokenize", {"tokens": answer["tokens"]})

        assert text["prompt"] == "<|user|>\nHi<|end|>\n"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "u", "content": [{"type": "x"}]}]}, 501, "messages"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", "{", 400, None),
        ("/tokenize", "[1]", 400, None),
        ("/tokenize", b"\xff\xfe", 400, None),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [2**32]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, 400, "tokens"),
        ("/detokenize", {"tokens": "abc"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
        ("/detokenize", "[" * 200, 400, None),
    ],
)
async def test_mistakes_are_named(run_worker, path, body, status, param):
    async with run_worker() as worker:
        got, answer = await post(worker, path, body)

        assert got == status
        assert answer["error"]["param"] == param


@given(st.text(), st.lists(st.integers(0, 2**32 - 1)))
def test_any_text_and_any_ids_are_answered(text, ids):
    tokenizer = BuiltinTokenizer()

    assert tokenizer.decode(tokenizer.encode(text)) == text
    json.dumps(tokenizer.decode(ids)).encode()
    json.dumps([tokenizer.token_text(item) for item in ids]).encode()


async def test_a_models_own_tokenizer_can_be_mounted(run_worker, tmp_path):
    vocabulary = {"[UNK]": 0, "hello": 1, "world": 2} | {f"w{n}": n for n in range(3, 250)}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "tokenizer.json"))
    async with run_worker(server=ServerOptions(tokenizer_path=tmp_path)) as worker:
        body = {"prompt": "hello world what", "return_token_strs": True}
        _, answer = await post(worker, "/tokenize", body)
        assert answer["tokens"] == [1, 2, 0]
        assert answer["token_strs"] == ["hello", "world", "[UNK]"]

        _, answer = await post(
            worker, "/v1/completions", {"prompt": "hello world", "max_tokens": 9, "seed": 1}
        )
        assert answer["usage"]["prompt_tokens"] == 2
        assert len(answer["choices"][0]["text"].split()) == 9
        assert set(answer["choices"][0]["text"].split()) <= set(vocabulary)


async def test_a_tokenizer_that_cannot_be_loaded_stops_the_start(worker_config, tmp_path):
    config = worker_config(server=ServerOptions(tokenizer_path=tmp_path / "none"))

    with pytest.raises(TokenizerUnusable, match="--tokenizer"):
        await Worker(config).run()


async def test_log_probabilities_have_the_texts_of_the_answer(run_worker, tokenizer_path):
    async with run_worker(server=ServerOptions(tokenizer_path=tokenizer_path)) as worker:
        body = {"prompt": "world", "max_tokens": 5, "logprobs": 1}
        _, answer = await post(worker, "/v1/completions", body)

        (choice,) = answer["choices"]
        texts = choice["logprobs"]["tokens"]
        assert "".join(texts) == choice["text"]
        assert choice["logprobs"]["text_offset"] == [len("".join(texts[:n])) for n in range(5)]
