"""`/openapi.json`: what the worker serves, in OpenAPI 3.1.

Bodies are described by the structs that decode them, so the description cannot fall behind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from mocker_protocol import __version__
from mocker_worker.server import answer_schemas as answers
from mocker_worker.server.admin import AdminChange, AdminConfig
from mocker_worker.server.requests import ChatRequest, CompletionRequest
from mocker_worker.server.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

DESCRIPTION = (
    "A mock inference engine behind vLLM's API. 501 is part of the contract: it answers known "
    "fields that the engine does not do. 503 says that the worker starts or stops, or that its "
    "queue is full (429 by option). Unknown fields are ignored."
)
_JSON = "application/json"
_EVENTS = "text/event-stream"
_TEXT_CONTENT: Mapping[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
_BODY_ERRORS = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_MODEL_ERRORS = (*_BODY_ERRORS, HTTPStatus.NOT_FOUND, HTTPStatus.NOT_IMPLEMENTED)
_TOKEN_ERRORS = (
    *_MODEL_ERRORS,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_UNAVAILABLE = (HTTPStatus.SERVICE_UNAVAILABLE,)


@dataclass(frozen=True, slots=True)
class Operation:
    """One route."""

    method: str
    path: str
    summary: str
    answer: Any = None
    """Type of the JSON answer; `str` for text, None for an answer without a body."""
    body: type | None = None
    errors: Sequence[HTTPStatus] = ()
    """Statuses with a body of `ErrorResponse`; of text, where the answer is no JSON."""
    is_for_tokens: bool = False
    parameters: Sequence[Mapping[str, Any]] = ()


def _header(name: str, text: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"name": name, "in": "header", "description": text, "schema": schema}


_TOKEN_HEADERS = (
    _header("X-Request-Id", "Part of the answer's id.", {"type": "string"}),
    _header("X-data-parallel-rank", "The rank to run on.", {"type": "integer", "minimum": 0}),
    _header(
        "endpoint-load-metrics-format",
        "TEXT or JSON asks for the header endpoint-load-metrics.",
        {"type": "string"},
    ),
)
_RESET_PARAMETER = {
    "name": "reset_running_requests",
    "in": "query",
    "description": "True is answered with 501.",
    "schema": {"type": "boolean", "default": False},
}
OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a chat",
        answers.ChatCompletionResponse,
        ChatRequest,
        _TOKEN_ERRORS,
        is_for_tokens=True,
        parameters=_TOKEN_HEADERS,
    ),
    Operation(
        "post",
        "/v1/completions",
        "Complete prompts",
        answers.CompletionResponse,
        CompletionRequest,
        _TOKEN_ERRORS,
        is_for_tokens=True,
        parameters=_TOKEN_HEADERS,
    ),
    Operation("get", "/v1/models", "List the served model", answers.ModelList),
    Operation("post", "/tokenize", "Tokenize", TokenizeResponse, TokenizeRequest, _MODEL_ERRORS),
    Operation(
        "post", "/detokenize", "Detokenize", DetokenizeResponse, DetokenizeRequest, _MODEL_ERRORS
    ),
    Operation("get", "/admin/config", "Show faults and jitter", AdminConfig),
    Operation(
        "post",
        "/admin/config",
        "Change faults and jitter",
        AdminConfig,
        AdminChange,
        _BODY_ERRORS,
    ),
    Operation(
        "post",
        "/reset_prefix_cache",
        "Forget cached blocks",
        answers.ResetResponse,
        errors=(HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED),
        parameters=(_RESET_PARAMETER,),
    ),
    Operation(
        "get",
        "/kv_event_sources",
        "List ZMQ publishers",
        list[answers.EventSourceResponse],
    ),
    Operation("get", "/server_info", "Show the engine", answers.ServerInfoResponse),
    Operation("get", "/version", "Show the version", answers.VersionResponse),
    Operation("get", "/load", "Count requests in flight", answers.LoadResponse),
    Operation("get", "/metrics", "Show Prometheus metrics", str),
    Operation("get", "/live", "Tell whether the process runs"),
    Operation("get", "/ready", "Tell whether to route here", errors=_UNAVAILABLE),
    Operation("get", "/health", "Tell whether requests are answered", errors=_UNAVAILABLE),
    Operation("get", "/ping", "As /health", errors=_UNAVAILABLE),
    Operation("post", "/ping", "As /health", errors=_UNAVAILABLE),
)
_TEXT_OR_CHAT = [
    {"properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
    {"properties": {"messages": {"type": "array"}}, "required": ["messages"]},
]


def describe(*, needs_key: bool) -> dict[str, Any]:
    """Return the description; `needs_key` says whether `/v1` asks for a bearer token."""
    types: list[Any] = [answers.ErrorResponse, answers.UnauthorizedResponse]
    for operation in OPERATIONS:
        types += [kind for kind in (operation.answer, operation.body) if kind not in (None, str)]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    components["TokenizeRequest"]["anyOf"] = _TEXT_OR_CHAT
    by_type = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        item = _operation(operation, by_type, needs_key=needs_key)
        paths.setdefault(operation.path, {})[operation.method] = item
    bearer = {"bearer": {"type": "http", "scheme": "bearer"}} if needs_key else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mocker-worker", "version": __version__, "description": DESCRIPTION},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": bearer},
    }


def _operation(
    operation: Operation, schemas: Mapping[str, Any], *, needs_key: bool
) -> dict[str, Any]:
    is_guarded = needs_key and operation.path.startswith("/v1")
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method}{operation.path}".replace("/", "_"),
        "responses": _responses(operation, schemas, is_guarded=is_guarded),
    }
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is not None:
        content = {_JSON: {"schema": schemas[str(operation.body)]}}
        described["requestBody"] = {"required": True, "content": content}
    if is_guarded:
        described["security"] = [{"bearer": []}]
    return described


def _responses(
    operation: Operation, schemas: Mapping[str, Any], *, is_guarded: bool
) -> dict[str, Any]:
    error = _TEXT_CONTENT
    responses: dict[str, Any] = {"200": {"description": "OK"}}
    if operation.answer is str:
        responses["200"]["content"] = _TEXT_CONTENT
    elif operation.answer is not None:
        content = {_JSON: {"schema": schemas[str(operation.answer)]}}
        if operation.is_for_tokens:
            content[_EVENTS] = {"schema": {"type": "object"}}
        responses["200"]["content"] = content
        error = {_JSON: {"schema": schemas[str(answers.ErrorResponse)]}}
    responses |= {
        str(status.value): {"description": status.phrase, "content": error}
        for status in operation.errors
    }
    if is_guarded:
        body = {_JSON: {"schema": schemas[str(answers.UnauthorizedResponse)]}}
        responses["401"] = {"description": "Unauthorized", "content": body}
    return responses
