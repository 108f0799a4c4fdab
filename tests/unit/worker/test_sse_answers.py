import json

import pytest

from mocker_worker.server.answers import AnswerHead, ChunkWriter, Usage, full_answer

CHAT = AnswerHead(is_chat=True, answer_id='a"1', model="m", created_s=7)
COMPLETION = AnswerHead(is_chat=False, answer_id="b", model="m", created_s=7)


def event(chunk: bytes) -> dict:
    assert chunk.startswith(b"data: ")
    assert chunk.endswith(b"\n\n")
    assert chunk.count(b"\n") == 2
    return json.loads(chunk[6:])


def test_a_chat_stream_opens_with_the_role():
    opening = event(ChunkWriter(CHAT, extra={}).opening())

    assert opening["id"] == 'chatcmpl-a"1'
    assert opening["object"] == "chat.completion.chunk"
    assert opening["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]


def test_a_completion_stream_has_no_opening():
    assert ChunkWriter(COMPLETION, extra={}).opening() == b""


@pytest.mark.parametrize("head", [CHAT, COMPLETION])
def test_every_generated_token_is_a_chunk_of_valid_json(head):
    writer = ChunkWriter(head, extra={})

    for token_id in (100, 150, 200, 3):
        choice = event(writer.token(token_id))["choices"][0]
        text = choice["delta"]["content"] if head.is_chat else choice["text"]
        assert text
        assert choice["finish_reason"] is None


def test_the_last_chunk_carries_finish_reason_and_hand_off():
    writer = ChunkWriter(CHAT, extra={"kv_transfer_params": {"x": 1}})

    assert "kv_transfer_params" not in event(writer.token(100))
    last = event(writer.token(100, "length"))
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["kv_transfer_params"] == {"x": 1}


def test_the_usage_chunk_has_no_choices():
    chunk = event(ChunkWriter(CHAT, extra={}).usage(Usage(3, 2, 1)))

    assert chunk["choices"] == []
    assert chunk["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_chunks_have_usage_only_for_continuous_statistics():
    writer = ChunkWriter(CHAT, extra={})

    assert "usage" not in event(writer.token(100))
    assert event(writer.token(100, usage=Usage(3, 2, 1)))["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("head", "kind"), [(CHAT, "chat.completion"), (COMPLETION, "text_completion")]
)
def test_a_full_answer_has_text_usage_and_finish_reason(head, kind):
    body = json.loads(
        full_answer(head, [100, 101], finish_reason="length", usage=Usage(1, 2, 0), extra={"y": 2})
    )

    choice = body["choices"][0]
    assert body["object"] == kind
    assert (choice["message"]["content"] if head.is_chat else choice["text"]) == " the of"
    assert choice["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 3
    assert body["y"] == 2
