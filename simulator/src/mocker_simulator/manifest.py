"""A fleet from a MockerDeployment manifest: just the fields that an engine or a fleet depends on.

The operator validates the whole resource; this reads what the simulator needs and leaves the
judgement of engine arguments to `mocker_protocol.engine_args`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mocker_protocol.names import WorkerType
from mocker_simulator.routing import RoutingMode

_ARGUMENTS = {
    "blockSize": "block_size",
    "numGpuBlocks": "num_gpu_blocks",
    "maxNumSeqs": "max_num_seqs",
    "maxNumBatchedTokens": "max_num_batched_tokens",
    "enablePrefixCaching": "enable_prefix_caching",
    "enableChunkedPrefill": "enable_chunked_prefill",
    "preemptionMode": "preemption_mode",
    "speedupRatio": "speedup_ratio",
    "decodeSpeedupRatio": "decode_speedup_ratio",
    "startupTimeSeconds": "startup_time",
    "dataParallelSize": "dp_size",
    "seed": "seed",
}

_ROUTING = {
    "roundRobin": RoutingMode.ROUND_ROBIN,
    "leastLoaded": RoutingMode.LEAST_LOADED,
    "kv": RoutingMode.KV,
}


class InvalidManifest(ValueError):
    """A manifest that says nothing about a fleet; the text names the field and the remedy."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Replicas and engine arguments by role, and how requests are routed."""

    replicas: dict[WorkerType, int]
    engine: dict[WorkerType, dict[str, Any]]
    routing: RoutingMode


def read_deployment(manifest: object) -> Deployment:
    """Read a parsed manifest.

    Raises:
        InvalidManifest: if it is no MockerDeployment with workers.
    """
    if not isinstance(manifest, Mapping) or manifest.get("kind") != "MockerDeployment":
        raise InvalidManifest("kind: must be MockerDeployment; give the file of one resource")
    spec = _mapping(manifest, "spec")
    roles = [role for role in WorkerType if spec.get(role.value) is not None]
    if not roles:
        raise InvalidManifest("spec: has neither aggregated nor prefill and decode; add workers")
    shared = _engine(_mapping(spec, "engine"))
    if (longest := _mapping(spec, "model").get("maxModelLen")) is not None:
        shared.setdefault("max_model_len", longest)
    routing = _mapping(spec, "frontend").get("routing", "roundRobin")
    if routing not in _ROUTING:
        raise InvalidManifest(f"frontend.routing: must be one of {', '.join(_ROUTING)}")
    return Deployment(
        replicas={role: _mapping(spec, role.value).get("replicas", 1) for role in roles},
        engine={
            role: {
                **shared,
                **_transfer(_mapping(spec, "kvTransfer")),
                **_engine(_mapping(_mapping(spec, role.value), "engine")),
                "worker_type": role.value,
            }
            for role in roles
        },
        routing=_ROUTING[routing],
    )


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidManifest(f"{key}: must be a mapping")
    return value


def _engine(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Translate one engine section; keys that it does not know stay and are refused later."""
    found: dict[str, Any] = dict(_mapping(engine, "extraEngineArgs"))
    for key, value in engine.items():
        if key == "timing":
            found["timing_model"] = _timing(_mapping(engine, key))
        elif key != "extraEngineArgs" and value is not None:
            found[_ARGUMENTS.get(key, key)] = value
    return found


def _timing(timing: Mapping[str, Any]) -> dict[str, Any]:
    fixed = timing.get("fixed")
    if not isinstance(fixed, Mapping):
        return {"type": "polynomial"}
    return {
        "type": "fixed",
        "prefill_ms": float(fixed.get("prefillMs", 0)),
        "decode_ms": float(fixed.get("decodeMs", 0)),
    }


def _transfer(transfer: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "bandwidthGBps": "kv_transfer_bandwidth",
        "bytesPerToken": "kv_bytes_per_token",
        "timing": "kv_transfer_timing_mode",
    }
    found = {names[key]: value for key, value in transfer.items() if key in names}
    mode = found.get("kv_transfer_timing_mode")
    if isinstance(mode, str):
        words = {"fullPrompt": "full_prompt", "destinationMissing": "destination_missing"}
        found["kv_transfer_timing_mode"] = words.get(mode, mode)
    return found
