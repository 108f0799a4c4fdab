"""A fast worker of several ranks with a small cache, for tests of what it tells by NATS."""

from mocker_protocol.engine_args import parse_engine_args
from mocker_worker.config import WorkerConfig


def ranks_config(nats_url, events, *, dp_size, num_gpu_blocks):
    """Return its configuration."""
    args = {
        "block_size": 4,
        "num_gpu_blocks": num_gpu_blocks,
        "dp_size": dp_size,
        "timing_model": {"type": "fixed", "prefill_ms": 0.5, "decode_ms": 0.5},
    }
    return WorkerConfig(
        args=parse_engine_args(args),
        model_name="mock",
        host="127.0.0.1",
        port=0,
        advertised_host="127.0.0.1",
        nats_url=nats_url,
        namespace="default-demo",
        worker_uid="uid-1",
        drain_timeout_s=10.0,
        drain_grace_s=0.0,
        events=events,
    )
