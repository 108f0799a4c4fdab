import asyncio
import contextlib

import pytest
from local_worker import local_worker_config
from waiting import PATIENCE_S

from mocker_worker.config import ServerOptions
from mocker_worker.serve import Worker

FAST = {"type": "fixed", "prefill_ms": 2.0, "decode_ms": 1.0}


def config_of(*, drain_timeout_s=10.0, drain_grace_s=0.0, server=None, **args):
    """Return the configuration of a fast worker without NATS."""
    args = {"timing_model": FAST, "block_size": 4} | args
    return local_worker_config(
        args,
        pod_name="pod-1",
        pod_namespace="testing",
        drain_timeout_s=drain_timeout_s,
        drain_grace_s=drain_grace_s,
        server=server or ServerOptions(),
    )


@contextlib.asynccontextmanager
async def running_worker(**settings):
    """Run a worker without NATS in this loop; gives the worker, stops it in the end."""
    worker = Worker(config_of(**settings))
    run = asyncio.create_task(worker.run())
    try:
        await worker.listening
        yield worker
    finally:
        worker.lifecycle.request_stop()
        async with asyncio.timeout(PATIENCE_S):
            await run


@pytest.fixture
def worker_config():
    return config_of


@pytest.fixture
def run_worker():
    return running_worker
