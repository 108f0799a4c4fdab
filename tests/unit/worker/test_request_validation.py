import json

import pytest

from mocker_worker.server.errors import ApiError, error_body
from mocker_worker.server.requests import parse_chat, parse_completion
from mocker_worker.tokenizer import BuiltinTokenizer

USER = [{"role": "user", "content": "Hi"}]
TOKENIZER = BuiltinTokenizer()


def chat(**fields):
    return parse_chat(json.dumps({"messages": USER} | fields).encode())


def completion(**fields):
    return parse_completion(json.dumps({"prompt": "Hi"} | fields).encode())


def prompts(request):
    return [list(prompt.token_ids) for prompt in request.prompts(TOKENIZER)]


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("Hi there", [TOKENIZER.encode("Hi there")]),
        (["Hi there"], [TOKENIZER.encode("Hi there")]),
        (["Hi", "there"], [TOKENIZER.encode("Hi"), TOKENIZER.encode("there")]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2, 3]], [[1, 2, 3]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["Hi", [2, 3]], [TOKENIZER.encode("Hi"), [2, 3]]),
    ],
)
def test_a_prompt_may_be_text_or_token_ids_or_a_list_of_them(prompt, token_ids):
    assert prompts(completion(prompt=prompt)) == token_ids


def test_completions_default_to_16_tokens():
    assert completion().answer_tokens() == 16
    assert completion(max_tokens=None).answer_tokens() == 16
    assert completion(max_tokens=3).answer_tokens() == 3


def test_max_completion_tokens_wins_over_max_tokens():
    assert chat(max_tokens=5, max_completion_tokens=7).answer_tokens() == 7
    assert chat(max_tokens=5).answer_tokens() == 5
    assert chat().answer_tokens() is None


def test_unknown_fields_and_harmless_values_are_accepted():
    chat(
        foo={"bar": 1},
        n=1,
        stop=["\n", "</s>"],
        stop_token_ids=[2],
        tools=[],
        response_format={"type": "text"},
        logprobs=False,
        temperature=0,
        user="me",
        ignore_eos=True,
        stream=None,
        presence_penalty=0.5,
        logit_bias={},
        vllm_xargs={"a": 1},
        session_id="s",
    )
    completion(best_of=1, echo=False, suffix="", logprobs=None)


def test_text_parts_of_a_message_are_joined():
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": " you"}]
    joined = chat(messages=[{"role": "user", "content": "Hi you"}])

    assert prompts(chat(messages=[{"role": "user", "content": parts}])) == prompts(joined)


def test_a_chat_can_be_rendered_without_the_opening_of_its_answer():
    (opened,) = chat().prompts(TOKENIZER)
    (bare,) = chat(add_generation_prompt=False).prompts(TOKENIZER)

    assert opened.text == f"{bare.text}<|assistant|>\n"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"content": "Hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1025}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"model": 3}, "model"),
        ({"kv_transfer_params": []}, "kv_transfer_params"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": "high"}, "priority"),
        ({"seed": 2**70}, "seed"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "auto", "tools": []}, "tool_choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"], "json_object": True}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs"),
    ],
)
def test_a_bad_field_is_named_with_status_400(fields, param):
    with pytest.raises(ApiError) as caught:
        chat(**fields)

    error = json.loads(error_body(caught.value))["error"]
    assert (error["code"], error["type"], error["param"]) == (400, "BadRequestError", param)
    assert error["message"].startswith(param)


@pytest.mark.parametrize(
    ("parse", "fields", "param"),
    [
        (chat, {"bad_words": ["x"]}, "bad_words"),
        (chat, {"use_beam_search": True}, "use_beam_search"),
        (chat, {"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        (completion, {"best_of": 3}, "best_of"),
        (completion, {"suffix": "x"}, "suffix"),
        (completion, {"prompt": "", "prompt_embeds": "AAAA"}, "prompt_embeds"),
        (chat, {"continue_final_message": True}, "continue_final_message"),
        (chat, {"echo": True}, "echo"),
        (chat, {"documents": [{"text": "x"}]}, "documents"),
        (chat, {"chat_template": "{{ messages }}"}, "chat_template"),
        (completion, {"structured_outputs": {"grammar": "a"}}, "structured_outputs.grammar"),
    ],
)
def test_what_the_engine_does_not_do_is_answered_with_501(parse, fields, param):
    with pytest.raises(ApiError) as caught:
        parse(**fields)

    assert (caught.value.status, caught.value.param) == (501, param)


def test_images_are_answered_with_501():
    with pytest.raises(ApiError, match="type text") as image:
        prompts(chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]))

    assert image.value.status == 501


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"prompt": "\xff"}', b"{" * 5000, b'{"a":' * 5000]
)
def test_a_body_that_is_no_json_object_is_refused(body):
    with pytest.raises(ApiError) as caught:
        parse_completion(body)

    assert caught.value.status == 400


def test_a_missing_prompt_is_named():
    with pytest.raises(ApiError, match="prompt") as caught:
        parse_completion(b"{}")

    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", [[1, "a"], ["a", 1], [[1], 2], [1, [2]]])
def test_mixed_prompts_are_refused(prompt):
    with pytest.raises(ApiError, match="mixed") as caught:
        prompts(completion(prompt=prompt))

    assert caught.value.status == 400


@pytest.mark.parametrize("prompt", [["x"] * 1025, ["x"] * 40, [[1]] * 600])
def test_too_many_answers_are_refused_before_a_prompt_is_looked_at(prompt):
    with pytest.raises(ApiError) as caught:
        completion(prompt=prompt, n=1 if len(prompt) > 1024 else 30)

    assert (caught.value.status, caught.value.param) == (400, "n")


@pytest.mark.parametrize(
    ("prompt", "count"), [("x" * 2000, 1), ([7] * 2000, 1), (["x"] * 3, 3), ([[7]] * 3, 3)]
)
def test_prompts_are_counted_as_they_are_taken(prompt, count):
    request = completion(prompt=prompt)

    assert request.num_prompts == len(request.prompts(TOKENIZER)) == count


@pytest.mark.parametrize("prompt", ["", []])
def test_a_prompt_without_tokens_is_refused(prompt):
    with pytest.raises(ApiError) as caught:
        completion(prompt=prompt)

    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_an_echo_alone_needs_no_answer():
    assert completion(echo=True, max_tokens=0).answer_tokens() == 0
    with pytest.raises(ApiError, match="at least 1"):
        completion(max_tokens=0)


@pytest.mark.parametrize("prompt", [[-1], [2**32], [[1], [-1]], [2**64], ["a", [2**32]]])
def test_a_token_id_that_no_vocabulary_has_is_named(prompt):
    with pytest.raises(ApiError, match="prompt") as caught:
        prompts(completion(prompt=prompt))

    assert (caught.value.status, caught.value.param) == (400, "prompt")
