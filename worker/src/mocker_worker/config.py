"""What one worker process is told: where it serves, how it answers, where NATS is, who it is."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.names import Component, worker_id_from_uid

if TYPE_CHECKING:
    from mocker_worker.events.zmq_options import ZmqOptions


class Mode(StrEnum):
    """What answers consist of."""

    RANDOM = "random"
    ECHO = "echo"


class FingerprintMode(StrEnum):
    """What the `system_fingerprint` of answers consists of (vLLM's words)."""

    FULL = "full"
    """Version, data parallelism if there is any, and a hash of model and engine arguments."""
    HASH = "hash"
    """The same without the parallelism."""
    CUSTOM = "custom"
    NONE = "none"


class NatsFormat(StrEnum):
    """How KV events go to NATS."""

    JETSTREAM = "dynamo-jetstream"
    EVENT_PLANE = "dynamo-event-plane"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the HTTP server behaves."""

    mode: Mode = Mode.RANDOM
    max_num_queued_reqs: int | None = None
    """Requests that may wait in the engine's queue; None: any number."""
    max_num_queued_tokens: int | None = None
    """Their prompt tokens; None: any number."""
    queue_full_status: int = 503
    """HTTP status of a request that finds the queue full: 503 (vLLM) or 429."""
    api_keys: tuple[str, ...] = ()
    """Keys that `/v1` takes; empty: no key is needed."""
    request_id_headers: bool = False
    """Whether answers carry `X-Request-Id`."""
    fingerprint_mode: FingerprintMode = FingerprintMode.FULL
    fingerprint_value: str | None = None
    """The fingerprint of mode `custom`."""
    metrics_dialects: frozenset[str] = frozenset({"vllm"})
    tokenizer_path: Path | None = None
    """A Hugging Face tokenizer.json, or its directory; None: the built-in tokenizer."""
    failure_rate_percent: float = 0.0
    failure_types: tuple[str, ...] = ()
    """Kinds of injected faults; empty: those of llm-d-inference-sim."""
    latency_jitter: float = 0.0
    """Standard deviation of pass times, as a share of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOptions:
    """Where KV events go."""

    nats_format: NatsFormat = NatsFormat.JETSTREAM
    zmq: "ZmqOptions | None" = None
    etcd_endpoints: tuple[str, ...] = ()
    """Where Dynamo 1.6 discovers workers, as URLs; empty: it is not told."""
    recovery_port: int = 0
    """Where its KV routers ask for blocks that they missed; 0 takes any free port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of a worker, complete."""

    args: EngineArgs
    model_name: str
    host: str
    port: int
    """0 takes any free port."""
    advertised_host: str
    """Where frontends reach this worker."""
    nats_url: str | None
    """None runs without NATS: no events, no registration."""
    namespace: str
    """Dynamo namespace."""
    worker_uid: str
    pod_name: str | None = None
    pod_namespace: str | None = None
    drain_timeout_s: float
    drain_grace_s: float
    server: ServerOptions = field(default_factory=ServerOptions)
    events: EventOptions = field(default_factory=EventOptions)

    @property
    def worker_id(self) -> int:
        """Id in events, metrics and registration."""
        return worker_id_from_uid(self.worker_uid)

    @property
    def component(self) -> Component:
        """Names on NATS."""
        return Component(self.namespace, self.args.worker_type.component)


def authority(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
