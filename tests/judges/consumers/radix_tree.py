"""Applies RouterEvents to Dynamo's radix tree and answers what it matches.

Runs on the Python of an `ai-dynamo-runtime` wheel, 0.7.0 or 1.6.1; needs no server. Reads JSON
lines from stdin, in order, and answers them on stdout once its input ends:

    {"worker_id", "event": {"event_id", "data", "dp_rank"}}   applied; no answer unless refused
    {"match": [tokens_hash ...]}                              {"worker/rank": matched blocks}
    {"tokens": [...], "block_size": n, "salt": null}          the same, hashed by Dynamo
    {"dump": true}                                            [[worker, rank, parent, hash, local]]

The last answer is {"events": n, "errors": [text ...]}. An event number that does not follow its
predecessor of the same worker and rank, or that does not begin with 0, is an error.
"""

import json
import os
import sys

os.environ.setdefault("DYN_LOG", "off")

from dynamo import _core


def hashes(tokens, block_size, salt):
    if salt is None:
        hash_blocks = getattr(_core, "compute_block_hash_for_seq", None)
        return (hash_blocks or _core.compute_block_hash_for_seq_py)(tokens, block_size)
    return _core.compute_block_hash_for_seq(tokens, block_size, cache_namespace=salt)


class Judge:
    def __init__(self):
        self.tree = _core.RadixTree()
        self.events = 0
        self.errors = []
        self.next_ids = {}

    def answer(self, request):
        if "event" in request:
            self.apply(request["worker_id"], request["event"])
            return None
        if "dump" in request:
            return self.dump()
        return self.match(
            request["match"]
            if "match" in request
            else hashes(request["tokens"], request["block_size"], request["salt"])
        )

    def apply(self, worker_id, event):
        key = worker_id, event["dp_rank"]
        expected = self.next_ids.get(key, 0)
        if event["event_id"] != expected:
            self.errors.append(f"{key}: event {event['event_id']} where {expected} was due")
        self.next_ids[key] = event["event_id"] + 1
        self.events += 1
        try:
            self.tree.apply_event(worker_id, json.dumps(event).encode())
        except Exception as error:
            self.errors.append(f"{key}: {type(error).__name__} at {event}: {error}"[:500])

    def match(self, local_hashes):
        scores = self.tree.find_matches(local_hashes).scores
        return {f"{worker}/{rank}": blocks for (worker, rank), blocks in scores.items()}

    def dump(self):
        blocks = []
        for text in self.tree.dump_tree_as_events():
            message = json.loads(text)
            event = message["event"]
            stored = event["data"]["stored"]
            parent = stored["parent_hash"]
            for block in stored["blocks"]:
                place = message["worker_id"], event.get("dp_rank", 0)
                blocks.append([*place, parent, block["block_hash"], block["tokens_hash"]])
                parent = block["block_hash"]
        return blocks


def main():
    judge = Judge()
    answers = [judge.answer(json.loads(line)) for line in sys.stdin]
    for answer in answers:
        if answer is not None:
            print(json.dumps(answer))
    print(json.dumps({"events": judge.events, "errors": judge.errors}), flush=True)
    os._exit(0)  # 0.7.0 may crash in the destructors of its threads


if __name__ == "__main__":
    main()
