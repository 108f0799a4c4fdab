"""Settings of one frontend process, as the command line gives them."""

from dataclasses import dataclass

from mocker_frontend.registry import Worker
from mocker_frontend.routing.policies import RoutingMode


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendConfig:
    """Everything that `mocker-frontend serve` needs to know."""

    host: str = "0.0.0.0"
    port: int = 8000
    """0 takes a free port; the log says which."""
    model_name: str
    namespace: str = "dynamo"
    """Dynamo namespace whose workers are used."""
    nats_url: str | None = "nats://127.0.0.1:4222"
    """None: only the static workers."""
    static_workers: tuple[Worker, ...] = ()
    routing: RoutingMode = RoutingMode.ROUND_ROBIN
    api_keys: tuple[str, ...] = ()
    """Keys that `/v1` takes as bearer tokens; empty: no key is needed."""
    drain_timeout_s: float = 60.0
    drain_grace_s: float = 2.0
    """Least time that requests are still accepted after SIGTERM."""
    connect_timeout_s: float = 2.0
    read_timeout_s: float = 600.0
    """Longest silence of a worker within one request."""
