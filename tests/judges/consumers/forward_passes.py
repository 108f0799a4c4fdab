"""Dynamo 1.6.1's subscriber to forward-pass metrics: ENDPOINT.

NATS_SERVER and ETCD_ENDPOINTS name the servers. {} is answered with what it has tracked as the
latest of each rank, {"worker/rank": message}, and all messages since the last question, in order;
messages are hexadecimal msgpack.
"""

import asyncio
import sys
import threading

from conversation import converse
from dynamo import _core


async def subscriber():
    loop = asyncio.get_running_loop()
    runtime = _core.DistributedRuntime(loop, "etcd", "tcp", event_plane="nats")
    endpoint = runtime.endpoint(sys.argv[1])
    await (await endpoint.client()).wait_for_instances()
    tracked, received = (_core.FpmEventSubscriber(endpoint) for _ in range(2))
    tracked.start_tracking()
    messages = []

    def receive():
        while (message := received.recv()) is not None:
            messages.append(message.hex())

    threading.Thread(target=receive, daemon=True).start()

    async def answer():
        latest = tracked.get_recent_stats().items()
        new = messages[:]
        del messages[: len(new)]
        return {
            "latest": {f"{worker}/{rank}": message.hex() for (worker, rank), message in latest},
            "messages": new,
        }

    return answer


converse(subscriber)
