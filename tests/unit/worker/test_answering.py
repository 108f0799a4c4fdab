import asyncio
import json

from aiohttp import HttpVersion10, HttpVersion11
from waiting import PATIENCE_S

from mocker_worker.engine import FinishReason
from mocker_worker.server.answering import StreamedAnswer, WholeAnswer
from mocker_worker.server.answers import DONE, AnswerFormat, AnswerHead, generated_json
from mocker_worker.server.choice import Choice, ChoiceText, TextOptions
from mocker_worker.server.requests import Prompt, parse_completion
from mocker_worker.server.scripts import RANDOM
from mocker_worker.tokenizer import BuiltinTokenizer

TOKENIZER = BuiltinTokenizer()


class Connection:
    """Stands for aiohttp's request, response and transport; keeps what is written."""

    def __init__(self, version=HttpVersion11):
        self.version = version
        self.transport = self
        self.raw = b""
        self.by_aiohttp = b""
        self.is_gone = False

    async def prepare(self, http):
        await asyncio.sleep(0)

    def is_closing(self):
        return self.is_gone

    def write(self, data):
        self.raw += data


class Response(Connection):
    async def write(self, data):
        self.by_aiohttp += data
        await asyncio.sleep(0)


def answer_of(*, choices=1, breaks=False, **fields):
    request = parse_completion(json.dumps({"prompt": "x"} | fields).encode())
    options = TextOptions.of(request, TOKENIZER)
    prompt = Prompt((7,), "x")
    made = [
        Choice(index, prompt, RANDOM, None if options.is_plain else ChoiceText(options, RANDOM))
        for index in range(choices)
    ]
    finished = []
    head = AnswerHead(is_chat=False, answer_id="a", model="m", created_s=7)
    texts = generated_json(TOKENIZER)
    answer_format = AnswerFormat(head, request, TOKENIZER, texts=texts, extra={})
    if request.stream:
        answer = StreamedAnswer(
            made, finished.append, answer_format, continuous_usage=False, breaks=breaks
        )
    else:
        answer = WholeAnswer(made, finished.append)
    return answer, answer_format, finished


def texts_of(events):
    chunks = [json.loads(event[6:]) for event in events.removesuffix(DONE).split(b"\n\n") if event]
    return [chunk["choices"][0]["text"] for chunk in chunks]


async def test_a_stop_string_ends_a_choice_before_the_head_of_the_response_is_written():
    """Tokens of several passes may wait for it; what comes after the string changes nothing."""
    answer, _, finished = answer_of(stream=True, stop=" of")
    (choice,) = answer.choices
    for token_id in (100, 101, 102, 103):  # the of and to
        choice.take([token_id], None)
    assert finished == [choice]
    response = Response()
    async with asyncio.timeout(PATIENCE_S):
        await answer.begin(Connection(), response)
        events = await answer.end(include_usage=False)

    assert "".join(texts_of(response.by_aiohttp + events)) == " the"
    assert choice.num_tokens == 2


async def test_tokens_that_come_while_the_head_is_written_follow_it():
    answer, _, _ = answer_of(stream=True)
    (choice,) = answer.choices
    http, response = Connection(), Response()
    choice.take([100], None)
    begin = asyncio.create_task(answer.begin(http, response))
    await asyncio.sleep(0)
    choice.take([101], None)
    await begin
    choice.take([102], None)
    choice.take([103], FinishReason.LENGTH)
    end = await answer.end(include_usage=False)

    chunks = http.raw.split(b"\r\n")
    assert [int(size, 16) for size in chunks[:-1:2]] == [len(data) for data in chunks[1::2]]
    assert texts_of(response.by_aiohttp + b"".join(chunks[1::2]) + end) == [
        " the",
        " of",
        " and",
        " to",
    ]


async def test_tokens_behind_a_stop_string_write_nothing_while_other_choices_go_on():
    """An empty chunk is the end of a response."""
    answer, _, finished = answer_of(stream=True, choices=2, stop=" of")
    stopped, other = answer.choices
    http, response = Connection(), Response()
    other.take([100], None)
    begin = asyncio.create_task(answer.begin(http, response))
    while not response.by_aiohttp:  # noqa: ASYNC110 - nothing announces that the write began
        await asyncio.sleep(0)
    stopped.take([101], None)
    stopped.take([102], None)
    await begin
    other.take([103], FinishReason.LENGTH)
    end = await answer.end(include_usage=False)

    assert [int(size, 16) for size in http.raw.split(b"\r\n")[:-1:2]].count(0) == 0
    assert finished == [stopped, other]
    assert texts_of(end)[-1].endswith(" to")


async def test_a_stream_that_is_to_break_tells_one_token():
    answer, _, _ = answer_of(stream=True, breaks=True)
    (choice,) = answer.choices
    response = Response()
    choice.take([100, 101], None)
    begin = asyncio.create_task(answer.begin(Connection(), response))
    choice.take([102], None)
    while not response.by_aiohttp:  # noqa: ASYNC110 - nothing announces that the write began
        await asyncio.sleep(0)
    choice.take([103], FinishReason.LENGTH)
    await begin

    assert texts_of(response.by_aiohttp) == [" the"]


async def test_a_client_of_http_1_0_gets_no_chunks():
    answer, _, _ = answer_of(stream=True)
    (choice,) = answer.choices
    http = Connection(HttpVersion10)
    choice.take([100], None)
    await answer.begin(http, Response())
    choice.take([101], None)

    assert texts_of(http.raw) == [" of"]


async def test_nothing_is_written_to_a_client_that_has_left():
    answer, _, _ = answer_of(stream=True)
    (choice,) = answer.choices
    http = Connection()
    choice.take([100], None)
    await answer.begin(http, Response())
    http.is_gone = True
    choice.take([101], None)

    assert http.raw == b""


async def test_a_whole_answer_waits_for_the_slowest_of_its_choices():
    answer, answer_format, finished = answer_of(choices=2)
    first, second = answer.choices
    first.take([100, 101], FinishReason.LENGTH)
    waiting = asyncio.create_task(answer.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    second.take([102], None)
    second.take([103], FinishReason.LENGTH)
    await asyncio.wait_for(waiting, PATIENCE_S)

    body = json.loads(answer_format.whole(answer.choices, answer.usage()))
    assert [choice["text"] for choice in body["choices"]] == [" the of", " and to"]
    assert body["usage"]["completion_tokens"] == 4
    assert body["usage"]["prompt_tokens"] == 1
    assert len(finished) == 2
