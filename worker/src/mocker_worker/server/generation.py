"""From a checked API request to a stream of tokens: length, id, rank and hand-off parameters."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count
from typing import Any

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.names import WorkerType
from mocker_worker.driver import EngineDriver, TokenStream
from mocker_worker.engine import Request, RequestRefused
from mocker_worker.server.errors import ApiError, InvalidRequest
from mocker_worker.server.requests import DEFAULT_CHAT_TOKENS, GenerationRequest

_SIDE_CHANNEL_PORT = 5600
_MAX_ID_CHARACTERS = 256
_MAX_RANK_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Generation:
    """One request that the engine has taken."""

    answer_id: str
    model: str
    driver: EngineDriver
    stream: TokenStream
    hand_off: dict[str, Any]
    """Top-level fields of the answer for the decode worker; empty without a hand-off."""
    transfer_s: float = 0.0
    """Seconds that the prompt's KV takes to the decode worker, before the answer is complete."""


class Generator:
    """Gives requests to the ranks of one worker."""

    def __init__(
        self, ranks: Sequence[EngineDriver], *, args: EngineArgs, model_name: str, host: str
    ) -> None:
        self._ranks = ranks
        self._args = args
        self._model_name = model_name
        self._host = host
        self._engine_id = str(uuid.uuid4())
        self._serial = count()

    def check_model(self, model: str | None) -> str:
        """Return the model to answer with; an empty name means the served one.

        Raises:
            ApiError: with status 404 for another model.
        """
        if not model or model == self._model_name:
            return self._model_name
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"The model `{model}` does not exist. Served here: `{self._model_name}`.",
            param="model",
        )

    def start(self, request: GenerationRequest, headers: Mapping[str, str]) -> Generation:
        """Submit a request.

        Raises:
            ApiError: if it names another model or can never fit.
        """
        model = self.check_model(request.model)
        prompt = request.prompt_token_ids()
        max_tokens = self._max_tokens(request, len(prompt))
        answer_id = headers.get("X-Request-Id", "")[:_MAX_ID_CHARACTERS] or uuid.uuid4().hex
        driver = self._rank(headers.get("X-data-parallel-rank"))
        try:
            stream = driver.submit(
                Request(
                    self._engine_request_id(driver, answer_id),
                    prompt,
                    max_tokens,
                    remote_prefill=request.has_remote_prefill,
                    seed=request.seed,
                )
            )
        except RequestRefused as error:
            raise InvalidRequest(error.field, str(error)) from error
        hand_off = self._hand_off(request, answer_id, driver, len(prompt))
        transfer_s = len(prompt) * self._args.kv_transfer_ms_per_token / 1000 if hand_off else 0.0
        return Generation(answer_id, model, driver, stream, hand_off, transfer_s)

    def _max_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        limit, asked = self._args.max_model_len, request.answer_tokens()
        if limit is not None and prompt_tokens + (asked or 1) > limit:
            raise InvalidRequest(
                "max_tokens" if prompt_tokens < limit else "prompt",
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{asked or 1} output tokens and your prompt contains {prompt_tokens} tokens. "
                "Please shorten the prompt or lower max_tokens.",
            )
        if self._args.worker_type is WorkerType.PREFILL:
            return 1
        if asked is not None:
            return asked
        if limit is None:
            return DEFAULT_CHAT_TOKENS
        return max(1, min(limit, self._args.kv_capacity_tokens) - prompt_tokens)

    def _rank(self, wanted: str | None) -> EngineDriver:
        if wanted is None:
            return min(self._ranks, key=lambda rank: rank.num_streams)
        is_number = wanted.isdecimal() and len(wanted) <= _MAX_RANK_DIGITS
        if not is_number or int(wanted) >= len(self._ranks):
            raise InvalidRequest(
                "X-data-parallel-rank",
                f"X-data-parallel-rank: must be 0..{len(self._ranks) - 1}, not {wanted[:40]!r}",
            )
        return self._ranks[int(wanted)]

    def _engine_request_id(self, driver: EngineDriver, answer_id: str) -> str:
        """Return an id that no unfinished request has; mostly the client's own."""
        return f"{answer_id}#{next(self._serial)}" if driver.knows(answer_id) else answer_id

    def _hand_off(
        self, request: GenerationRequest, answer_id: str, driver: EngineDriver, prompt_tokens: int
    ) -> dict[str, Any]:
        """Return what the decode worker needs (vLLM's NIXL connector; Dynamo's dummy).

        `remote_block_ids` numbers the prompt's blocks from 0: no block is pinned for a transfer.
        """
        is_prefill = self._args.worker_type is WorkerType.PREFILL
        if not is_prefill and not request.wants_remote_decode:
            return {}
        blocks = -(-prompt_tokens // self._args.block_size)
        return {
            "kv_transfer_params": {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [list(range(blocks))],
                "remote_engine_id": f"{self._engine_id}_dp{driver.dp_rank}",
                "remote_request_id": answer_id,
                "remote_host": self._host,
                "remote_port": _SIDE_CHANNEL_PORT + driver.dp_rank,
                "tp_size": 1,
                "remote_num_tokens": prompt_tokens,
            },
            "disaggregated_params": "dummy",
        }
