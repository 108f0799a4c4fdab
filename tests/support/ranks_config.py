"""A fast worker of several ranks with a small cache, for tests of what it tells by NATS."""

from local_worker import local_worker_config


def ranks_config(nats_url, events, *, dp_size, num_gpu_blocks):
    """Return its configuration."""
    args = {
        "block_size": 4,
        "num_gpu_blocks": num_gpu_blocks,
        "dp_size": dp_size,
        "timing_model": {"type": "fixed", "prefill_ms": 0.5, "decode_ms": 0.5},
    }
    return local_worker_config(
        args, nats_url=nats_url, namespace="default-demo", worker_uid="uid-1", events=events
    )
