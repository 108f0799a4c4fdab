"""Prompts of 32,768 tokens in every format: in parts that fit any message and hang together."""

import pytest
from kv_consumers import StrictCache, blocks_of

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.engine_args import parse_engine_args
from mocker_protocol.event_plane import (
    MAX_BLOCKS,
    MAX_EVENTS,
    decode_router_events,
    encode_router_events,
)
from mocker_protocol.kv_events import (
    AllBlocksCleared,
    BlockStored,
    decode_router_event,
    encode_router_event,
)
from mocker_protocol.zmq_events import EventFormat, StoredBlocks, decode_batch, encode_batch
from mocker_worker.engine import EngineCore, Request
from mocker_worker.events.event_plane_publisher import messages_of
from mocker_worker.events.hub import KvEventHub
from mocker_worker.events.outbox import Outbox

PROMPT_TOKENS = 32_768
MAX_PAYLOAD_BYTES = 1_048_576
"""What nats-server takes unless it is told otherwise."""


class Recorder:
    name = "recorder"

    def __init__(self):
        self.events = []

    def publish(self, events):
        self.events += events


def by_jetstream(events):
    for item in events:
        message = encode_router_event(5, item.event_id, item.event)
        assert len(message) < MAX_PAYLOAD_BYTES
        yield decode_router_event(message)


def by_event_plane(events):
    outbox = Outbox()
    outbox.put(events)
    while batch := outbox.head(512, MAX_BLOCKS):
        outbox.take_off(len(batch))
        for part in messages_of(batch):
            payload = encode_router_events(5, [(item.event_id, item.event) for item in part])
            assert len(payload) < MAX_PAYLOAD_BYTES
            decoded = decode_router_events(payload)
            assert len(decoded) <= MAX_EVENTS
            yield from decoded


def by_zmq(event_format):
    def read(events):
        for item in events:
            payload = encode_batch(
                [item.event], timestamp_s=0.0, dp_rank=0, event_format=event_format
            )
            [event] = decode_batch(payload).events
            yield item._replace(event=as_blocks(event))

    return read


def as_blocks(event):
    if not isinstance(event, StoredBlocks):
        return event
    assert len(event.token_ids) == len(event.block_hashes) * event.block_size
    blocks = tuple(BlockHash(item, item) for item in event.block_hashes)
    return BlockStored(event.parent_block_hash, blocks)


READERS = {
    "jetstream": by_jetstream,
    "event-plane": by_event_plane,
    **{f"zmq-{form}": by_zmq(form) for form in EventFormat},
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("algorithm", ["xxh3", "sha256_cbor"])
@pytest.mark.parametrize("block_size", [2, 16, 16_384])
def test_a_long_prompt_is_told_whole(block_size, algorithm, read):
    args = parse_engine_args(
        {
            "block_size": block_size,
            "num_gpu_blocks": PROMPT_TOKENS // block_size + 1,
            "max_num_batched_tokens": None,
            "enable_chunked_prefill": False,
            "prefix_caching_hash_algo": algorithm,
        }
    )
    engine, recorder = EngineCore(args), Recorder()
    hub = KvEventHub(lambda rank: engine.cached_blocks(), 1)
    hub.attach(recorder)
    hub.start()
    caches = []
    for prompt in range(2):
        tokens = [4_000_000_000 + (token * 7 + prompt) % 99_991 for token in range(PROMPT_TOKENS)]
        engine.add_request(Request(str(prompt), tokens, 1, cache_salt="salt" if prompt else None))
        hub.publish(0, engine.step().kv_events)
        caches.append(blocks_of(engine.cached_blocks()))
    hub.resynchronize(0)

    cache, anew = StrictCache(), []
    for event in read(recorder.events):
        cache.apply(event.event_id, event.event)
        if event.event == AllBlocksCleared():
            anew.append(event.event_id)
    assert len(anew) == 2
    assert cache.blocks == caches[1] == blocks_of(engine.cached_blocks())
    assert caches[0] != caches[1]
    assert len(cache.blocks) >= PROMPT_TOKENS // block_size
