"""`logit_bias` and `allowed_token_ids`, with the real openai client where that can."""

import math

import pytest
from tokenizers import Tokenizer, models
from worker_client import client_of, complete, post, stream

from mocker_worker.engine.sampling import FIRST_TOKEN_ID, LAST_TOKEN_ID
from mocker_worker.hf_tokenizer import HfTokenizer
from mocker_worker.server.errors import ApiError
from mocker_worker.server.permitted_tokens import PermittedTokens
from mocker_worker.server.requests import CompletionRequest
from mocker_worker.tokenizer import TOKEN_TEXTS, BuiltinTokenizer

EVERY = range(FIRST_TOKEN_ID, LAST_TOKEN_ID + 1)
MESSAGES = [{"role": "user", "content": "Tell me of the river."}]


def permitted(tokenizer=None, **fields):
    request = CompletionRequest(prompt="x", **fields)
    return PermittedTokens.of(request, tokenizer or BuiltinTokenizer())


def biases(value, token_ids):
    return {str(token_id): value for token_id in token_ids}


async def test_the_openai_client_bans_and_forces_tokens(run_worker):
    async with run_worker() as worker, client_of(worker) as client:

        async def words(bias):
            answer = await client.chat.completions.create(
                model="mock", messages=MESSAGES, max_tokens=40, seed=1, logit_bias=bias
            )
            assert answer.usage.completion_tokens == 40
            assert answer.choices[0].finish_reason == "length"
            return answer.choices[0].message.content.split()

        assert set(await words(biases(100, [102]))) == {TOKEN_TEXTS[102].strip()}
        two = {TOKEN_TEXTS[token_id].strip() for token_id in (100, 101)}
        assert set(await words(biases(-100, EVERY[2:]))) == two
        banned = TOKEN_TEXTS[100].strip()
        assert banned not in await words(biases(-100, [100]))


async def test_a_bias_between_the_ends_changes_nothing(run_worker):
    async with run_worker() as worker:
        plain = await complete(worker, seed=1, max_tokens=20)
        biased = await complete(worker, seed=1, max_tokens=20, logit_bias={"100": 5, "7": -99})
        elsewhere = await complete(worker, seed=1, max_tokens=20, logit_bias={"50256": -100})
        assert plain["choices"] == biased["choices"] == elsewhere["choices"]


async def test_only_allowed_tokens_are_drawn_and_alike_in_streams_and_wholes(run_worker):
    asked = {"allowed_token_ids": [5000, 101, 5000, 2000], "max_tokens": 60, "seed": 3}
    async with run_worker() as worker:
        whole = await complete(worker, prompt="x", return_token_ids=True, **asked)
        (choice,) = whole["choices"]
        assert set(choice["token_ids"]) == {101, 2000, 5000}
        assert choice["finish_reason"] == "length"
        assert choice["text"] == BuiltinTokenizer().decode(choice["token_ids"])
        chunks = await stream(worker, prompt="x", **asked)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]


async def test_seeds_and_samples_draw_their_own(run_worker):
    asked = {"allowed_token_ids": [100, 101, 102], "max_tokens": 30, "n": 2}
    async with run_worker() as worker:
        first, again, other = [await complete(worker, seed=seed, **asked) for seed in (1, 1, 9)]
        texts = [[choice["text"] for choice in each["choices"]] for each in (first, again, other)]
        assert texts[0] == texts[1]
        assert len({*texts[0], *texts[2]}) == 4


async def test_log_probabilities_are_those_of_the_draw(run_worker):
    async with run_worker() as worker:
        answer = await complete(worker, allowed_token_ids=[100, 101], max_tokens=9, logprobs=3)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-math.log(2)] * 9
    for top in logprobs["top_logprobs"]:
        assert sorted(top.values()) == [-9999.0, -math.log(2), -math.log(2)]
        assert {TOKEN_TEXTS[100], TOKEN_TEXTS[101]} < set(top)


async def test_a_stop_token_ends_an_answer_of_drawn_tokens(run_worker):
    async with run_worker() as worker:
        asked = {"allowed_token_ids": [100, 101], "max_tokens": 50, "seed": 1}
        answer = await complete(worker, stop_token_ids=[101], **asked)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == 101


async def test_a_long_answer_is_as_long_as_it_should_be(run_worker):
    async with run_worker() as worker:
        answer = await complete(worker, allowed_token_ids=[100, 101], max_tokens=5000)
    assert answer["usage"]["completion_tokens"] == 5000
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "known",
    [
        {"allowed_token_ids": [100, 101]},
        {"structured_outputs": {"choice": ["yes"]}, "ignore_eos": True},
        {"prompt": [7] * 10_000},
    ],
    ids=["drawn", "repeated", "prompt"],
)
async def test_many_answers_known_beforehand_are_bounded_together(run_worker, known):
    length = 3 if "prompt" in known else 10_000
    async with run_worker() as worker:
        asked = {"prompt": "x", "n": 1000, "max_tokens": length, **known}
        status, body = await post(worker, "/v1/completions", asked)
        assert (status, body["error"]["param"]) == (400, "n")
        assert body["error"]["message"].startswith("n: prompts and known answers have more than")


async def test_a_given_form_is_refused_only_if_it_has_other_tokens(run_worker):
    form = {"structured_outputs": {"choice": ["yes"]}}
    (token_id,) = BuiltinTokenizer().encode("yes")
    async with run_worker() as worker:
        for harmless in ({"logit_bias": {"100": -100}}, {"allowed_token_ids": [token_id]}):
            answer = await complete(worker, **form, **harmless)
            assert answer["choices"][0]["text"] == "yes"
        for field, value in (
            ("logit_bias", {str(token_id): -100}),
            ("logit_bias", {"100": 100}),
            ("allowed_token_ids", [100]),
        ):
            asked = {"prompt": "x", **form, field: value}
            status, body = await post(worker, "/v1/completions", asked)
            assert (status, body["error"]["param"]) == (501, field)


@pytest.mark.parametrize(
    ("fields", "candidates"),
    [
        ({"allowed_token_ids": [7, 3, 7]}, [3, 7]),
        ({"allowed_token_ids": [3, 7], "logit_bias": {"3": -100}}, [7]),
        ({"allowed_token_ids": [3, 7], "logit_bias": {"3": 100}}, [3]),
        ({"allowed_token_ids": [3, 7], "logit_bias": {"9": 100}}, [3, 7]),
        ({"allowed_token_ids": [3, 7], "logit_bias": {"3": -100, "7": -100}}, [3, 7]),
        ({"logit_bias": {"9": 100, "5": 1000, "100": -100}}, [5, 9]),
        ({"logit_bias": biases(-1000, EVERY[1:])}, [100]),
        ({"logit_bias": {"9": -100}}, []),
    ],
)
def test_biases_come_after_what_is_allowed(fields, candidates):
    assert list(permitted(**fields).candidates) == candidates


@pytest.mark.parametrize("fields", [{}, {"logit_bias": {}}, {"logit_bias": {"5": 99}}])
def test_what_permits_all_says_nothing(fields):
    assert permitted(**fields) is None


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"allowed_token_ids": []}, 400),
        ({"logit_bias": {"the": 1}}, 400),
        ({"logit_bias": {"-1": 1}}, 400),
        ({"logit_bias": {"4294967296": 100}}, 400),
        ({"logit_bias": {"\u0665": 1}}, 400),
        ({"logit_bias": biases(-100, EVERY)}, 501),
        ({"logit_bias": biases(1, range(2**18 + 1))}, 400),
        ({"allowed_token_ids": [1] * (2**18 + 1)}, 400),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(fields, status):
    with pytest.raises(ApiError) as refused:
        permitted(**fields)
    (field,) = fields
    assert (refused.value.status, refused.value.param) == (status, field)
    assert refused.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize("field", ["allowed_token_ids", "logit_bias"])
def test_a_vocabulary_is_asked_for_its_tokens(field):
    words = HfTokenizer(Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
    known, unknown = ([1], [2]) if field == "allowed_token_ids" else ({"1": 100}, {"2": 100})
    assert list(permitted(words, **{field: known}).candidates) == [1]
    with pytest.raises(ApiError, match="no token 2") as refused:
        permitted(words, **{field: unknown})
    assert (refused.value.status, refused.value.param) == (400, field)
