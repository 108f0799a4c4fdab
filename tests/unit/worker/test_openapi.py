import json

import aiohttp
import msgspec
import pytest

from mocker_worker.config import ServerOptions
from mocker_worker.server.answer_schemas import ErrorResponse
from mocker_worker.server.openapi import OPERATIONS, describe

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALLS = [
    ("get", "/v1/models", None, 200),
    ("post", "/v1/completions", {"prompt": ["a", "b"], "n": 2, "logprobs": 2}, 200),
    ("post", "/v1/completions", {"prompt": [1, 2], "return_token_ids": True}, 200),
    ("post", "/v1/completions", {"prompt": "a", "echo": True, "prompt_logprobs": 1}, 200),
    ("post", "/v1/completions", {"prompt": 1}, 400),
    ("post", "/v1/completions", {"prompt": "a", "suffix": "b"}, 501),
    ("post", "/v1/chat/completions", CHAT, 200),
    ("post", "/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}, 200),
    ("post", "/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "required"}, 200),
    ("post", "/v1/chat/completions", CHAT | {"model": "other"}, 404),
    ("post", "/tokenize", {"prompt": "a", "return_token_strs": True}, 200),
    ("post", "/tokenize", CHAT, 200),
    ("post", "/tokenize", {}, 400),
    ("post", "/detokenize", {"tokens": [1, 100]}, 200),
    ("get", "/admin/config", None, 200),
    ("post", "/admin/config", {"latency_jitter": 0.1}, 200),
    ("post", "/admin/config", {"latency_jitter": 7}, 400),
    ("post", "/reset_prefix_cache", None, 200),
    ("get", "/kv_event_sources", None, 200),
    ("get", "/server_info", None, 200),
    ("get", "/version", None, 200),
    ("get", "/load", None, 200),
    ("get", "/metrics", None, 200),
    ("get", "/health", None, 200),
    ("get", "/ready", None, 200),
    ("get", "/live", None, 200),
    ("post", "/ping", None, 200),
]


def operation_of(method, path):
    """Return what is described for a route."""
    return next(item for item in OPERATIONS if (item.method, item.path) == (method, path))


@pytest.mark.parametrize(("method", "path", "request_body", "status"), CALLS)
async def test_answers_are_as_described(run_worker, method, path, request_body, status):
    async with (
        run_worker() as worker,
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.request(method, path, json=request_body) as response,
    ):
        body = await response.read()
        content_type = response.content_type

    operation = operation_of(method, path)
    answers = describe(needs_key=False)["paths"][path][method]["responses"]
    assert response.status == status
    assert str(status) in answers
    if operation.answer is None:
        assert body == b""
        return
    assert content_type in answers[str(status)]["content"]
    if content_type == "application/json":
        msgspec.json.decode(body, type=operation.answer if status == 200 else ErrorResponse)


async def test_the_description_is_served(run_worker):
    async with (
        run_worker() as worker,
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.get("/openapi.json") as response,
    ):
        assert await response.json() == json.loads(msgspec.json.encode(describe(needs_key=False)))


async def test_every_route_is_described(run_worker):
    async with run_worker() as worker:
        described = {
            (method.upper(), path)
            for path, methods in describe(needs_key=False)["paths"].items()
            for method in methods
        }
        served = {
            (route.method, route.resource.canonical)
            for route in worker._app().router.routes()
            if route.method != "HEAD"
        }

        assert served - {("GET", "/openapi.json")} == described


def test_bodies_are_described_by_the_structs_that_decode_them():
    description = describe(needs_key=False)
    schemas = description["components"]["schemas"]

    assert description["openapi"] == "3.1.0"
    assert schemas["ChatRequest"]["required"] == ["messages"]
    assert {"stream", "max_tokens", "seed", "n"} <= set(schemas["CompletionRequest"]["properties"])
    assert schemas["AdminChange"]["additionalProperties"] is False


def test_references_lead_somewhere():
    description = describe(needs_key=True)
    names = set(description["components"]["schemas"])
    text = json.dumps(description)
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}

    assert used <= names


async def test_with_keys_only_v1_asks_for_one(run_worker):
    async with (
        run_worker(server=ServerOptions(api_keys=("k",))) as worker,
        aiohttp.ClientSession(worker.listening.result()) as session,
        session.get("/openapi.json") as response,
    ):
        paths = (await response.json())["paths"]

    assert paths["/v1/completions"]["post"]["security"] == [{"bearer": []}]
    assert "401" in paths["/v1/completions"]["post"]["responses"]
    assert "security" not in paths["/tokenize"]["post"]
