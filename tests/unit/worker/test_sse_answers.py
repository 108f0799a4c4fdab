import json

import pytest

from mocker_worker.engine import FinishReason
from mocker_worker.server.answers import AnswerFormat, AnswerHead, Usage, generated_json
from mocker_worker.server.choice import Choice, ChoiceText, Piece, TextOptions
from mocker_worker.server.requests import Prompt, parse_chat, parse_completion
from mocker_worker.server.scripts import RANDOM, CalledTool, Script
from mocker_worker.tokenizer import BuiltinTokenizer

TOKENIZER = BuiltinTokenizer()
TEXTS = generated_json(TOKENIZER)
PROMPT = Prompt((7, 8), "p")
CHAT, COMPLETION = True, False


def format_of(is_chat, *, extra=None, **fields):
    body = {"messages": [{"role": "user", "content": "x"}]} if is_chat else {"prompt": "x"}
    parse = parse_chat if is_chat else parse_completion
    request = parse(json.dumps(body | fields).encode())
    head = AnswerHead(is_chat=is_chat, answer_id='a"1', model="m", created_s=7)
    return AnswerFormat(head, request, TOKENIZER, texts=TEXTS, extra=extra or {})


def plain(index=0, script=RANDOM):
    return Choice(index, PROMPT, script, None)


def events(data: bytes) -> list[dict]:
    assert data.endswith(b"\n\n")
    lines = data.split(b"\n\n")[:-1]
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines)
    return [json.loads(line[6:]) for line in lines]


def test_a_chat_stream_opens_with_the_role():
    (opening,) = events(format_of(CHAT).opening(plain(3), None))

    assert opening["id"] == 'chatcmpl-a"1'
    assert opening["object"] == "chat.completion.chunk"
    assert opening["choices"] == [
        {
            "index": 3,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]


def test_a_completion_stream_has_no_opening():
    assert format_of(COMPLETION).opening(plain(), None) == b""


@pytest.mark.parametrize("is_chat", [CHAT, COMPLETION])
def test_every_token_that_can_be_generated_has_an_event_of_its_own(is_chat):
    ids = range(100, 201)
    plain_events = format_of(is_chat).plain(plain())

    seen = events(plain_events.of(ids))

    assert len(seen) == 101
    for token_id, event in zip(ids, seen, strict=True):
        choice = event["choices"][0]
        text = choice["delta"]["content"] if is_chat else choice["text"]
        assert text == TOKENIZER.decode([token_id])
        assert choice["finish_reason"] is None


@pytest.mark.parametrize("is_chat", [CHAT, COMPLETION])
def test_plain_events_are_those_that_are_made_one_by_one(is_chat):
    answer_format, choice = format_of(is_chat, extra={"y": 2}), plain(1)
    token_ids = [100, 150, 200]

    expected = [
        answer_format.piece(choice, Piece(text, (token_id,), (), 0, reason), None)
        for token_id, text, reason in (
            (100, TOKENIZER.decode([100]), None),
            (150, TOKENIZER.decode([150]), None),
            (200, TOKENIZER.decode([200]), "length"),
        )
    ]

    assert answer_format.plain(choice).of(token_ids, FinishReason.LENGTH) == b"".join(expected)
    assert answer_format.plain(choice).of([200], FinishReason.LENGTH) == expected[2]


def test_the_last_event_carries_finish_reason_and_hand_off():
    writer = format_of(CHAT, extra={"kv_transfer_params": {"x": 1}}).plain(plain())

    assert "kv_transfer_params" not in events(writer.of([100]))[0]
    (last,) = events(writer.of([100], FinishReason.LENGTH))
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["choices"][0]["stop_reason"] is None
    assert last["kv_transfer_params"] == {"x": 1}


def test_the_usage_event_has_no_choices():
    (event,) = events(format_of(CHAT).usage(Usage(3, 2, 1)))

    assert event["choices"] == []
    assert event["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_events_have_usage_only_if_it_is_given():
    answer_format, piece = format_of(CHAT), Piece(" a", (100,), (), 0)

    (without,) = events(answer_format.piece(plain(), piece, None))
    (with_usage,) = events(answer_format.piece(plain(), piece, Usage(3, 2, 1)))
    assert "usage" not in without
    assert with_usage["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("is_chat", "kind"), [(CHAT, "chat.completion"), (False, "text_completion")]
)
def test_a_whole_answer_has_text_usage_and_finish_reason(is_chat, kind):
    choice = plain()
    choice.token_ids, choice.finish_reason = [100, 101], "length"
    body = json.loads(format_of(is_chat, extra={"y": 2}).whole([choice], Usage(1, 2, 0)))

    (answer,) = body["choices"]
    assert body["object"] == kind
    assert (answer["message"]["content"] if is_chat else answer["text"]) == " the of"
    assert answer["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 3
    assert body["y"] == 2


def test_a_scripted_answer_is_decoded_over_the_borders_of_its_tokens():
    text = "Grüße, 世界 🙂"
    script = Script(TOKENIZER.encode(text))
    options = TextOptions.of(parse_completion(b'{"prompt":"x"}'), TOKENIZER)
    pieces = ChoiceText(options, script, None)

    *most, last = script.token_ids
    pushed = [pieces.push(token_id) for token_id in most]
    pushed.append(pieces.push(last, FinishReason.STOP))

    assert "".join(piece.text for piece in pushed) == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(piece.text for piece in pushed)
    assert pushed[-1].finish_reason == "stop"


def test_a_tool_call_names_the_function_first_and_then_its_arguments():
    script = Script(TOKENIZER.encode('{"a":1}'), CalledTool("call_1", "f"))
    options = TextOptions.of(parse_completion(b'{"prompt":"x"}'), TOKENIZER)
    choice = Choice(0, PROMPT, script, ChoiceText(options, script, None))
    answer_format = format_of(CHAT)

    (opening,) = events(answer_format.opening(choice, None))
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    pieces = choice.read(script.token_ids, FinishReason.STOP)
    chunks = [events(answer_format.piece(choice, piece, None))[0] for piece in pieces]

    deltas = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks]
    assert deltas[0] == {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "f", "arguments": deltas[0]["function"]["arguments"]},
    }
    assert all(delta.keys() == {"index", "function"} for delta in deltas[1:])
    assert "".join(delta["function"]["arguments"] for delta in deltas) == '{"a":1}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
