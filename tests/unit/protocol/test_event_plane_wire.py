"""The event plane of Dynamo 1.x, byte for byte."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.block_hash import BlockHash, hash_blocks
from mocker_protocol.event_plane import (
    KV_EVENTS_TOPIC,
    Envelope,
    decode_envelope,
    decode_router_events,
    encode_envelope,
    encode_router_events,
)
from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

ONE_BLOCK = bytes.fromhex(
    "9183a9776f726b65725f6964cd04d2ac73746f726167655f74696572a6646576696365a56576656e7483a865"
    "76656e745f696400a46461746181a673746f72656483ab706172656e745f68617368c0ae73746172745f706f"
    "736974696f6ec0a6626c6f636b739183aa626c6f636b5f68617368cfcb38e4d7fb2dca5cab746f6b656e735f"
    "68617368cfcb38e4d7fb2dca5cad6d6d5f65787472615f696e666fc0a764705f72616e6b00"
)
"""What Dynamo 1.6 made of tokens 1 to 4 of worker 1234, in a block of 4."""
U64 = st.integers(0, 2**64 - 1)
EVENTS = st.one_of(
    st.builds(BlockStored, st.none() | U64, st.lists(st.builds(BlockHash, U64, U64)).map(tuple)),
    st.builds(BlockRemoved, st.lists(U64).map(tuple)),
    st.just(AllBlocksCleared()),
)


def test_a_stored_event_is_the_bytes_of_dynamo():
    event = BlockStored(None, tuple(hash_blocks([1, 2, 3, 4], 4)))
    assert encode_router_events(1234, [(0, event)]) == ONE_BLOCK
    (read,) = decode_router_events(ONE_BLOCK)
    assert (read.worker_id, read.event_id, read.dp_rank, read.event) == (1234, 0, 0, event)


def test_removed_and_cleared_are_maps_and_a_bare_word():
    payload = encode_router_events(
        1, [(3, BlockRemoved((2**64 - 1, 5))), (4, AllBlocksCleared())], dp_rank=2
    )
    head = {"worker_id": 1, "storage_tier": "device"}
    removed = {"removed": {"block_hashes": [2**64 - 1, 5]}}
    assert msgspec.msgpack.decode(payload) == [
        {**head, "event": {"event_id": 3, "data": removed, "dp_rank": 2}},
        {**head, "event": {"event_id": 4, "data": "cleared", "dp_rank": 2}},
    ]


@given(st.lists(EVENTS), U64, st.integers(0, 2**32 - 1))
def test_events_survive_the_wire(events, worker_id, dp_rank):
    numbered = list(enumerate(events, 2**63))
    read = decode_router_events(encode_router_events(worker_id, numbered, dp_rank=dp_rank))
    assert [(item.event_id, item.event) for item in read] == numbered
    assert all((item.worker_id, item.dp_rank) == (worker_id, dp_rank) for item in read)


def test_fields_of_other_publishers_are_taken():
    message = msgspec.msgpack.decode(ONE_BLOCK)
    message[0] |= {"residency_domain": "worker", "session_id": None}
    message[0]["event"]["data"]["stored"]["blocks"][0]["mm_extra_info"] = {"mm_objects": []}
    del message[0]["event"]["dp_rank"]
    assert decode_router_events(msgspec.msgpack.encode(message)) == decode_router_events(ONE_BLOCK)


def test_the_envelope_is_a_map_with_a_binary_payload():
    envelope = Envelope(
        publisher_id=2**62 - 1, sequence=0, published_at=1700, topic=KV_EVENTS_TOPIC, payload=b"x"
    )
    message = encode_envelope(envelope)
    assert list(msgspec.msgpack.decode(message).items()) == [
        ("publisher_id", 2**62 - 1),
        ("sequence", 0),
        ("published_at", 1700),
        ("topic", "kv-events"),
        ("payload", b"x"),
    ]
    assert decode_envelope(message) == envelope
