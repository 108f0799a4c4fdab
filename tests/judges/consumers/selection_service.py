"""The selection service of Dynamo 1.6.1 on KV events by ZMQ: BLOCK_SIZE ID ENDPOINT [REPLAY].

{"tokens": [...]} is answered with {"worker/rank": matched blocks}.
"""

import sys

from conversation import converse, scores
from dynamo import _core

MODEL = "mock"


async def service():
    block_size, worker_id, endpoint, *replay = sys.argv[1:]
    found = _core.SelectionService(indexer_threads=1)
    worker = {
        "worker_id": int(worker_id),
        "model_name": MODEL,
        "block_size": int(block_size),
        "endpoint": "http://127.0.0.1:1",  # where requests would go
        "kv_events_endpoint": endpoint,
    }
    if replay:
        worker["replay_endpoint"] = replay[0]
    record = await found.upsert_worker(worker)
    assert record["lifecycle"] == "schedulable", record

    async def answer(tokens):
        seen = await found.overlap_scores({"model_name": MODEL, "token_ids": tokens})
        workers = seen["workers"]
        return scores({(w["worker_id"], w["dp_rank"]): w["device_blocks"] for w in workers})

    return answer


converse(service)
