"""The indexer of Dynamo 0.7.0 on the KV events in JetStream: NAMESPACE COMPONENT BLOCK_SIZE.

NATS_SERVER and ETCD_ENDPOINTS name the servers. It empties the stream when it starts, so it has to
be there before the worker. {"tokens": [...]} is answered with {"worker/rank": matched blocks}.
"""

import asyncio
import sys

from conversation import converse, scores
from dynamo import _core


async def indexer():
    namespace, component, block_size = sys.argv[1:]
    runtime = _core.DistributedRuntime(asyncio.get_running_loop(), "etcd", False)
    place = runtime.namespace(namespace).component(component)
    found = _core.KvIndexer(place, int(block_size))

    async def answer(tokens):
        return scores((await found.find_matches_for_request(tokens, 0)).scores)

    return answer


converse(indexer)
