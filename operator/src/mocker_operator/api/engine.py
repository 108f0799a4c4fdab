"""`spec.engine` and the overrides of one role: the engine's arguments under Kubernetes' spelling.

No field has a default of its own: an absent one is left to the engine (`mocker_protocol.
engine_args`), so that a role's overrides never undo what `spec.engine` says.
"""

from typing import Annotated, Any, Final

from pydantic import Field

from mocker_operator.api.fields import INTEGRAL, MAX_ITEMS, Milliseconds, Seconds, Struct
from mocker_protocol.decisions import MAX_INTEGER
from mocker_protocol.engine_args import (
    PreemptionMode,
    PrefixCachingHashAlgo,
    SchedulingPolicy,
    word,
)

_MAX_COUNT: Final = 2**31 - 1


class FixedTiming(Struct):
    """Constant pass times."""

    prefill_ms: Milliseconds
    """Milliseconds of a pass that computes prompt tokens."""
    decode_ms: Milliseconds
    """Milliseconds of a pass that generates tokens."""

    def argument(self) -> dict[str, Any]:
        """Return the engine's `timing_model`."""
        return {"type": "fixed", "prefill_ms": self.prefill_ms, "decode_ms": self.decode_ms}


class TimingSpec(Struct):
    """How long passes take; without it the polynomials measured on an H200 apply."""

    fixed: FixedTiming
    """Constant pass times."""


class EngineSpec(Struct):
    """Arguments of the mock engine; what is absent has the default of Dynamo's mocker."""

    block_size: Annotated[int, Field(ge=2, le=65536), INTEGRAL] | None = None
    """Tokens per KV block (64)."""
    num_gpu_blocks: Annotated[int, Field(ge=1, le=10_000_000), INTEGRAL] | None = None
    """Blocks in the KV cache of each data-parallel rank (16384)."""
    max_num_seqs: Annotated[int, Field(ge=1, le=_MAX_COUNT), INTEGRAL] | None = None
    """Requests that may run at once (256)."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=_MAX_COUNT), INTEGRAL] | None = None
    """Token budget of one pass (8192)."""
    enable_prefix_caching: bool | None = None
    """Reuse the blocks of equal prompt prefixes (true)."""
    prefix_caching_hash_algo: (
        Annotated[PrefixCachingHashAlgo, word(PrefixCachingHashAlgo)] | None
    ) = None
    """Hashes of blocks in events: Dynamo's chain of XXH3 (xxh3), or vLLM's sha256_cbor."""
    enable_chunked_prefill: bool | None = None
    """Compute long prompts over several passes (true)."""
    scheduling_policy: Annotated[SchedulingPolicy, word(SchedulingPolicy)] | None = None
    """Who is served first: who came first (fcfs), or the lowest priority."""
    preemption_mode: Annotated[PreemptionMode, word(PreemptionMode)] | None = None
    """Which running request gives up its blocks first: the newest (lifo) or the oldest (fifo)."""
    speedup_ratio: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    """Simulated durations are divided by this (1); 0 means no simulated delay."""
    decode_speedup_ratio: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    """Decode durations are divided by this once more (1)."""
    startup_time_seconds: Seconds | None = None
    """Seconds from the start of the process until it is ready (0)."""
    data_parallel_size: Annotated[int, Field(ge=1, le=1024), INTEGRAL] | None = None
    """Data-parallel ranks in each worker (1)."""
    seed: Annotated[int, Field(ge=0, le=MAX_INTEGER), INTEGRAL] | None = None
    """Seed of the generated tokens (0)."""
    timing: TimingSpec | None = None
    """How long passes take; absent means the polynomials measured on an H200."""
    extra_engine_args: dict[str, Any] = Field(
        default_factory=dict,
        max_length=MAX_ITEMS,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    """More arguments under the engine's own names, as in an --extra-engine-args file. They are
    merged with the fields above; one that contradicts a field or the role is an error."""


ARGUMENT_OF_FIELD: Final[dict[str, str]] = {
    "block_size": "block_size",
    "num_gpu_blocks": "num_gpu_blocks",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "enable_prefix_caching": "enable_prefix_caching",
    "prefix_caching_hash_algo": "prefix_caching_hash_algo",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "scheduling_policy": "scheduling_policy",
    "preemption_mode": "preemption_mode",
    "speedup_ratio": "speedup_ratio",
    "decode_speedup_ratio": "decode_speedup_ratio",
    "startup_time_seconds": "startup_time",
    "data_parallel_size": "dp_size",
    "seed": "seed",
    "timing": "timing_model",
}
"""Engine argument that a field of EngineSpec sets."""


def named_arguments(engine: EngineSpec) -> dict[str, Any]:
    """Return the engine arguments that the fields set, without `extraEngineArgs`."""
    found: dict[str, Any] = {}
    for field, argument in ARGUMENT_OF_FIELD.items():
        value = getattr(engine, field)
        if value is not None:
            found[argument] = value.fixed.argument() if isinstance(value, TimingSpec) else value
    return found


def field_of_argument(argument: str) -> str | None:
    """Return the field, as written in the resource, that sets an engine argument."""
    for field, name in ARGUMENT_OF_FIELD.items():
        if name == argument:
            return EngineSpec.model_fields[field].alias
    return None
