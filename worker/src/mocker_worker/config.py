"""What one worker process is told: where it serves, where NATS is, who it is."""

from dataclasses import dataclass

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.names import Component, worker_id_from_uid


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
    drain_timeout_s: float
    drain_grace_s: float

    @property
    def worker_id(self) -> int:
        """Id in events, metrics and registration."""
        return worker_id_from_uid(self.worker_uid)

    @property
    def component(self) -> Component:
        """Names on NATS."""
        return Component(self.namespace, self.args.worker_type.component)
