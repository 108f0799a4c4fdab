"""`mocker-planner` as a shell sees it."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from mocker_protocol.decisions import BUCKET, encode_acknowledgement

pytestmark = pytest.mark.nats
PROGRAM = Path(sys.executable).with_name("mocker-planner")


@pytest.fixture
def run(nats_server):
    async def run(*arguments):
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *arguments,
            env={"NATS_SERVER": nats_server.url},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    return run


async def test_decide_prints_a_readable_line(run):
    code, out, _ = await run("decide", "chat", "-n", "team", "--prefill", "2")
    assert (code, out) == (0, "team/chat: decision 0: prefill=2 decode unchanged\n")


async def test_decide_and_wait_until_scaled(run, nats_client):
    await run("decide", "chat", "--decode", "1")
    waiting = asyncio.create_task(run("decide", "chat", "--decode", "3", "--wait"))
    bucket = await nats_client.jetstream().key_value(BUCKET)
    watcher = await bucket.watch("default.chat")
    async for entry in watcher:
        if entry is not None and b'"decision_id":1' in entry.value:
            break
    await bucket.put("default.chat.scaled", encode_acknowledgement(1))
    code, out, _ = await waiting
    assert code == 0
    assert "decision 1: prefill unchanged decode=3: scaled after " in out


async def test_decide_times_out_with_1(run):
    code, _, err = await run("decide", "chat", "--decode", "3", "--wait", "--timeout-s", "0.1")
    assert code == 1
    assert "was not acknowledged within 0.1 s" in err


async def test_json_output_is_one_object(run):
    code, out, _ = await run("decide", "chat", "--decode", "3", "--output", "json")
    assert code == 0
    assert json.loads(out) == {
        "namespace": "default",
        "name": "chat",
        "decision_id": 0,
        "prefill": None,
        "decode": 3,
        "scaled_decision_id": None,
        "scaled_after_s": None,
    }


async def test_status_follows_the_decision(run, nats_client):
    assert (await run("status", "chat"))[1] == "default/chat: no decision\n"
    await run("decide", "chat", "--decode", "3")
    assert "not scaled yet (last scaled: none yet)" in (await run("status", "chat"))[1]
    bucket = await nats_client.jetstream().key_value(BUCKET)
    await bucket.put("default.chat.scaled", encode_acknowledgement(0))
    assert (await run("status", "chat"))[1].endswith(": scaled\n")


@pytest.mark.parametrize("arguments", [["decide"], ["decide", "c", "--decode", "x"], ["scale"]])
async def test_wrong_usage_exits_with_2(run, arguments):
    assert (await run(*arguments))[0] == 2


async def test_a_negative_count_exits_with_2(run):
    code, _, err = await run("decide", "chat", "--decode", "-1")
    assert (code, "decode" in err) == (2, True)


async def test_no_nats_exits_with_1_and_says_how_to_reach_it(run):
    code, _, err = await run("status", "chat", "--nats-url", "nats://127.0.0.1:1")
    assert code == 1
    assert "port-forward" in err
