"""A prefill and a decode worker behind a frontend answer as one aggregated worker does."""

import asyncio
import contextlib
import json

import pytest
from local_worker import local_worker_config
from waiting import PATIENCE_S

from mocker_worker.serve import Worker

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
CASES = {
    "several answers with stop strings": (COMPLETIONS, {"n": 3, "stop": [" th", " i"]}),
    "stop strings and log probabilities": (COMPLETIONS, {"stop": " th", "logprobs": 2}),
    "echo and log probabilities": (COMPLETIONS, {"echo": True, "logprobs": 1}),
    "the echo alone": (COMPLETIONS, {"echo": True, "max_tokens": 0}),
    "several prompts": (COMPLETIONS, {"prompt": ["a", [5, 6], "c"], "n": 2}),
    "token ids": (COMPLETIONS, {"return_token_ids": True, "max_tokens": 5}),
    "one token": (COMPLETIONS, {"max_tokens": 1}),
    "stop tokens": (COMPLETIONS, {"stop_token_ids": list(range(100, 150)), "min_tokens": 9}),
    "no end": (CHATS, CHAT | {"response_format": FORM, "ignore_eos": True}),
    "a cut prompt": (COMPLETIONS, {"prompt": list(range(90)), "truncate_prompt_tokens": 9}),
    "the longest prompt": (COMPLETIONS, {"prompt": list(range(60)), "max_tokens": 40}),
    "too long a prompt": (COMPLETIONS, {"prompt": list(range(61)), "max_tokens": 40}),
    "tools": (CHATS, CHAT | {"tools": [TOOL], "n": 2}),
    "JSON": (CHATS, CHAT | {"response_format": FORM, "logprobs": True}),
}


@contextlib.asynccontextmanager
async def running_worker(**args):
    """Run a worker of a role; gives its URL."""
    args = {"speedup_ratio": 0, "block_size": 4, "max_model_len": 100} | args
    config = local_worker_config(args, drain_timeout_s=PATIENCE_S)
    worker = Worker(config)
    running = asyncio.create_task(worker.run())
    try:
        yield await worker.listening
    finally:
        worker.lifecycle.request_stop()
        async with asyncio.timeout(PATIENCE_S):
            await running


@pytest.fixture
async def frontends(stack, start_frontend):
    """One with a pair of workers, and one with a worker for both."""
    whole, prefill, decode = [
        await stack.enter_async_context(running_worker(**role))
        for role in ({}, {"is_prefill": True}, {"is_decode": True})
    ]
    return (
        await start_frontend(prefill=[prefill], decode=[decode]),
        await start_frontend(aggregated=[whole]),
    )


def of_choices(answer):
    """Return what choices say: of a whole answer, or of the events of a stream."""
    chunks = answer if isinstance(answer, list) else [answer]
    said = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        message = choice.get("message") or choice.get("delta") or {}
        calls = message.get("tool_calls") or []
        text = choice.get("text") or message.get("content") or ""
        found = said.setdefault(choice["index"], ["", "", None, []])
        found[0] += text
        found[1] += "".join(call["function"]["arguments"] for call in calls)
        found[2] = choice["finish_reason"]
        found[3] += choice.get("token_ids") or []
    return said


async def ask(frontend, path, body):
    """Return the status, and the whole answer or all events of a stream."""
    async with frontend.session.post(frontend.url + path, json=body) as response:
        text = await response.text()
        if not body.get("stream") or response.status != 200:
            return response.status, json.loads(text)
    *events, done = [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]
    assert done == "[DONE]"
    return 200, [json.loads(event) for event in events]


@pytest.mark.parametrize("case", CASES)
async def test_both_give_the_same_answer_whole_and_in_streams(frontends, case):
    path, body = CASES[case]
    defaults = {"seed": 5, "max_tokens": 40} | ({"prompt": "hi"} if path == COMPLETIONS else {})
    body = defaults | body
    status, expected = await ask(frontends[1], path, body)
    for frontend in frontends:
        assert (await ask(frontend, path, body))[0] == status
        for options in (None, {"include_usage": True}):
            streaming = body | {"stream": True, "stream_options": options}
            got, chunks = await ask(frontend, path, streaming)
            if status != 200:
                assert (got, chunks) == (status, expected)
                continue
            assert of_choices(chunks) == of_choices(expected)
            ends = [chunk for chunk in chunks if "system_fingerprint" in chunk]
            if options is None:
                assert all(chunk["choices"][0]["finish_reason"] for chunk in ends)
                assert len(ends) == len(expected["choices"])
            else:
                assert ends == chunks[-1:]
                counted = ("prompt_tokens", "completion_tokens", "total_tokens")
                usage = chunks[-1]["usage"]
                assert [usage[key] for key in counted] == [
                    expected["usage"][key] for key in counted
                ]
