"""Tools are part of a chat's prompt, as in the templates of models: in front, whatever follows."""

import pytest
from worker_client import post

CHATS = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def tool(name="look", **function):
    return {"type": "function", "function": {"name": name, "description": "Look at it"} | function}


async def tokens_of(worker, **body):
    _, answer = await post(worker, "/tokenize", {"messages": MESSAGES} | body)
    return answer["tokens"]


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "none"}, {"tool_choice": "required"}])
async def test_a_chat_has_the_tokens_that_tokenize_tells(run_worker, choice):
    async with run_worker() as worker:
        chat = {"messages": MESSAGES, "tools": [tool(), tool("go")]}
        tokens = await tokens_of(worker, **chat)
        _, answer = await post(
            worker, CHATS, chat | choice | {"max_tokens": 2, "return_token_ids": True}
        )

        assert answer["prompt_token_ids"] == tokens
        assert answer["usage"]["prompt_tokens"] == len(tokens)
        assert len(tokens) > len(await tokens_of(worker)) + 20


async def test_they_stand_in_front_in_one_form(run_worker):
    async with run_worker() as worker:
        swapped = {"function": {"description": "Look at it", "name": "look"}, "type": "function"}
        tokens = await tokens_of(worker, tools=[tool()])
        _, text = await post(worker, "/detokenize", {"tokens": tokens})

        assert tokens == await tokens_of(worker, tools=[swapped])
        assert text["prompt"] == (
            '<|tools|>\n{"function": {"description": "Look at it", "name": "look"}, '
            '"type": "function"}<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n'
        )


@pytest.mark.parametrize("tools", [None, []])
async def test_without_any_the_prompt_is_as_it_was(run_worker, tools):
    async with run_worker() as worker:
        assert await tokens_of(worker, tools=tools) == await tokens_of(worker)
        _, answer = await post(
            worker, CHATS, {"messages": MESSAGES, "tools": tools, "max_tokens": 1}
        )
        assert answer["usage"]["prompt_tokens"] == len(await tokens_of(worker))


async def test_chats_with_the_same_tools_share_their_blocks(run_worker):
    async with run_worker() as worker:
        cached = []
        for question, name in (("Hi", "look"), ("What else is there?", "look"), ("Hi", "go")):
            chat = {
                "messages": [{"role": "user", "content": question}],
                "tools": [tool(name)],
                "max_tokens": 1,
            }
            _, answer = await post(worker, CHATS, chat)
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        shared = len(await tokens_of(worker, tools=[tool()])) - len(await tokens_of(worker))
        assert cached[0] == 0
        assert cached[1] >= shared - 8
        assert cached[2] < shared - 8


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"tools": [{"type": "x"}]}, 400, "tools"),
        ({"tools": [{"type": "custom"}]}, 501, "tools"),
        ({"tools": "look"}, 400, "tools"),
        ({"continue_final_message": True}, 501, "continue_final_message"),
        ({"chat_template": "{{ messages }}"}, 501, "chat_template"),
    ],
)
@pytest.mark.parametrize("path", ["/tokenize", CHATS])
async def test_what_cannot_be_rendered_is_refused_alike(run_worker, path, body, status, param):
    async with run_worker() as worker:
        got, answer = await post(worker, path, {"messages": MESSAGES} | body)

        assert (got, answer["error"]["param"]) == (status, param)
