"""What a client can ask of an answer, asked with the real openai client where that can."""

import asyncio
import math

import pytest
from worker_client import client_of, complete, post, stream

UNIFORM = -math.log(101)
MESSAGES = [{"role": "user", "content": "Tell me of the river."}]


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


async def test_stop_strings_count_behind_the_fewest_tokens_and_stop_tokens_with_them(run_worker):
    """vLLM counts one token more before it looks for strings."""
    async with run_worker() as worker:
        whole = await complete(worker, seed=1, max_tokens=40, return_token_ids=True)
        token_ids = whole["choices"][0]["token_ids"]
        position = next(i for i, t in enumerate(token_ids) if i > 5 and t not in token_ids[:i])
        word = whole["choices"][0]["text"].split()[position]
        tokens = {}
        for least in (position, position + 1):
            for stop in ({"stop": f" {word}"}, {"stop_token_ids": [token_ids[position]]}):
                body = {"seed": 1, "max_tokens": 40, "min_tokens": least} | stop
                answer = await complete(worker, **body)
                tokens[least - position, *stop] = answer["usage"]["completion_tokens"]

        assert tokens[0, "stop"] == tokens[0, "stop_token_ids"] == position + 1
        assert tokens[1, "stop_token_ids"] == position + 1
        assert tokens[1, "stop"] > position + 1


async def test_a_script_is_never_longer_than_the_cache(run_worker):
    """What would be refused anyway must not be written out before."""
    script = {"response_format": {"type": "json_object"}, "messages": MESSAGES}
    async with run_worker() as worker:
        for fields in ({"ignore_eos": True}, {"min_tokens": 2**61}):
            status, answer = await post(
                worker, "/v1/chat/completions", script | fields | {"max_tokens": 2**62}
            )

            assert (status, answer["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("limit", [{}, {"max_model_len": 100}])
async def test_min_tokens_beyond_the_answer_that_nobody_limited_are_refused(run_worker, limit):
    async with run_worker(**limit) as worker:
        body = {"messages": MESSAGES, "min_tokens": 129}
        status, answer = await post(worker, "/v1/chat/completions", body)

        assert (status, answer["error"]["param"]) == (400, "min_tokens")


async def test_an_answer_that_nobody_limited_ends_with_the_cache(run_worker):
    async with run_worker(num_gpu_blocks=20) as worker:
        status, answer = await post(worker, "/v1/chat/completions", {"messages": MESSAGES})

        assert status == 200
        assert answer["usage"]["total_tokens"] == 80


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


@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_a_prompt_whose_tokens_are_told_is_not_echoed_as_text(run_worker, max_tokens):
    """As in vLLM, which has the prompt in `prompt_token_ids` and in the log probabilities only."""
    async with run_worker() as worker:
        options = {"prompt": [100, 101], "max_tokens": max_tokens, "seed": 1}
        options |= {"echo": True, "logprobs": 1}
        whole = await complete(worker, return_token_ids=True, **options)
        chunks = await stream(worker, return_token_ids=True, **options)

        (choice,) = whole["choices"]
        first, *_ = streamed = [chunk["choices"][0] for chunk in chunks]
        assert len(choice["text"].split()) == len(choice["token_ids"]) == max_tokens
        assert len(choice["logprobs"]["tokens"]) == 2 + max_tokens
        assert choice["prompt_token_ids"] == first["prompt_token_ids"] == [100, 101]
        assert len([token for item in streamed for token in item["token_ids"]]) == max_tokens
        offsets = [offset for item in streamed for offset in item["logprobs"]["text_offset"]]
        assert offsets == choice["logprobs"]["text_offset"]


async def test_text_that_is_held_back_for_a_stop_string_moves_no_offset(run_worker):
    async with run_worker() as worker:
        options = {"prompt": "x", "seed": 5, "max_tokens": 60, "logprobs": 0, "stop": [" where"]}
        whole = await complete(worker, **options)
        chunks = await stream(worker, **options)

        offsets = [at for chunk in chunks for at in chunk["choices"][0]["logprobs"]["text_offset"]]
        assert offsets == whole["choices"][0]["logprobs"]["text_offset"]


async def test_without_alternatives_a_completion_tells_of_its_own_tokens(run_worker):
    async with run_worker() as worker:
        logprobs = (await complete(worker, logprobs=0))["choices"][0]["logprobs"]

        assert logprobs["top_logprobs"] == [
            {token: pytest.approx(UNIFORM)} for token in logprobs["tokens"]
        ]


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


async def test_a_prompt_can_be_truncated_from_the_right(run_worker):
    async with run_worker() as worker:
        answer = await complete(
            worker,
            prompt=list(range(30)),
            truncate_prompt_tokens=5,
            truncation_side="right",
            return_token_ids=True,
        )

        assert answer["choices"][0]["prompt_token_ids"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("keep", [-1, 14, 15, 99])
async def test_a_truncated_prompt_leaves_room_for_its_answer(run_worker, keep):
    async with run_worker(max_model_len=20) as worker:
        body = {"prompt": list(range(30)), "truncate_prompt_tokens": keep, "max_tokens": 6}
        status, answer = await post(worker, "/v1/completions", body)

        if keep > 14:
            assert (status, answer["error"]["param"]) == (400, "truncate_prompt_tokens")
        else:
            assert answer["usage"]["prompt_tokens"] == 14
