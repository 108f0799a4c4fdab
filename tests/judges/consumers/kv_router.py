"""The KV router of Dynamo 1.6.1 on its event plane: ENDPOINT BLOCK_SIZE.

NATS_SERVER and ETCD_ENDPOINTS name the servers. It is ready once a worker's model card is in etcd.
{"tokens": [...]} is answered with {"worker/rank": matched blocks}, and {"dump": true} with all that
it knows: [worker, rank, parent, block hash, local hash] of each block.
"""

import asyncio
import json
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

    async def answer(tokens=None, dump=False):
        if dump:
            return list(blocks(json.loads(await found.dump_events())))
        workers = (await found.get_overlap_scores(tokens))["workers"]
        return scores({(w["worker_id"], w["dp_rank"]): w["device_blocks"] for w in workers})

    return answer


def blocks(events):
    for message in events:
        event = message["event"]
        stored = event["data"]["stored"]
        parent = stored["parent_hash"]
        for block in stored["blocks"]:
            place = message["worker_id"], event.get("dp_rank", 0)
            yield [*place, parent, block["block_hash"], block["tokens_hash"]]
            parent = block["block_hash"]


converse(router)
