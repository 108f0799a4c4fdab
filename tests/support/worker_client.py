"""Asks a worker that runs in the test's own loop: `run_worker` of the worker's tests."""

import json

import aiohttp
import openai


def client_of(worker):
    return openai.AsyncOpenAI(
        base_url=f"{worker.listening.result()}/v1", api_key="x", max_retries=0
    )


async def post(worker, path, body, headers=None):
    async with (
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.post(path, json=body, headers=headers) as response,
    ):
        text = await response.read()
        return response.status, json.loads(
            text
        ) if response.content_type != "text/event-stream" else text


async def complete(worker, **body):
    status, answer = await post(worker, "/v1/completions", {"prompt": "x", "max_tokens": 4} | body)
    assert status == 200, answer
    return answer


async def stream(worker, path="/v1/completions", **body):
    _, text = await post(worker, path, {"max_tokens": 4, "stream": True} | body)
    *chunks, done, rest = text.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks]
