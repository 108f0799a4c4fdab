"""Answers of a form that was asked for: tool calls, JSON, echoes; and those that are refused."""

import asyncio
import json
from http import HTTPStatus

import aiohttp
import pytest
from waiting import PATIENCE_S
from worker_client import client_of, complete, post, stream

from mocker_worker.config import Mode, ServerOptions

MESSAGES = [{"role": "user", "content": "Tell me of the river."}]
CHAT = {"messages": MESSAGES}
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


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("auto", "tool_calls"),
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "weather"}}, "stop"),
    ],
)
async def test_a_tool_call_has_arguments_of_the_schema(run_worker, choice, reason):
    async with run_worker() as worker, client_of(worker) as client:
        asked = {"model": "mock", "messages": MESSAGES, "tools": [TOOL], "tool_choice": choice}
        answer = await client.chat.completions.create(**asked)
        deltas = [
            chunk.choices[0]
            async for chunk in await client.chat.completions.create(**asked, stream=True)
        ]

        (call,) = answer.choices[0].message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert answer.choices[0].finish_reason == deltas[-1].finish_reason == reason
        opening, *parts = deltas
        assert (opening.delta.role, opening.delta.content) == ("assistant", "")
        assert call.function.name == parts[0].delta.tool_calls[0].function.name == "weather"
        assert isinstance(arguments["city"], str)
        assert arguments.get("days", 1) >= 1
        streamed = "".join(item.delta.tool_calls[0].function.arguments for item in parts)
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


async def test_completions_take_response_formats_too(run_worker):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    formats = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with run_worker() as worker:
        answer = await complete(worker, max_tokens=50, response_format=formats)
        text = await complete(worker, max_tokens=5, response_format={"type": "text"})

        assert isinstance(json.loads(answer["choices"][0]["text"])["n"], int)
        assert text["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    ("kind", "status"), [("structural_tag", 501), ("xml", 400), (None, 400), (3, 400)]
)
async def test_response_formats_that_are_none_or_not_done_are_refused(run_worker, kind, status):
    async with run_worker() as worker:
        for path, said in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", CHAT)):
            body = said | {"response_format": {"type": kind}}
            answered, error = await post(worker, path, body)

            assert (answered, error["error"]["param"]) == (status, "response_format")


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
                async with asyncio.timeout(PATIENCE_S):
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


@pytest.mark.parametrize("max_tokens", [1, 500])
async def test_faults_inside_of_an_answer_come_after_its_first_token(run_worker, max_tokens):
    async with run_worker() as worker:
        body = {"prompt": "x", "max_tokens": max_tokens, "stream": True}
        _, text = await post(
            worker, "/v1/completions", body, headers={"X-Return-Error": "stream_error"}
        )
        token, error, done, _ = text.split(b"\n\n")
        with pytest.raises(aiohttp.ClientError):
            await post(worker, "/v1/completions", body, headers={"X-Return-Error": "disconnect"})
        with pytest.raises(aiohttp.ClientError):
            await post(
                worker,
                "/v1/completions",
                {"prompt": "x"},
                headers={"X-Return-Error": "disconnect"},
            )

        (choice,) = json.loads(token.removeprefix(b"data: "))["choices"]
        assert choice["text"]
        assert choice["finish_reason"] is None
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 500
        assert done == b"data: [DONE]"
        (rank,) = worker._ranks
        assert rank.num_streams == 0
