"""What a client can ask of an answer, asked with the real openai client where that can."""

import asyncio
import json
import math
from http import HTTPStatus

import aiohttp
import openai
import pytest

from mocker_worker.config import Mode, ServerOptions

UNIFORM = -math.log(101)
MESSAGES = [{"role": "user", "content": "Tell me of the river."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
        },
    },
}


def client_of(worker):
    return openai.AsyncOpenAI(
        base_url=f"{worker.listening.result()}/v1", api_key="x", max_retries=0
    )


async def post(worker, path, body, headers=None):
    async with (
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.post(path, json=body, headers=headers) as response,
    ):
        text = await response.read()
        return response.status, json.loads(
            text
        ) if response.content_type != "text/event-stream" else text


async def complete(worker, **body):
    status, answer = await post(worker, "/v1/completions", {"prompt": "x", "max_tokens": 4} | body)
    assert status == 200, answer
    return answer


async def stream(worker, path="/v1/completions", **body):
    _, text = await post(worker, path, {"max_tokens": 4, "stream": True} | body)
    *chunks, done, rest = text.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks]


async def test_n_answers_differ_and_are_numbered(run_worker):
    async with run_worker() as worker, client_of(worker) as client:
        answer = await client.chat.completions.create(
            model="mock", messages=MESSAGES, max_tokens=8, n=3
        )

        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert len({choice.message.content for choice in answer.choices}) == 3
        assert answer.usage.completion_tokens == 24
        one = await client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=8)
        assert answer.usage.prompt_tokens == one.usage.prompt_tokens


async def test_several_prompts_are_numbered_prompt_by_prompt(run_worker):
    async with run_worker() as worker:
        answer = await complete(worker, prompt=["x", [1, 2, 3]], n=2, echo=True)

        texts = [choice["text"] for choice in answer["choices"]]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert [text.startswith("x") for text in texts] == [True, True, False, False]
        assert answer["usage"]["prompt_tokens"] == 4
        assert answer["usage"]["completion_tokens"] == 16


async def test_streams_of_several_choices_are_whole_and_end_once(run_worker):
    async with run_worker() as worker:
        whole = await complete(worker, prompt=["x", "y"], n=2, seed=5)
        chunks = await stream(
            worker, prompt=["x", "y"], n=2, seed=5, stream_options={"include_usage": True}
        )

        *tokens, usage = chunks
        texts = ["", "", "", ""]
        for chunk in tokens:
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["text"]
        assert texts == [choice["text"] for choice in whole["choices"]]
        assert len(tokens) == 16
        assert usage["choices"] == []
        assert usage["usage"] == whole["usage"]


async def test_seeds_give_the_same_answers_again_and_others_without(run_worker):
    async with run_worker() as worker:
        first, second = [await complete(worker, seed=3, n=2) for _ in range(2)]
        other = await complete(worker, seed=9)

        def texts(answer):
            return [choice["text"] for choice in answer["choices"]]

        assert texts(first) == texts(second)
        assert texts(first)[0] != texts(first)[1]
        assert texts(other)[0] not in texts(first)


async def test_a_stop_string_ends_the_text_before_it(run_worker):
    async with run_worker() as worker:
        text = (await complete(worker, seed=1, max_tokens=40))["choices"][0]["text"]
        words = text.split()
        stop = f" {words[7]} {words[8]}"
        for is_streamed in (False, True):
            if is_streamed:
                chunks = await stream(worker, prompt="x", seed=1, max_tokens=40, stop=[stop])
                said = "".join(chunk["choices"][0]["text"] for chunk in chunks)
                last = chunks[-1]["choices"][0]
            else:
                answer = await complete(worker, seed=1, max_tokens=40, stop=stop)
                last = answer["choices"][0]
                said = last["text"]
                assert answer["usage"]["completion_tokens"] == 9
            assert said == text[: text.index(stop)]
            assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
        (rank,) = worker._ranks
        await asyncio.sleep(0)
        assert rank.engine.num_running == 0
        assert rank.stats.finished_requests["stop"] == 2


async def test_a_stop_token_ends_the_answer_without_its_text(run_worker):
    async with run_worker() as worker:
        whole = await complete(worker, seed=1, max_tokens=40, return_token_ids=True)
        token_ids = whole["choices"][0]["token_ids"]
        wanted = next(t for i, t in enumerate(token_ids) if i > 5 and t not in token_ids[:i])
        position = token_ids.index(wanted)
        answer = await complete(worker, seed=1, max_tokens=40, stop_token_ids=[wanted])
        kept = await complete(
            worker,
            seed=1,
            max_tokens=40,
            stop_token_ids=[wanted],
            include_stop_str_in_output=True,
        )
        late = await complete(
            worker, seed=1, max_tokens=40, stop_token_ids=[wanted], min_tokens=position + 2
        )

        (choice,) = answer["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", wanted)
        assert answer["usage"]["completion_tokens"] == position + 1
        assert len(choice["text"].split()) == position
        assert len(kept["choices"][0]["text"].split()) == position + 1
        assert late["usage"]["completion_tokens"] > position + 1


async def test_an_echo_puts_the_prompt_before_the_answer(run_worker):
    async with run_worker() as worker:
        answer = await complete(worker, prompt="Hello you", echo=True, seed=1)
        chunks = await stream(worker, prompt="Hello you", echo=True, seed=1)
        alone = await complete(worker, prompt="Hello you", echo=True, max_tokens=0)

        text = answer["choices"][0]["text"]
        assert text.startswith("Hello you ")
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
        assert alone["choices"][0]["text"] == "Hello you"
        assert alone["usage"]["completion_tokens"] == 0


async def test_completions_tell_log_probabilities_and_offsets(run_worker):
    async with run_worker() as worker:
        answer = await complete(worker, prompt="Hi you", echo=True, logprobs=2)
        (choice,) = answer["choices"]
        logprobs = choice["logprobs"]

        assert "".join(logprobs["tokens"]) == choice["text"]
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["token_logprobs"][1:] == pytest.approx(
            [UNIFORM] * (len(logprobs["tokens"]) - 1)
        )
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            assert choice["text"][offset:].startswith(token)
        assert all(len(top) == 2 for top in logprobs["top_logprobs"][1:])


async def test_streamed_log_probabilities_are_those_of_the_whole_answer(run_worker):
    async with run_worker() as worker:
        options = {"prompt": "Hi you", "echo": True, "logprobs": 1, "seed": 4}
        whole = (await complete(worker, **options))["choices"][0]["logprobs"]
        chunks = await stream(worker, **options)

        for key, values in whole.items():
            parts = [value for chunk in chunks for value in chunk["choices"][0]["logprobs"][key]]
            assert parts == values


async def test_chats_tell_log_probabilities(run_worker):
    async with run_worker() as worker, client_of(worker) as client:
        answer = await client.chat.completions.create(
            model="mock", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=4
        )
        content = answer.choices[0].logprobs.content

        assert "".join(item.token for item in content) == answer.choices[0].message.content
        for item in content:
            assert item.logprob == pytest.approx(UNIFORM)
            assert bytes(item.bytes).decode() == item.token
            assert len({other.token for other in item.top_logprobs}) == 4
            assert item.top_logprobs[0].token == item.token


async def test_tokens_can_be_shown_as_their_ids(run_worker):
    async with run_worker() as worker:
        answer = await complete(
            worker, logprobs=0, return_tokens_as_token_ids=True, return_token_ids=True
        )
        (choice,) = answer["choices"]

        assert choice["logprobs"]["tokens"] == [f"token_id:{t}" for t in choice["token_ids"]]


async def test_prompt_log_probabilities_are_by_token_id(run_worker):
    async with run_worker() as worker:
        answer = await complete(worker, prompt=[100, 101, 102], prompt_logprobs=1)
        shown = answer["choices"][0]["prompt_logprobs"]

        assert shown[0] is None
        assert [
            set(item) >= {str(token)} for token, item in zip((101, 102), shown[1:], strict=True)
        ]
        assert shown[1]["101"]["logprob"] == pytest.approx(UNIFORM)
        assert shown[1]["101"]["decoded_token"] == " of"


async def test_token_ids_are_returned_where_vllm_does(run_worker):
    async with run_worker() as worker:
        chat = {"messages": MESSAGES, "return_token_ids": True}
        _, whole = await post(worker, "/v1/chat/completions", chat | {"max_tokens": 3})
        first, *rest = await stream(worker, "/v1/chat/completions", **chat, max_tokens=3)
        completion = await stream(worker, prompt=[1, 2], return_token_ids=True)

        prompt = whole["prompt_token_ids"]
        assert len(prompt) == whole["usage"]["prompt_tokens"]
        assert len(whole["choices"][0]["token_ids"]) == 3
        assert first["prompt_token_ids"] == prompt
        assert sum(len(chunk["choices"][0]["token_ids"]) for chunk in rest) == 3
        assert completion[0]["choices"][0]["prompt_token_ids"] == [1, 2]
        assert all(len(chunk["choices"][0]["token_ids"]) == 1 for chunk in completion)


async def test_continuous_usage_counts_up_from_nothing(run_worker):
    async with run_worker() as worker:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = await stream(
            worker, "/v1/chat/completions", messages=MESSAGES, stream_options=options
        )

        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 4, 4]


async def test_a_prompt_can_be_truncated_from_the_left(run_worker):
    async with run_worker(max_model_len=20) as worker:
        answer = await complete(
            worker, prompt=list(range(30)), truncate_prompt_tokens=5, return_token_ids=True
        )

        assert answer["choices"][0]["prompt_token_ids"] == [25, 26, 27, 28, 29]


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_a_tool_call_has_arguments_of_the_schema(run_worker, choice):
    async with run_worker() as worker, client_of(worker) as client:
        asked = {"model": "mock", "messages": MESSAGES, "tools": [TOOL], "tool_choice": choice}
        answer = await client.chat.completions.create(**asked)
        deltas = [
            chunk.choices[0]
            async for chunk in await client.chat.completions.create(**asked, stream=True)
        ]

        (call,) = answer.choices[0].message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert answer.choices[0].finish_reason == deltas[-1].finish_reason == "tool_calls"
        assert call.function.name == deltas[0].delta.tool_calls[0].function.name == "weather"
        assert isinstance(arguments["city"], str)
        assert arguments.get("days", 1) >= 1
        streamed = "".join(item.delta.tool_calls[0].function.arguments for item in deltas)
        assert isinstance(json.loads(streamed)["city"], str)


async def test_the_answer_to_a_tool_result_is_text(run_worker):
    async with run_worker() as worker, client_of(worker) as client:
        messages = [*MESSAGES, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
        answer = await client.chat.completions.create(
            model="mock", messages=messages, tools=[TOOL], max_tokens=3
        )

        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason == "length"


async def test_structured_answers_have_the_form_that_was_asked_for(run_worker):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "kind": {"enum": ["a", "b"]}},
        "required": ["name", "kind"],
    }
    formats = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with run_worker() as worker, client_of(worker) as client:
        answer = await client.chat.completions.create(
            model="mock", messages=MESSAGES, response_format=formats
        )
        anything = await client.chat.completions.create(
            model="mock", messages=MESSAGES, response_format={"type": "json_object"}
        )
        chosen = await complete(worker, structured_outputs={"choice": ["yes", "no"]})

        parsed = json.loads(answer.choices[0].message.content)
        assert answer.choices[0].finish_reason == "stop"
        assert isinstance(parsed["name"], str)
        assert parsed["kind"] in ("a", "b")
        assert isinstance(json.loads(anything.choices[0].message.content), dict)
        assert chosen["choices"][0]["text"] in ("yes", "no")


async def test_echo_mode_answers_with_the_latest_words_of_the_user(run_worker):
    async with run_worker(server=ServerOptions(mode=Mode.ECHO)) as worker:
        said = "Grüße an die 世界"
        messages = [{"role": "user", "content": "no"}, {"role": "user", "content": said}]
        _, answer = await post(worker, "/v1/chat/completions", {"messages": messages})
        chunks = await stream(worker, "/v1/chat/completions", messages=messages, max_tokens=1000)
        cut = await complete(worker, prompt=[100, 101, 102], max_tokens=2)
        long = await complete(worker, prompt=[100, 101], max_tokens=5, ignore_eos=True)

        assert answer["choices"][0]["message"]["content"] == said
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert "".join(c["choices"][0]["delta"]["content"] or "" for c in chunks) == said
        assert (cut["choices"][0]["text"], cut["choices"][0]["finish_reason"]) == (
            " the of",
            "length",
        )
        assert long["choices"][0]["text"] == " the of the of the"


async def test_a_full_queue_is_answered_with_503_or_429(run_worker):
    slow = {"type": "fixed", "prefill_ms": 60_000.0, "decode_ms": 1.0}
    for status in (503, 429):
        options = ServerOptions(max_num_queued_reqs=2, queue_full_status=status)
        async with run_worker(
            timing_model=slow, max_num_seqs=1, server=options, drain_timeout_s=0.0
        ) as worker:
            (rank,) = worker._ranks
            waiting = []
            for count in range(1, 4):
                body = {"prompt": "x", "max_tokens": 2}
                waiting.append(asyncio.create_task(post(worker, "/v1/completions", body)))
                async with asyncio.timeout(10):
                    while rank.num_streams < count or rank.num_running < 1:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
            answered, error = await post(worker, "/v1/completions", {"prompt": "x"})

            assert answered == status
            assert "queue is full" in error["error"]["message"]
            assert error["error"]["type"] == HTTPStatus(status).phrase
            assert rank.num_queued == 2
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def test_salted_prompts_share_no_blocks(run_worker):
    async with run_worker() as worker:

        async def cached(salt):
            body = {"prompt": list(range(40))} | ({"cache_salt": salt} if salt else {})
            return (await complete(worker, **body))["usage"]["prompt_tokens_details"][
                "cached_tokens"
            ]

        assert [await cached(salt) for salt in (None, None, "a", "b", "a")] == [0, 36, 0, 0, 36]


async def test_too_many_answers_are_refused(run_worker):
    async with run_worker() as worker:
        status, error = await post(worker, "/v1/completions", {"prompt": ["x"] * 40, "n": 40})

        assert (status, error["error"]["param"]) == (400, "n")


async def test_a_group_of_which_one_does_not_fit_leaves_nothing_behind(run_worker):
    async with run_worker(num_gpu_blocks=8) as worker:
        status, _ = await post(
            worker, "/v1/completions", {"prompt": [[1], list(range(100))], "max_tokens": 4}
        )

        (rank,) = worker._ranks
        assert status == 400
        assert rank.num_streams == 0
        assert not rank.engine.has_unfinished_requests


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("rate_limit", 429),
        ("invalid_api_key", 401),
        ("context_length", 400),
        ("server_error", 503),
        ("invalid_request", 400),
        ("model_not_found", 404),
    ],
)
async def test_a_fault_can_be_asked_for_by_header(run_worker, kind, status):
    async with run_worker() as worker:
        answered, _ = await post(
            worker, "/v1/completions", {"prompt": "x"}, headers={"X-Return-Error": kind}
        )

        assert answered == status


async def test_faults_inside_of_an_answer_come_after_its_first_token(run_worker):
    async with run_worker() as worker:
        body = {"prompt": "x", "max_tokens": 500, "stream": True}
        _, text = await post(
            worker, "/v1/completions", body, headers={"X-Return-Error": "stream_error"}
        )
        *tokens, error, done, _ = text.split(b"\n\n")
        with pytest.raises(aiohttp.ClientError):
            await post(worker, "/v1/completions", body, headers={"X-Return-Error": "disconnect"})
        with pytest.raises(aiohttp.ClientError):
            await post(
                worker,
                "/v1/completions",
                {"prompt": "x"},
                headers={"X-Return-Error": "disconnect"},
            )

        assert 1 <= len(tokens) < 500
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 500
        assert done == b"data: [DONE]"
        (rank,) = worker._ranks
        assert rank.num_streams == 0
