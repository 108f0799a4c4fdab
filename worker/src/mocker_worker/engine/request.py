"""One request's state inside the engine.

Tokens with KV come first: `num_computed_tokens` of the known tokens (prompt, then what was
generated) have KV in blocks. A request is scheduled until both counts are equal, which is when
its next token is sampled. Preemption drops the KV and keeps the tokens. The scheduler looks at
numbers alone; what the tokens are matters to the cache only, which asks for keys of full blocks.
"""

import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum, StrEnum, auto
from typing import TypeAlias

from mocker_protocol.block_hash import HashChain
from mocker_worker.engine.block_pool import BlockKey, Run
from mocker_worker.engine.sampling import sample_token


class RequestStatus(Enum):
    """Where a request stands in the scheduler (vLLM v1's words)."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH = auto()
    FINISHED_ABORTED = auto()


class FinishReason(StrEnum):
    """Why generation ended, in the words of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


_FINISHED = {
    FinishReason.STOP: RequestStatus.FINISHED_STOPPED,
    FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH,
    FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
}

_NO_TOKENS: frozenset[int] = frozenset()
_WAITING, _LENGTH = RequestStatus.WAITING, FinishReason.LENGTH  # slow to find in their enums

ChainFactory: TypeAlias = Callable[[str | None], HashChain]
"""Starts the hashes of a prompt, given its cache salt."""


class RequestRefused(ValueError):
    """A request that can never run, so it is refused instead of waiting for ever.

    Attributes:
        request_id: The refused request.
        field: What is wrong with it: `prompt`, `max_tokens`, `script`, `cache_salt` or
            `request_id`.
        reason: The limit, the value and the remedy.
    """

    def __init__(self, request_id: str, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.request_id = request_id
        self.field = field
        self.reason = reason


class Request:
    """Mutable state of a request; the engine owns it from `add_request` until it is finished."""

    __slots__ = (
        "_chain",
        "_guided",
        "_keys",
        "_script",
        "arrival",
        "arrival_ms",
        "cache_salt",
        "end_reason",
        "end_tokens",
        "finish_reason",
        "last_run",
        "max_tokens",
        "min_tokens",
        "num_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "num_reused_tokens",
        "num_tokens",
        "prefill_end",
        "priority",
        "remote_prefill",
        "request_id",
        "sampling_seed",
        "seed",
        "settled_tokens",
        "status",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(  # noqa: PLR0913 - what a client may ask for
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        *,
        arrival_ms: float = 0.0,
        remote_prefill: bool = False,
        seed: int | None = None,
        script: Sequence[int] = (),
        stop_token_ids: Collection[int] = (),
        min_tokens: int = 0,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        """Make a request that no engine knows yet.

        Args:
            request_id: Unique among the engine's unfinished requests.
            prompt_token_ids: Each 0..2**32-1; cheapest as an `array("I")`.
            max_tokens: Tokens to generate at most; a prefill worker generates one.
            arrival_ms: Carried for the caller; the engine has no clock.
            remote_prefill: The prompt's KV comes from a prefill worker and costs no compute here.
            seed: Of the generated tokens; the request id serves when absent.
            script: The answer's tokens, if they are known; the last one ends the request with
                STOP unless a limit does so first. Random tokens if empty.
            stop_token_ids: A token of these ends the request with STOP; it is delivered.
            min_tokens: Tokens before which `stop_token_ids` do not count.
            priority: Lower values go first where the scheduling policy is `priority`.
            cache_salt: Only requests with an equal one share cached blocks; empty means none.

        Raises:
            RequestRefused: if a token id is not an unsigned 32-bit integer, or the salt no text.
        """
        self.token_ids = _token_ids(request_id, "prompt", prompt_token_ids)
        self._script = _token_ids(request_id, "script", script) if script else None
        self._guided = bool(script or stop_token_ids)
        self._keys: list[BlockKey] = []
        self._chain: HashChain | None = None
        self.request_id = request_id
        self.max_tokens = max_tokens
        self.arrival_ms = arrival_ms
        self.remote_prefill = remote_prefill
        self.seed = seed
        self.stop_token_ids = frozenset(stop_token_ids) if stop_token_ids else _NO_TOKENS
        self.min_tokens = min_tokens
        self.priority = priority
        self.cache_salt = _checked_salt(request_id, cache_salt) if cache_salt else None
        self._begin()

    def _begin(self) -> None:
        """Set what the engine keeps up to date."""
        self.arrival = 0
        """Position in the order of arrival; the engine sets it."""
        self.status = _WAITING
        self.num_prompt_tokens = len(self.token_ids)
        self.num_tokens = self.num_prompt_tokens
        """Known tokens: the prompt and what was generated."""
        self.end_tokens = sys.maxsize
        """Known tokens with which generation ends."""
        self.end_reason = _LENGTH
        """What it ends with then."""
        self.finish_reason: FinishReason | None = None
        """What it ended with."""
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_reused_tokens = 0
        """Tokens found in the cache at the latest admission, generated ones included."""
        self.num_preemptions = 0
        self.prefill_end = 0
        self.last_run: Run | None = None
        """The run of the last full block, while the request has blocks."""
        self.num_blocks = 0
        """Blocks that it holds, alone or with others."""
        self.num_registered_blocks = 0
        """How many of them are full and known to the cache."""
        self.settled_tokens = 0
        """Tokens up to which it may grow without anything for the cache to do."""
        self.sampling_seed = 0

    has_private_answer = False
    """Whether no other request can hit blocks with generated tokens."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far; a preemption does not lower it."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def has_remote_kv(self) -> bool:
        """Whether the prompt's KV can be fetched; a preemption loses it."""
        return self.remote_prefill and self.num_preemptions == 0

    def limit(self, max_model_len: int) -> None:
        """Fix where generation ends at the latest, and what it ends with there."""
        self.end_tokens = min(self.num_prompt_tokens + self.max_tokens, max_model_len)
        if self._script and self.num_prompt_tokens + len(self._script) < self.end_tokens:
            self.end_tokens = self.num_prompt_tokens + len(self._script)
            self.end_reason = FinishReason.STOP

    def finish(self, reason: FinishReason) -> None:
        """Note that the request is over."""
        self.finish_reason = reason
        self.status = _FINISHED[reason]

    def keys_of(self, num_blocks: int, new_chain: ChainFactory) -> list[BlockKey]:
        """Return the keys of at least the first `num_blocks` full blocks, hashing none twice."""
        keys = self._keys
        if len(keys) < num_blocks:
            chain = self._chain
            if chain is None:
                chain = self._chain = new_chain(self.cache_salt)
            keys += chain.extend(self.token_ids[len(keys) * chain.block_size :])
        return keys

    def generate(self, count: int) -> int:
        """Append the next `count` tokens, or those up to a stop token; returns the last one."""
        start, token_id = self.num_tokens - self.num_prompt_tokens, 0
        if self._guided:
            return self._generate_guided(range(start, start + count))
        self.num_tokens += count
        for position in range(start, start + count):
            token_id = sample_token(self.sampling_seed, position)
            self.token_ids.append(token_id)
        return token_id

    def _generate_guided(self, positions: Iterable[int]) -> int:
        token_id = 0
        for position in positions:
            token_id = (
                self._script[position]
                if self._script
                else sample_token(self.sampling_seed, position)
            )
            self.token_ids.append(token_id)
            self.num_tokens += 1
            if token_id in self.stop_token_ids and position + 1 >= self.min_tokens:
                self.end_tokens, self.end_reason = self.num_tokens, FinishReason.STOP
                break
        return token_id

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.request_id!r}, {self.status.name}, "
            f"computed={self.num_computed_tokens}/{self.num_tokens}, "
            f"output={self.num_output_tokens}/{self.max_tokens})"
        )


def _token_ids(request_id: str, field: str, values: Sequence[int]) -> "array[int]":
    try:
        return array("I", values)
    except (OverflowError, TypeError) as error:
        raise RequestRefused(
            request_id, field, "token ids must be integers in 0..4294967295"
        ) from error


def _checked_salt(request_id: str, salt: str) -> str:
    try:
        salt.encode()
    except UnicodeEncodeError as error:
        raise RequestRefused(
            request_id, "cache_salt", "has half a surrogate pair; send valid Unicode"
        ) from error
    return salt
