"""One request's state inside the engine.

Tokens with KV come first: `num_computed_tokens` of the known tokens (prompt, then what was
generated) have KV in `block_ids`. A request is scheduled until both counts are equal, which is
when its next token is sampled. Preemption drops the KV and keeps the tokens.
"""

from array import array
from collections.abc import Sequence
from enum import Enum, StrEnum, auto

from mocker_protocol.block_hash import BlockHash


class RequestStatus(Enum):
    """Where a request stands in the scheduler (vLLM v1's words)."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_LENGTH = auto()
    FINISHED_ABORTED = auto()


class FinishReason(StrEnum):
    """Why generation ended, in the words of the OpenAI API."""

    LENGTH = "length"
    ABORT = "abort"


class RequestRefused(ValueError):
    """A request that can never run, so it is refused instead of waiting for ever.

    Attributes:
        request_id: The refused request.
        field: What is wrong with it: `prompt`, `max_tokens` or `request_id`.
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
        "arrival_ms",
        "block_hashes",
        "block_ids",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "prefill_end",
        "remote_prefill",
        "request_id",
        "sampling_seed",
        "seed",
        "status",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        *,
        arrival_ms: float = 0.0,
        remote_prefill: bool = False,
        seed: int | None = None,
    ) -> None:
        """Make a request that no engine knows yet.

        Args:
            request_id: Unique among the engine's unfinished requests.
            prompt_token_ids: Each 0..2**32-1.
            max_tokens: Tokens to generate; a prefill worker generates one.
            arrival_ms: Carried for the caller; the engine has no clock.
            remote_prefill: The prompt's KV comes from a prefill worker and costs no compute here.
            seed: Of the generated tokens; the request id serves when absent.

        Raises:
            RequestRefused: if a token id is not an unsigned 32-bit integer.
        """
        try:
            self.token_ids = array("I", prompt_token_ids)
        except (OverflowError, TypeError) as error:
            raise RequestRefused(
                request_id, "prompt", "token ids must be integers in 0..4294967295"
            ) from error
        self.request_id = request_id
        self.max_tokens = max_tokens
        self.arrival_ms = arrival_ms
        self.remote_prefill = remote_prefill
        self.seed = seed
        self.status = RequestStatus.WAITING
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.prefill_end = 0
        self.num_registered_blocks = 0
        self.block_ids: list[int] = []
        self.block_hashes: list[BlockHash] = []
        self.sampling_seed = 0

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was generated."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far; a preemption does not lower it."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def has_remote_kv(self) -> bool:
        """Whether the prompt's KV can be fetched; a preemption loses it."""
        return self.remote_prefill and self.num_preemptions == 0

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.name}, "
            f"computed={self.num_computed_tokens}/{self.num_tokens}, "
            f"output={self.num_output_tokens}/{self.max_tokens})"
        )
