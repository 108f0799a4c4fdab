"""The ZMQ listener of Dynamo 0.7.0 before its radix tree: BLOCK_SIZE ID ENDPOINT TOPIC.

{"tokens": [...]} is answered with {"worker/rank": matched blocks}, and {"state": true} with
{"events": n, "last_id": n, "errors": [text ...]}: what the tree refused, and jumps of the number.
"""

import json
import sys

from conversation import converse, scores
from dynamo import _core


async def listener():
    block_size, worker_id, endpoint, topic = sys.argv[1:]
    source = _core.ZmqKvEventListener(endpoint, topic, int(block_size))
    tree = _core.RadixTree()
    state = {"events": 0, "last_id": None, "errors": []}

    def apply(text):
        event = json.loads(text)
        last_id = state["last_id"]
        if last_id is not None and event["event_id"] != last_id + 1:
            state["errors"].append(f"event {event['event_id']} after {last_id}")
        state["last_id"] = event["event_id"]
        state["events"] += 1
        try:
            tree.apply_event(int(worker_id), text.encode())
        except Exception as error:
            state["errors"].append(f"{type(error).__name__} at {text[:300]}: {error}")

    async def answer(tokens=None, **_state):
        for text in await source.get_events():
            apply(text)
        if tokens is None:
            return state
        hashes = _core.compute_block_hash_for_seq_py(tokens, int(block_size))
        return scores(tree.find_matches(hashes).scores)

    return answer


converse(listener)
