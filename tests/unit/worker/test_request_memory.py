"""What a request leaves must go at once: a prompt can be a megabyte, and collections are rare."""

import contextlib
import gc

import aiohttp
import pytest

from mocker_worker.driver import TokenStream
from mocker_worker.server.choice import Choice
from mocker_worker.server.generation import Generation

KEPT = (Choice, Generation, TokenStream)


def num_kept():
    return sum(isinstance(thing, KEPT) for thing in gc.get_objects())


@contextlib.contextmanager
def no_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, None),
        ({"n": 3, "stop": " the"}, None),
        ({"logprobs": 2, "echo": True}, None),
        ({"max_tokens": 10**9}, None),
        ({}, "stream_error"),
        ({}, "disconnect"),
    ],
    ids=["plain", "stop", "logprobs", "refused", "stream_error", "disconnect"],
)
async def test_a_request_is_forgotten_without_the_collector(run_worker, stream, fields, fault):
    body = {"prompt": "x", "max_tokens": 20, "stream": stream} | fields
    headers = {} if fault is None else {"X-Return-Error": fault}
    async with (
        run_worker() as worker,
        aiohttp.ClientSession(worker.listening.result()) as session,
    ):

        async def ask():
            with contextlib.suppress(aiohttp.ClientError):
                async with session.post("/v1/completions", json=body, headers=headers) as response:
                    await response.read()

        await ask()
        with no_collector():
            before = num_kept()
            for _ in range(5):
                await ask()
            # The connection keeps its latest request.
            assert num_kept() - before < 5
