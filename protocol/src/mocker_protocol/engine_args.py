"""Engine arguments: one model for the command line, `--extra-engine-args` files and the resource.

Names and defaults are those of Dynamo's MockEngineArgs (up to 1.3), so that an existing file
works. What a file may hold but this engine does not do is refused by name, never ignored.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from mocker_protocol.decisions import MAX_INTEGER, integral
from mocker_protocol.names import WorkerType

Integer = Annotated[int, BeforeValidator(integral)]
PositiveInteger = Annotated[Integer, Field(ge=1, le=MAX_INTEGER)]
Port = Annotated[Integer, Field(ge=1, le=65535)]

UNSUPPORTED = frozenset(
    "watermark sglang trtllm planner_profile_data enable_local_indexer bootstrap_port "
    "reasoning router_queue_policy aic_backend aic_system "
    "aic_backend_version aic_tp_size aic_model_path aic_moe_tp_size aic_moe_ep_size "
    "aic_attention_dp_size aic_gemm_dtype aic_moe_dtype aic_fmha_dtype aic_kv_cache_dtype "
    "aic_comm_dtype aic_nextn aic_nextn_accept_rates aic_mtp_seed gpu_memory_utilization "
    "mem_fraction_static free_gpu_memory_fraction handoff_session_timeout_ms "
    "num_g2_blocks num_g3_blocks "
    "enable_g4_storage offload_batch_size bandwidth_g1_to_g2_gbps bandwidth_g2_to_g1_gbps "
    "bandwidth_g2_to_g3_gbps bandwidth_g3_to_g2_gbps bandwidth_g2_to_g4_gbps "
    "bandwidth_g4_to_g2_gbps response_replay_trace_path has_perf_model".split()
)
"""Fields of MockEngineArgs that are understood and refused."""


class InvalidEngineArgs(ValueError):
    """Arguments that the engine cannot run with; the text names each field and the remedy."""


class PreemptionMode(StrEnum):
    """Which running request gives up its blocks first: the newest (vLLM v1) or the oldest."""

    LIFO = "lifo"
    FIFO = "fifo"


class SchedulingPolicy(StrEnum):
    """Who is served first: who came first, or who has the lowest `priority` (vLLM)."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class PrefixCachingHashAlgo(StrEnum):
    """How blocks are hashed: Dynamo's XXH3 chain, or vLLM's chain of canonical CBOR."""

    XXH3 = "xxh3"
    SHA256_CBOR = "sha256_cbor"


class KvTransferTiming(StrEnum):
    """Which tokens of a prompt a transfer of its KV costs time for."""

    FULL_PROMPT = "full_prompt"
    DESTINATION_MISSING = "destination_missing"


def word(enum: type[StrEnum]) -> BeforeValidator:
    """Take the wire word of an enum, which strict mode would refuse."""

    def member(value: object) -> object:
        if isinstance(value, str) and value not in list(enum):
            raise ValueError(f"must be one of {', '.join(enum)}, not {value[:40]!r}")
        return enum(value) if isinstance(value, str) else value

    return BeforeValidator(member)


def _rising(values: tuple[float, ...]) -> tuple[float, ...]:
    if len(values) < 2 or any(b <= a for a, b in pairwise(values)):
        raise ValueError("must have two values or more, each greater than the one before")
    return values


def _tuples(value: Any) -> Any:  # noqa: ANN401 - a validator sees whatever was sent
    """Take JSON's lists, which strict mode would refuse for tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


Milliseconds = Annotated[float, Field(allow_inf_nan=False)]
Axis = Annotated[tuple[Milliseconds, ...], AfterValidator(_rising)]


class PolynomialTiming(BaseModel):
    """H200 polynomials of Dynamo's planner sweeps, the default."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    type: Literal["polynomial"] = "polynomial"


class FixedTiming(BaseModel):
    """Every pass with prompt tokens costs `prefill_ms`, every pass that decodes `decode_ms`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    type: Literal["fixed"]
    prefill_ms: Milliseconds = Field(ge=0)
    decode_ms: Milliseconds = Field(ge=0)


class StepTiming(BaseModel):
    """Every pass costs ms = base + each amount of work times its own rate."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    type: Literal["step"]
    base_ms: Milliseconds = Field(ge=0)
    prefill_token_ms: Milliseconds = Field(ge=0)
    """Per prompt token that is computed."""
    decode_request_ms: Milliseconds = Field(ge=0)
    """Per request that decodes a token."""
    kv_token_ms: Milliseconds = Field(ge=0)
    """Per token of context that is read: of decoding requests, and cached ones of prefills."""


class ProfileTiming(BaseModel):
    """Measured points; between and beyond them time is linear (decode: bilinear)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    type: Literal["profile"]
    prefill_isl: Axis
    """New prompt tokens of a pass, ascending."""
    prefill_ttft_ms: tuple[Milliseconds, ...]
    """One per `prefill_isl`."""
    decode_active_kv_tokens: Axis
    """Sum of the decoding requests' contexts, ascending."""
    decode_context_length: Axis
    """Their mean context, ascending."""
    decode_itl_ms: tuple[tuple[Milliseconds, ...], ...]
    """A row per `decode_active_kv_tokens` with a value per `decode_context_length`."""

    @model_validator(mode="before")
    @classmethod
    def _take_lists(cls, data: Any) -> Any:  # noqa: ANN401 - a validator sees whatever was sent
        if not isinstance(data, Mapping):
            return data
        return {name: _tuples(value) for name, value in data.items()}

    @model_validator(mode="after")
    def _tables_fit(self) -> Self:
        if len(self.prefill_ttft_ms) != len(self.prefill_isl):
            raise ValueError("prefill_ttft_ms: must have one value per prefill_isl")
        rows, columns = len(self.decode_active_kv_tokens), len(self.decode_context_length)
        if len(self.decode_itl_ms) != rows or any(len(r) != columns for r in self.decode_itl_ms):
            raise ValueError(
                "decode_itl_ms: must have a row per decode_active_kv_tokens, each with one value "
                "per decode_context_length"
            )
        return self


TimingModel = Annotated[
    PolynomialTiming | FixedTiming | StepTiming | ProfileTiming, Field(discriminator="type")
]


class EngineArgs(BaseModel):
    """Everything that determines how one worker's engine behaves."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    engine_type: Literal["vllm"] = "vllm"
    num_gpu_blocks: PositiveInteger = 16384
    block_size: Annotated[Integer, Field(ge=2, le=65536)] = 64
    """Tokens per KV block; 0 in a file means the default."""
    max_model_len: PositiveInteger | None = None
    """Longest prompt plus answer in tokens; None leaves the cache's capacity as the only limit."""
    max_num_seqs: PositiveInteger | None = 256
    max_num_batched_tokens: PositiveInteger | None = 8192
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    preemption_mode: Annotated[PreemptionMode, word(PreemptionMode)] = PreemptionMode.LIFO
    scheduling_policy: Annotated[SchedulingPolicy, word(SchedulingPolicy)] = SchedulingPolicy.FCFS
    """With `priority` the victim of a preemption is the last in that order."""
    prefix_caching_hash_algo: Annotated[PrefixCachingHashAlgo, word(PrefixCachingHashAlgo)] = (
        PrefixCachingHashAlgo.XXH3
    )
    speedup_ratio: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Simulated durations are divided by this; 0 means no simulated delay at all."""
    decode_speedup_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Divides decode time further."""
    startup_time: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Seconds between process start and readiness."""
    dp_size: Annotated[Integer, Field(ge=1, le=1024)] = 1
    worker_type: Annotated[WorkerType, word(WorkerType)] = WorkerType.AGGREGATED
    publish_kv_events: bool = True
    """Only with `enable_prefix_caching`; decode workers never publish."""
    zmq_kv_events_port: Port | None = None
    """Where data-parallel rank 0 publishes KV events by ZMQ; rank r adds r."""
    zmq_replay_port: Port | None = None
    """Where rank 0 repeats them on request; rank r adds r."""
    timing_model: TimingModel = PolynomialTiming()
    kv_transfer_bandwidth: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Gigabytes (1e9) a second from prefill to decode workers; None or 0 and less: no delay."""
    kv_bytes_per_token: Annotated[Integer, Field(ge=0, le=MAX_INTEGER)] | None = None
    """Size of a token's KV; None or 0: no delay."""
    kv_transfer_timing_mode: Annotated[KvTransferTiming, word(KvTransferTiming)] = (
        KvTransferTiming.FULL_PROMPT
    )
    seed: Annotated[Integer, Field(ge=0, le=MAX_INTEGER)] = 0

    @model_validator(mode="before")
    @classmethod
    def _from_dynamo(cls, data: Any) -> Any:  # noqa: ANN401 - a validator sees whatever was sent
        if not isinstance(data, Mapping):
            return data
        data = dict(data)
        if refused := sorted(UNSUPPORTED & data.keys()):
            remedy = "remove it from the arguments"
            if "planner_profile_data" in refused:
                remedy += "; the flag --planner-profile-data reads a profile"
            raise ValueError(f"{', '.join(refused)}: not supported by this engine; {remedy}")
        if data.get("block_size") == 0 and data.get("block_size") is not False:
            del data["block_size"]
        return _with_worker_type(data)

    @model_validator(mode="after")
    def _chunks_fit(self) -> Self:
        if (
            not self.enable_chunked_prefill
            and self.max_num_batched_tokens is not None
            and self.max_model_len is not None
            and self.max_num_batched_tokens < self.max_model_len
        ):
            raise ValueError(
                "max_num_batched_tokens: must be at least max_model_len "
                f"({self.max_model_len}) when enable_chunked_prefill is false"
            )
        return self

    @model_validator(mode="after")
    def _one_choice_of_victims(self) -> Self:
        if (
            self.scheduling_policy is SchedulingPolicy.PRIORITY
            and self.preemption_mode is not PreemptionMode.LIFO
        ):
            raise ValueError(
                "preemption_mode: must be lifo when scheduling_policy is priority, which chooses "
                "whom to preempt itself; remove one"
            )
        return self

    @property
    def publishes_kv_events(self) -> bool:
        """Whether this worker's cache changes reach the event stream."""
        return (
            self.publish_kv_events
            and self.enable_prefix_caching
            and self.worker_type is not WorkerType.DECODE
        )

    @property
    def kv_transfer_ms_per_token(self) -> float:
        """Time to send a token's KV from a prefill to a decode worker; 0 unless both are set."""
        bandwidth, size = self.kv_transfer_bandwidth, self.kv_bytes_per_token
        return size / (bandwidth * 1e6) if bandwidth and bandwidth > 0 and size else 0.0

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that fit into the KV cache."""
        return self.num_gpu_blocks * self.block_size


def _with_worker_type(data: dict[str, Any]) -> dict[str, Any]:
    """Turn the legacy `is_prefill` and `is_decode` into `worker_type`."""
    is_prefill, is_decode = data.pop("is_prefill", False), data.pop("is_decode", False)
    for name, value in (("is_prefill", is_prefill), ("is_decode", is_decode)):
        if type(value) is not bool:
            raise ValueError(f"{name}: must be true or false, not {value!r}")
    if is_prefill and is_decode:
        raise ValueError("is_prefill, is_decode: a worker is one or the other; remove one")
    legacy = "prefill" if is_prefill else "decode" if is_decode else None
    if legacy is not None and data.setdefault("worker_type", legacy) != legacy:
        raise ValueError(
            f"is_{legacy}, worker_type: is_{legacy} contradicts worker_type "
            f"{str(data['worker_type'])!r}; remove one"
        )
    return data


def parse_engine_args(data: object) -> EngineArgs:
    """Validate engine arguments from a file, the command line or the resource.

    Raises:
        InvalidEngineArgs: with one line per field that is wrong.
    """
    try:
        return EngineArgs.model_validate(data)
    except ValidationError as error:
        raise InvalidEngineArgs("\n".join(_explain(item) for item in error.errors())) from error


def load_engine_args(text: str, overrides: Mapping[str, object]) -> EngineArgs:
    """Merge an `--extra-engine-args` file with flags that were given explicitly.

    Args:
        text: The file's JSON.
        overrides: Values of the flags that were given, by engine argument name.

    Raises:
        InvalidEngineArgs: if the text is not a JSON object, or a flag contradicts the file.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InvalidEngineArgs(f"extra engine args: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidEngineArgs("extra engine args: must be a JSON object of engine arguments")
    try:
        data = _with_worker_type(data)
    except ValueError as error:
        raise InvalidEngineArgs(str(error)) from error
    contradictions = [
        f"{name}: {data[name]!r} in the file contradicts {value!r} given by flag; remove one"
        for name, value in overrides.items()
        if name in data and data[name] != value
    ]
    if contradictions:
        raise InvalidEngineArgs("\n".join(contradictions))
    return parse_engine_args({**data, **overrides})


def _explain(item: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    field = ".".join(str(part) for part in item["loc"])
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        message = "unknown engine argument; remove it or correct its spelling"
    return f"{field}: {message}" if field else message
