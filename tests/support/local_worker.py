"""Configurations of workers that run in a test's own process."""

from typing import Any

from mocker_protocol.engine_args import parse_engine_args
from mocker_worker.config import WorkerConfig


def local_worker_config(args: dict[str, Any], **settings: Any) -> WorkerConfig:
    """Return that of a worker without NATS on a free port.

    Args:
        args: Of the engine.
        settings: Fields of the configuration that differ.
    """
    return WorkerConfig(
        **{
            "args": parse_engine_args(args),
            "model_name": "mock",
            "host": "127.0.0.1",
            "port": 0,
            "advertised_host": "127.0.0.1",
            "nats_url": None,
            "namespace": "dynamo",
            "worker_uid": "uid",
            "drain_timeout_s": 10.0,
            "drain_grace_s": 0.0,
            **settings,
        }
    )
