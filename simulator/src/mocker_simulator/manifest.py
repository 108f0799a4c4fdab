"""A fleet from a MockerDeployment manifest: just the fields that an engine or a fleet depends on.

The operator validates the whole resource; this refuses what would change a simulation unnoticed
(unknown fields, contradictions) and leaves the judgement of engine arguments to
`mocker_protocol.engine_args`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mocker_protocol.names import WorkerType
from mocker_simulator.routing import RoutingMode

ARGUMENTS = {
    "blockSize": "block_size",
    "numGpuBlocks": "num_gpu_blocks",
    "maxNumSeqs": "max_num_seqs",
    "maxNumBatchedTokens": "max_num_batched_tokens",
    "enablePrefixCaching": "enable_prefix_caching",
    "enableChunkedPrefill": "enable_chunked_prefill",
    "preemptionMode": "preemption_mode",
    "schedulingPolicy": "scheduling_policy",
    "prefixCachingHashAlgo": "prefix_caching_hash_algo",
    "speedupRatio": "speedup_ratio",
    "decodeSpeedupRatio": "decode_speedup_ratio",
    "startupTimeSeconds": "startup_time",
    "dataParallelSize": "dp_size",
    "seed": "seed",
    "timing": "timing_model",
}
"""Engine argument that a field of an engine section sets."""

ROUTING = {"roundRobin": RoutingMode.ROUND_ROBIN, "leastLoaded": RoutingMode.LEAST_LOADED}
"""What `frontend.routing` may say."""

FIELDS = {
    "spec": (
        *(role.value for role in WorkerType),
        *"model image tokenizer engine kvEvents frontend scaling".split(),
    ),
    "model": ("name", "maxModelLen"),
    "role": ("replicas", "engine", "scaling", "template"),
    "frontend": ("enabled", "replicas", "routing", "template"),
    "engine": (*ARGUMENTS, "extraEngineArgs"),
}
"""Fields of the sections that are read."""


class InvalidManifest(ValueError):
    """A manifest that says nothing about a fleet; the text names the field and the remedy."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Replicas and engine arguments by role, and how requests are routed."""

    replicas: dict[WorkerType, int]
    engine: dict[WorkerType, dict[str, Any]]
    routing: RoutingMode


def load_manifest(path: Path) -> object:
    """Parse a file of one YAML document.

    Raises:
        InvalidManifest: if it is something else.
        OSError: if the file cannot be read.
    """
    import yaml  # slow, and not needed without a manifest

    try:
        return yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InvalidManifest(f"{path}: not one YAML document: {reason}") from error


def read_deployment(manifest: object) -> Deployment:
    """Read a parsed manifest.

    Raises:
        InvalidManifest: if it is no MockerDeployment with workers.
    """
    if not isinstance(manifest, Mapping) or manifest.get("kind") != "MockerDeployment":
        raise InvalidManifest("kind: must be MockerDeployment; give the file of one resource")
    spec = _section(manifest, "spec", "spec", FIELDS["spec"])
    roles = [role for role in WorkerType if spec.get(role.value) is not None]
    if not roles:
        raise InvalidManifest("spec: has neither aggregated nor prefill and decode; add workers")
    frontend = _section(spec, "frontend", "spec.frontend", FIELDS["frontend"])
    routing = frontend.get("routing") or "roundRobin"
    if not isinstance(routing, str) or routing not in ROUTING:
        raise InvalidManifest(f"spec.frontend.routing: must be one of {', '.join(ROUTING)}")
    return Deployment(
        replicas={role: _replicas(spec, role) for role in roles},
        engine={role: _engine(spec, role) for role in roles},
        routing=ROUTING[routing],
    )


def _section(
    parent: Mapping[str, Any], key: str, path: str, fields: Collection[str] | None = None
) -> dict[str, Any]:
    """Return a mapping without its nulls; empty if it is absent."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidManifest(f"{path}: must be a mapping")
    if fields is not None and (unknown := [str(name) for name in value if name not in fields]):
        raise InvalidManifest(
            f"{path}.{unknown[0]}: unknown field; remove it, or correct it to one of "
            f"{', '.join(fields)}"
        )
    return {name: item for name, item in value.items() if item is not None}


def _role(spec: Mapping[str, Any], role: WorkerType) -> dict[str, Any]:
    return _section(spec, role.value, f"spec.{role.value}", FIELDS["role"])


def _replicas(spec: Mapping[str, Any], role: WorkerType) -> int:
    replicas = _role(spec, role).get("replicas", 1)
    if type(replicas) is not int or replicas < 0:
        raise InvalidManifest(
            f"spec.{role.value}.replicas: must be a number of workers, not {replicas!r}"
        )
    return replicas


def _engine(spec: Mapping[str, Any], role: WorkerType) -> dict[str, Any]:
    """Return a role's engine arguments: fields over `extraEngineArgs`, its own over the shared."""
    sections = {"spec.engine": spec, f"spec.{role.value}.engine": _role(spec, role)}
    named: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    longest = _section(spec, "model", "spec.model", FIELDS["model"]).get("maxModelLen")
    if longest is not None:
        named["max_model_len"] = longest
    for path, parent in sections.items():
        named |= _named(_section(parent, "engine", path, FIELDS["engine"]), path)
    named["worker_type"] = role.value
    for path, parent in sections.items():
        at = f"{path}.extraEngineArgs"
        given = _section(_section(parent, "engine", path), "extraEngineArgs", at)
        _refuse_contradictions(given, named, at)
        extra |= given
    without_role = {k: v for k, v in extra.items() if k not in ("is_prefill", "is_decode")}
    return {**without_role, **named}


def _refuse_contradictions(given: Mapping[str, Any], named: Mapping[str, Any], path: str) -> None:
    role = named["worker_type"]
    said = {**named, "is_prefill": role == "prefill", "is_decode": role == "decode"}
    for name, value in given.items():
        if name in said and (type(value) is bool, value) != (type(said[name]) is bool, said[name]):
            raise InvalidManifest(
                f"{path}.{name}: {value!r} contradicts {said[name]!r} elsewhere; remove one"
            )


def _named(engine: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the engine arguments that the fields of one section set."""
    found = {ARGUMENTS[k]: value for k, value in engine.items() if k != "extraEngineArgs"}
    if "timing" in engine:
        found["timing_model"] = _timing(engine, f"{path}.timing")
    return found


def _timing(engine: Mapping[str, Any], path: str) -> dict[str, Any]:
    timing = _section(engine, "timing", path, ("fixed",))
    fixed = _section(timing, "fixed", f"{path}.fixed", ("prefillMs", "decodeMs"))
    if len(fixed) < 2:
        raise InvalidManifest(f"{path}.fixed: needs prefillMs and decodeMs, or remove timing")
    return {"type": "fixed", "prefill_ms": fixed["prefillMs"], "decode_ms": fixed["decodeMs"]}
