"""One request's state inside the engine.

Tokens with KV come first: `num_computed_tokens` of the known tokens (prompt, then what was
generated) have KV in blocks. A request is scheduled until both counts are equal, which is when
its next token is sampled. Preemption drops the KV and keeps the tokens. The scheduler looks at
numbers alone; what the tokens are matters to the cache only, which asks for keys of full blocks.
"""

from array import array
from collections.abc import Sequence
from enum import Enum, StrEnum, auto

from mocker_protocol.block_hash import BlockHash, hash_blocks
from mocker_worker.engine.block_pool import BlockKey, Run
from mocker_worker.engine.sampling import sample_token


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
        "_keys",
        "arrival_ms",
        "end_tokens",
        "last_run",
        "max_tokens",
        "num_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "num_reused_tokens",
        "num_tokens",
        "prefill_end",
        "remote_prefill",
        "request_id",
        "sampling_seed",
        "seed",
        "settled_tokens",
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
        self._keys: list[BlockKey] = []
        self.request_id = request_id
        self.max_tokens = max_tokens
        self.arrival_ms = arrival_ms
        self.remote_prefill = remote_prefill
        self.seed = seed
        self.status = RequestStatus.WAITING
        self.num_prompt_tokens = len(self.token_ids)
        self.num_tokens = self.num_prompt_tokens
        """Known tokens: the prompt and what was generated."""
        self.end_tokens = 0
        """Known tokens with which generation ends; the engine sets it."""
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

    def keys_of(self, num_blocks: int, block_size: int) -> list[BlockKey]:
        """Return the keys of at least the first `num_blocks` full blocks, hashing none twice."""
        keys = self._keys
        if len(keys) < num_blocks:
            last = keys[-1] if keys else None
            parent = last.sequence if isinstance(last, BlockHash) else None
            keys += hash_blocks(self.token_ids[len(keys) * block_size :], block_size, parent)
        return keys

    def generate(self, count: int) -> int:
        """Append the next `count` tokens, and return the last one's id."""
        for position in range(self.num_output_tokens, self.num_output_tokens + count):
            self.token_ids.append(sample_token(self.sampling_seed, position))
        self.num_tokens += count
        return self.token_ids[-1]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.request_id!r}, {self.status.name}, "
            f"computed={self.num_computed_tokens}/{self.num_tokens}, "
            f"output={self.num_output_tokens}/{self.max_tokens})"
        )


class OutlineRequest(Request):
    """A request known by its lengths and by which blocks of its prompt equal those of others.

    It costs no memory or time per token, and cannot be where KV events are published.
    """

    __slots__ = ("_answer_key",)

    has_private_answer = True

    def __init__(
        self,
        request_id: str,
        num_prompt_tokens: int,
        max_tokens: int,
        *,
        prompt_keys: list[BlockKey],
        answer_key: int,
        remote_prefill: bool = False,
    ) -> None:
        """Make a request that no engine knows yet.

        Args:
            request_id: Unique among the engine's unfinished requests.
            num_prompt_tokens: Length of the prompt.
            max_tokens: Tokens to generate.
            prompt_keys: One per full block of the prompt; equal keys after equal blocks are hits.
            answer_key: Of every block with generated tokens: no other request may use it.
            remote_prefill: The prompt's KV comes from a prefill worker and costs no compute here.
        """
        super().__init__(request_id, (), max_tokens, remote_prefill=remote_prefill)
        self.num_prompt_tokens = self.num_tokens = num_prompt_tokens
        self._keys = prompt_keys
        self._answer_key = answer_key

    def keys_of(self, num_blocks: int, block_size: int) -> list[BlockKey]:
        """Return the keys of at least the first `num_blocks` full blocks."""
        keys = self._keys
        if len(keys) < num_blocks:
            self._keys = keys = keys + [self._answer_key] * (num_blocks - len(keys))
        return keys

    def generate(self, count: int) -> int:
        """Count `count` more tokens; their ids are all 0."""
        self.num_tokens += count
        return 0
