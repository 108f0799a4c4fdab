"""How a worker is told to publish KV events, and the ports on which consumers find them.

What is the worker's default anyway is not said, so that manifests of before stay as they are.
"""

import json
from typing import Any, Final

from mocker_operator.api.kv_events import KvEventsSpec, KvTransport, NatsFormat
from mocker_protocol.engine_args import EngineArgs

_EVENTS_PORT: Final = 5557
"""vLLM's. Rank r publishes at this + r, and replays at the first port above all ranks + r."""
_TOPIC: Final = "kv@{pod_ip}:{port}@{model}"
"""What llm-d's endpoint picker takes apart; the worker fills it in."""


def kv_event_args(events: KvEventsSpec, engine: EngineArgs) -> list[str]:
    """Return the flags of a worker; none if its engine publishes nothing."""
    if not engine.publishes_kv_events:
        return []
    args: list[str] = []
    if KvTransport.NATS not in events.transports:
        args += ["--kv-events-nats-format", "none"]
    elif events.nats_format is not NatsFormat.DYNAMO_JETSTREAM:
        args += ["--kv-events-nats-format", str(events.nats_format)]
    if KvTransport.ZMQ in events.transports:
        args += ["--kv-events-config", json.dumps(_zmq(events, engine), separators=(",", ":"))]
    return args


def kv_event_ports(events: KvEventsSpec, engine: EngineArgs) -> list[dict[str, Any]]:
    """Return the container ports of the ZMQ sockets: `kv-events` and `kv-replay` of each rank."""
    if KvTransport.ZMQ not in events.transports or not engine.publishes_kv_events:
        return []
    first = {"kv-events": _EVENTS_PORT, "kv-replay": _replay_port(engine)}
    return [
        {
            "name": f"{name}-{rank}" if rank else name,
            "containerPort": port + rank,
            "protocol": "TCP",
        }
        for name, port in first.items()
        for rank in range(engine.dp_size)
    ]


def _zmq(events: KvEventsSpec, engine: EngineArgs) -> dict[str, Any]:
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{_EVENTS_PORT}",
        "replay_endpoint": f"tcp://*:{_replay_port(engine)}",
        "topic": _TOPIC,
        "format": str(events.zmq_format),
    }


def _replay_port(engine: EngineArgs) -> int:
    return _EVENTS_PORT + engine.dp_size
