"""benchmarks/live: what makes a row of the comparison with rivals, and what refuses one."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks" / "live"))

import race
import rivals
import stream_client


def event(content: str | None = None, usage: int | None = None) -> bytes:
    choices = [] if usage else [{"delta": {} if content is None else {"content": content}}]
    told = {"prompt_tokens": 128, "completion_tokens": usage} if usage else None
    return b"data: " + json.dumps({"choices": choices, "usage": told}).encode() + b"\n\n"


def test_a_stream_tells_its_tokens_and_its_events_with_text():
    stream = event("") + event("a") + event("b") + event() + event(usage=2) + b"data: [DONE]\n\n"
    assert rivals.read_stream(stream) == rivals.Usage(128, 2, 2)


def test_a_stream_without_usage_is_not_measured():
    with pytest.raises(rivals.LeftOut, match="no usage"):
        rivals.read_stream(event("a") + b"data: [DONE]\n\n")


def test_prompts_differ_between_requests_and_have_the_words_asked_for():
    bodies = [json.loads(rivals.chat_body(number, 119, 64)) for number in range(1000)]
    prompts = [body["messages"][0]["content"] for body in bodies]
    assert len(set(prompts)) == len(prompts)
    assert {len(prompt.split()) for prompt in prompts} == {119}


def row(server: str, cpu_s: dict[str, list[float]], refusal: str = "") -> race.Row:
    return race.Row(server, "fresh", cpu_s, [1.0, 1.0], [0, 0], refusal)


def test_results_pair_rounds_add_parts_and_leave_refused_rows_out():
    rows = [
        row(rivals.OURS, {"worker": [1.0, 3.0]}),
        row("pair", {"a": [1.0, 2.0], "b": [3.0, 4.0]}),
        row("bad", {"server": [1.0]}, "1 of 2 answers failed"),
    ]
    found = {name: samples for name, _, samples in race.results(rows)}
    assert found["fresh: pair, a: CPU per 1,000 tokens"] == [1.0, 2.0]
    assert found["fresh: pair: CPU per 1,000 tokens"] == [4.0, 6.0]
    assert found["fresh: worker: CPU against pair"] == [0.25, 0.5]
    assert not any("bad" in name for name in found)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server whose answers depend on the number of the request: see `ENDS`."""

    async def answer(http: web.Request) -> web.StreamResponse:
        end = ENDS[int(await http.text()) % len(ENDS)]
        if end == "refused":
            return web.Response(status=500, text="no")
        response = web.StreamResponse()
        await response.prepare(http)
        await response.write(event("a"))
        if end == "cut":
            assert http.transport is not None
            http.transport.abort()
            return response
        await response.write(event(usage=64 if end == "whole" else 63) + b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


ENDS = ("whole", "refused", "short", "cut", "whole")


@pytest.mark.parametrize("is_fresh", [True, False])
async def test_failed_answers_are_counted_and_end_no_load(port: int, is_fresh: bool):
    load = stream_client.Load(
        port, lambda number: str(number).encode(), connections=4, requests=20, is_fresh=is_fresh
    )
    load.expects = b'"completion_tokens": 64'
    tally = await load.run()
    assert tally.answers == 8
    assert sorted(tally.failures.values()) == [4, 4, 4]
    reason = race.fault(tally, 20)
    assert reason.startswith("12 of 20 answers failed")
    assert "4 times HTTP/1.1 500 Internal Server Error" in reason
    assert '4 times without "completion_tokens": 64' in reason
    assert "4 times the connection was lost" in reason


async def test_a_server_that_is_gone_fails_every_request():
    load = stream_client.Load(1, lambda _: b"", connections=2, requests=6)
    tally = await load.run()
    assert tally.failures.total() == 6
    assert "no connection" in race.fault(tally, 6)


@pytest.mark.parametrize(
    ("answers", "events", "reason"),
    [(2, 128, ""), (1, 128, "1 answers to 2 requests"), (2, 127, "127 events for 128 tokens")],
)
def test_a_load_counts_when_every_token_came(answers: int, events: int, reason: str):
    assert race.fault(stream_client.Tally(events=events, answers=answers), 2) == reason
