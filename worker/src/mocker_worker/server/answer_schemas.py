"""What answers look like, for the OpenAPI description; the answers themselves are not made here.

Fields that appear on request only have a default.
"""

from typing import Any

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True):
    """An error as vLLM describes it."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorResponse(msgspec.Struct, frozen=True):
    """Body of every error but 401."""

    error: ErrorDetail


class UnauthorizedResponse(msgspec.Struct, frozen=True):
    """Body of 401."""

    error: str


class ModelPermission(msgspec.Struct, frozen=True):
    """What clients may do with the model."""

    id: str
    object: str
    created: int
    allow_create_engine: bool
    allow_sampling: bool
    allow_logprobs: bool
    allow_search_indices: bool
    allow_view: bool
    allow_fine_tuning: bool
    organization: str
    group: str | None
    is_blocking: bool


class ModelCard(msgspec.Struct, frozen=True):
    """The served model."""

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    permission: list[ModelPermission]


class ModelList(msgspec.Struct, frozen=True):
    """Answer of `/v1/models`."""

    object: str
    data: list[ModelCard]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class UsageInfo(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class CompletionChoice(msgspec.Struct, frozen=True):
    """One answer to a prompt."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Any] | None = None


class CompletionResponse(msgspec.Struct, frozen=True):
    """Answer of `/v1/completions` without stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str | None
    usage: UsageInfo
    kv_transfer_params: dict[str, Any] | None = None
    disaggregated_params: Any = None


class ChatMessage(msgspec.Struct, frozen=True):
    """What the assistant says."""

    role: str
    content: str | None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer to a chat."""

    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class ChatCompletionResponse(msgspec.Struct, frozen=True):
    """Answer of `/v1/chat/completions` without stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    system_fingerprint: str | None
    usage: UsageInfo
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    disaggregated_params: Any = None


class VersionResponse(msgspec.Struct, frozen=True):
    """Answer of `/version`."""

    version: str


class LoadResponse(msgspec.Struct, frozen=True):
    """Answer of `/load`."""

    server_load: int


class ResetResponse(msgspec.Struct, frozen=True):
    """Answer of `/reset_prefix_cache`: whether all ranks forgot their blocks."""

    reset: bool


class EventSourceResponse(msgspec.Struct, frozen=True):
    """Where one rank publishes KV events on ZMQ."""

    data_parallel_rank: int
    publisher: str
    endpoint: str
    replay_endpoint: str | None
    topic: str
    buffer_steps: int
    hwm: int


class ServerInfoResponse(msgspec.Struct, frozen=True):
    """Answer of `/server_info`."""

    version: str
    model: str
    worker_id: str
    worker_type: str
    mode: str
    engine_args: dict[str, Any]
