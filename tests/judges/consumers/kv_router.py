"""The KV router of Dynamo 1.6.1 on its event plane: ENDPOINT BLOCK_SIZE.

NATS_SERVER and ETCD_ENDPOINTS name the servers. It is ready once a worker's model card is in etcd.
{"tokens": [...]} is answered with {"worker/rank": matched blocks}.
"""

import asyncio
import sys

from conversation import converse, scores
from dynamo import _core


async def router():
    endpoint_name, block_size = sys.argv[1:]
    loop = asyncio.get_running_loop()
    runtime = _core.DistributedRuntime(loop, "etcd", "tcp", event_plane="nats")
    endpoint = runtime.endpoint(endpoint_name)
    await (await endpoint.client()).wait_for_instances()
    # The constructor blocks until it sees the model card.
    found = await asyncio.to_thread(
        _core.KvRouter, endpoint, int(block_size), _core.KvRouterConfig()
    )

    async def answer(tokens):
        workers = (await found.get_overlap_scores(tokens))["workers"]
        return scores({(w["worker_id"], w["dp_rank"]): w["device_blocks"] for w in workers})

    return answer


converse(router)
