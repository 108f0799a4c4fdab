"""From a checked API request to requests for the engine: limits, ids, rank and hand-off."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count
from typing import Any

import msgspec

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.names import WorkerType
from mocker_worker.config import ServerOptions
from mocker_worker.driver import EngineDriver
from mocker_worker.engine import Request, RequestRefused
from mocker_worker.server.choice import Choice, ChoiceText, TextOptions
from mocker_worker.server.errors import ApiError, InvalidRequest
from mocker_worker.server.permitted_tokens import PermittedTokens
from mocker_worker.server.requests import DEFAULT_CHAT_TOKENS, GenerationRequest, Prompt
from mocker_worker.server.response_headers import given_request_id
from mocker_worker.server.scripts import ScriptWriter, lengthened
from mocker_worker.stats import RequestGroup, WorkerStats
from mocker_worker.tokenizer import Tokenizer

_SIDE_CHANNEL_PORT = 5600
_MAX_ID_CHARACTERS = 256
_MAX_RANK_DIGITS = 9
_MOST_HELD_TOKENS = 2**23
"""Of prompts and answers that are known before they begin, in a request for several answers."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine is to do for one request; nothing is submitted yet."""

    answer_id: str
    model: str
    driver: EngineDriver
    choices: Sequence[Choice]
    requests: Sequence[Request]
    """One per choice."""
    hand_off: dict[str, Any]
    """Top-level fields of the answer for the decode worker; empty without a hand-off."""
    transfer_s: float = 0.0
    """Seconds that the prompt's KV takes to the decode worker, before the answer is complete."""

    def submit(self) -> None:
        """Give all to the engine, or nothing.

        Raises:
            ApiError: if something can never fit.
            EngineStopped: if the worker is shutting down.
        """
        groups: dict[int, RequestGroup] = {}
        n = sum(choice.prompt is self.choices[0].prompt for choice in self.choices)
        try:
            for request in self.requests[1:]:  # before the first one is counted as begun
                self.driver.engine.check_request(request)
            for choice, request in zip(self.choices, self.requests, strict=True):
                group = groups.setdefault(id(choice.prompt), RequestGroup(n))
                choice.stream = self.driver.submit(
                    request, choice, group=group, may_stop=choice.may_stop
                )
        except RequestRefused as error:
            raise InvalidRequest(error.field, str(error)) from error

    def finish(self, choice: Choice) -> None:
        """End a choice that is finished by a stop string, whatever the engine thinks."""
        if choice.stream is not None and choice.may_stop and choice.finish_reason == "stop":
            self.driver.finish(choice.stream)

    async def hand_over(self) -> None:
        """Wait for the prompt's KV to be with the decode worker."""
        if self.transfer_s:
            await asyncio.sleep(self.transfer_s)

    def close(self) -> None:
        """Drop what is not finished, and untie all, so that nothing waits for a collector."""
        for choice in self.choices:
            if choice.stream is not None:
                self.driver.cancel(choice.stream)
            choice.stream = choice.answer = None


class Generator:
    """Plans requests for the ranks of one worker."""

    def __init__(
        self,
        ranks: Sequence[EngineDriver],
        *,
        args: EngineArgs,
        options: ServerOptions,
        model_name: str,
        host: str,
        tokenizer: Tokenizer,
    ) -> None:
        self.tokenizer = tokenizer
        self.stats = WorkerStats()
        self._ranks = ranks
        self._args = args
        self._options = options
        self._model_name = model_name
        self._host = host
        self._scripts = ScriptWriter(tokenizer, options.mode)
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

    def plan(self, request: GenerationRequest, headers: Mapping[str, str]) -> Generation:
        """Return what to do for a request.

        Raises:
            ApiError: if it names another model, can never fit, or finds the queue full.
        """
        model = self.check_model(request.model)
        prompts = [self._truncated(request, item) for item in request.prompts(self.tokenizer)]
        driver = self._rank(headers.get("X-data-parallel-rank"))
        self._check_queue(driver)
        name = given_request_id(headers) or request.request_id or ""
        answer_id = name[:_MAX_ID_CHARACTERS] or uuid.uuid4().hex
        planner = _ChoicePlanner(request, answer_id, self._args, self._scripts)
        planned = [
            planner.choice(prompt, max_tokens, sample)
            for prompt in prompts
            for max_tokens in (self._max_tokens(request, len(prompt.token_ids)),)
            for sample in range(request.n or 1)
        ]
        for _, engine_request in planned:
            self._make_unique(engine_request, driver)
        hand_off = self._hand_off(request, answer_id, driver, len(prompts[0].token_ids))
        prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        transfer_s = prompt_tokens * self._args.kv_transfer_ms_per_token / 1000
        return Generation(
            answer_id,
            model,
            driver,
            [choice for choice, _ in planned],
            [engine_request for _, engine_request in planned],
            hand_off,
            transfer_s if hand_off else 0.0,
        )

    def _truncated(self, request: GenerationRequest, prompt: Prompt) -> Prompt:
        keep = self._kept_tokens(request)
        if keep is None or len(prompt.token_ids) <= keep:
            return prompt
        cut = 0 if request.truncation_side == "right" else len(prompt.token_ids) - keep
        return Prompt(prompt.token_ids[cut : cut + keep], None)

    def _kept_tokens(self, request: GenerationRequest) -> int | None:
        """Return the most tokens that are kept of a prompt; None for all."""
        keep, limit = request.truncate_prompt_tokens, self._args.max_model_len
        if keep is None or limit is None:
            return None if keep == -1 else keep
        room = max(limit - (request.answer_tokens() or 1), 0)
        if keep > room:
            raise InvalidRequest(
                "truncate_prompt_tokens",
                f"truncate_prompt_tokens: must be at most {room}, which max_model_len leaves; "
                f"lower it, or {request.length_field}",
            )
        return room if keep == -1 else keep

    def _max_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        limit, asked = self._args.max_model_len, request.answer_tokens()
        if limit is not None and prompt_tokens + (asked or 1) > limit:
            raise InvalidRequest(
                "max_tokens" if prompt_tokens < limit else "prompt",
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{asked or 1} output tokens and your prompt contains {prompt_tokens} tokens. "
                "Please shorten the prompt or lower max_tokens.",
            )
        if self._args.worker_type is WorkerType.PREFILL or asked == 0:
            return 1
        if asked is not None:
            return asked
        return self._default_tokens(request, prompt_tokens)

    def _default_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        """Return how long an answer gets whose request does not say."""
        limit, room = self._args.max_model_len, self._args.kv_capacity_tokens - prompt_tokens
        most = DEFAULT_CHAT_TOKENS if limit is None else limit - prompt_tokens
        tokens = max(1, min(most, room))
        if (request.min_tokens or 0) > tokens:
            raise InvalidRequest(
                "min_tokens",
                f"min_tokens: must be at most {tokens}, the length of the answer; lower it, or say "
                f"{request.length_field}",
            )
        return tokens

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

    def _check_queue(self, driver: EngineDriver) -> None:
        """Refuse a request that finds the queue of its rank full (vLLM's admission limits)."""
        options = self._options
        for reason, limit, queued in (
            ("max_num_queued_reqs", options.max_num_queued_reqs, driver.num_queued),
            (
                "max_num_queued_tokens",
                options.max_num_queued_tokens,
                driver.engine.num_waiting_tokens if driver.num_queued else 0,
            ),
        ):
            if limit and queued >= limit:
                self.stats.admission_rejected(reason)
                status = HTTPStatus(options.queue_full_status)
                raise ApiError(
                    status,
                    f"The queue is full: {queued} of {reason} {limit}. Try again later.",
                    error_type=status.phrase,
                )

    def _make_unique(self, request: Request, driver: EngineDriver) -> None:
        """Give a request an id that no unfinished one has; mostly it keeps the client's own."""
        name = request.request_id
        while driver.knows(request.request_id):
            request.request_id = f"{name}#{next(self._serial)}"

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


class _ChoicePlanner:
    """Makes the choices of one request, numbered in the order of prompts, then of samples."""

    def __init__(
        self,
        request: GenerationRequest,
        answer_id: str,
        args: EngineArgs,
        scripts: ScriptWriter,
    ) -> None:
        self._request = request
        self._answer_id = answer_id
        self._args = args
        self._scripts = scripts
        self._options = TextOptions.of(request, scripts.tokenizer)
        self._permitted = PermittedTokens.of(request, scripts.tokenizer)
        self._numbers = count()
        self._held_tokens = 0

    def choice(self, prompt: Prompt, max_tokens: int, sample: int) -> tuple[Choice, Request]:
        """Return the next choice and what the engine is to do for it.

        Raises:
            ApiError: if its script cannot be made, or the choices so far have too many tokens.
        """
        request, index = self._request, next(self._numbers)
        name = f"{index}_{self._answer_id}" if index else self._answer_id
        if request.seed is not None and sample:
            request = msgspec.structs.replace(request, seed=request.seed + sample)
        longest = min(max_tokens, self._args.kv_capacity_tokens)  # beyond it the engine refuses
        script = self._scripts.script(
            request, prompt, name, permitted=self._permitted, num_tokens=longest
        )
        wanted = longest if request.ignore_eos else min(request.min_tokens or 0, longest)
        script = script._replace(token_ids=lengthened(script.token_ids, wanted))
        self._hold(index, len(prompt.token_ids) + len(script.token_ids))
        is_plain = (
            not script.token_ids
            and self._options.is_plain
            and not request.echoes_prompt
            and not request.return_token_ids
            and not request.continuous_usage
        )
        echo = prompt if request.echoes_prompt else None
        is_silent = request.answer_tokens() == 0
        text = None if is_plain else ChoiceText(self._options, script, echo, is_silent=is_silent)
        return Choice(index, prompt, script, text), Request(
            name,
            prompt.token_ids,
            max_tokens,
            remote_prefill=request.has_remote_prefill,
            seed=request.seed,
            script=script.token_ids,
            stop_token_ids=self._options.stop_token_ids,
            min_tokens=self._options.min_tokens,
            priority=request.priority or 0,
            cache_salt=request.cache_salt,
        )

    def _hold(self, index: int, num_tokens: int) -> None:
        """Count what a choice takes before it begins; a single one is left to the engine."""
        self._held_tokens += num_tokens
        if index and self._held_tokens > _MOST_HELD_TOKENS:
            raise InvalidRequest(
                "n",
                f"n: prompts and known answers have more than {_MOST_HELD_TOKENS} tokens together; "
                f"ask for fewer answers, or lower {self._request.length_field}",
            )
