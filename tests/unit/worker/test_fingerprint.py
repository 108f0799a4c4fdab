"""`system_fingerprint`: in whole answers, and in streams on the message that ends them."""

import pytest
from worker_client import complete, post, stream

from mocker_protocol import __version__
from mocker_protocol.engine_args import parse_engine_args
from mocker_worker.config import FingerprintMode, ServerOptions
from mocker_worker.server.fingerprint import system_fingerprint

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": MESSAGES, "max_tokens": 3}
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USAGE = {"include_usage": True}


def of(mode=FingerprintMode.FULL, *, value=None, model="m", **args):
    options = ServerOptions(fingerprint_mode=mode, fingerprint_value=value)
    return system_fingerprint(options, parse_engine_args(args), model)


async def test_whole_answers_carry_it(run_worker):
    async with run_worker() as worker:
        _, chat = await post(worker, CHATS, CHAT)
        completion = await complete(worker)

        assert chat["system_fingerprint"].startswith(f"vllm-{__version__}-")
        assert chat["system_fingerprint"] == completion["system_fingerprint"]


@pytest.mark.parametrize(
    ("path", "body"), [(CHATS, CHAT), (COMPLETIONS, {"prompt": "x"}), (CHATS, CHAT | {"n": 3})]
)
@pytest.mark.parametrize("continuous", [False, True])
async def test_it_is_on_the_usage_chunk_alone_if_there_is_one(run_worker, path, body, continuous):
    async with run_worker() as worker:
        options = USAGE | {"continuous_usage_stats": continuous}
        *tokens, usage = await stream(worker, path, **body, stream_options=options)

        assert usage["choices"] == []
        assert usage["system_fingerprint"].startswith("vllm-")
        assert not any("system_fingerprint" in chunk for chunk in tokens)


@pytest.mark.parametrize("options", [None, {"include_usage": False}])
@pytest.mark.parametrize("more", [{}, {"n": 3}, {"logprobs": 1}, {"stop": " the"}, {"echo": True}])
async def test_else_it_is_on_each_chunk_with_a_finish_reason(run_worker, options, more):
    async with run_worker() as worker:
        chunks = await stream(worker, prompt="x", stream_options=options, **more)

        for chunk in chunks:
            is_last = chunk["choices"][0]["finish_reason"] is not None
            assert ("system_fingerprint" in chunk) == is_last


async def test_a_frontend_that_hides_the_usage_leaves_it_where_its_client_looks(run_worker):
    async with run_worker() as worker:
        *_, last, usage = await stream(
            worker, prompt="x", stream_options=USAGE | {"usage_is_hidden": True}
        )

        assert usage["usage"]["completion_tokens"] == 4
        assert "system_fingerprint" in last
        assert "system_fingerprint" not in usage


async def test_without_one_it_is_null_and_left_out_of_streams(run_worker):
    server = ServerOptions(fingerprint_mode=FingerprintMode.NONE)
    async with run_worker(server=server) as worker:
        answer = await complete(worker)
        chunks = await stream(worker, prompt="x", stream_options=USAGE)
        chunks += await stream(worker, prompt="x")

        assert answer["system_fingerprint"] is None
        assert not any("system_fingerprint" in chunk for chunk in chunks)


def test_it_changes_with_the_backend_and_with_nothing_else():
    assert of() == of()
    assert len({of(), of(model="other"), of(block_size=8), of(max_num_seqs=9)}) == 4


def test_its_modes_are_those_of_vllm():
    version, parallelism, digest = of(dp_size=2).removeprefix("vllm-").split("-")

    assert (version, parallelism, len(digest)) == (__version__, "dp2", 8)
    assert of(FingerprintMode.HASH, dp_size=2) == f"vllm-{__version__}-{digest}"
    assert of(FingerprintMode.CUSTOM, value="mine") == "mine"
    assert of(FingerprintMode.CUSTOM) is None
    assert of(FingerprintMode.NONE) is None
