"""Router events, byte for byte as Dynamo 0.7 writes them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.block_hash import BlockHash, hash_blocks
from mocker_protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    count_blocks,
    decode_router_event,
    encode_router_event,
)

WORKER = 7587890123456789
U64 = st.integers(0, 2**64 - 1)
EVENTS = st.one_of(
    st.builds(
        BlockStored,
        st.none() | U64,
        st.lists(st.builds(BlockHash, U64, U64), min_size=1).map(tuple),
    ),
    st.builds(BlockRemoved, st.lists(U64, min_size=1).map(tuple)),
    st.just(AllBlocksCleared()),
)


def test_a_stored_event_is_the_documented_bytes():
    event = BlockStored(None, tuple(hash_blocks(range(1, 9), 4)))
    assert encode_router_event(WORKER, 0, event) == (
        b'{"worker_id":7587890123456789,"event":{"event_id":0,"data":{"stored":'
        b'{"parent_hash":null,"blocks":[{"block_hash":14643705804678351452,'
        b'"tokens_hash":14643705804678351452},{"block_hash":4945711292740353085,'
        b'"tokens_hash":16777012769546811212}]}},"dp_rank":0}}'
    )


def test_a_removed_event_is_the_documented_bytes():
    assert encode_router_event(WORKER, 1, BlockRemoved((4945711292740353085,))) == (
        b'{"worker_id":7587890123456789,"event":{"event_id":1,"data":{"removed":'
        b'{"block_hashes":[4945711292740353085]}},"dp_rank":0}}'
    )


def test_a_cleared_event_is_a_bare_word():
    assert encode_router_event(1, 2, AllBlocksCleared(), dp_rank=3) == (
        b'{"worker_id":1,"event":{"event_id":2,"data":"cleared","dp_rank":3}}'
    )


@given(U64, U64, EVENTS, st.integers(0, 2**32 - 1))
def test_an_event_survives_the_wire(worker_id, event_id, event, dp_rank):
    payload = encode_router_event(worker_id, event_id, event, dp_rank=dp_rank)
    read = decode_router_event(payload)
    assert (read.worker_id, read.event_id, read.event, read.dp_rank) == (
        worker_id,
        event_id,
        event,
        dp_rank,
    )


def test_an_absent_rank_is_rank_zero():
    payload = b'{"worker_id":1,"event":{"event_id":0,"data":"cleared"}}'
    assert decode_router_event(payload).dp_rank == 0


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"worker_id":1}',
        b'{"worker_id":1,"event":[]}',
        b'{"worker_id":1,"event":{"event_id":0,"data":"gone"}}',
        b'{"worker_id":1,"event":{"event_id":0,"data":{"stored":{}}}}',
        b'{"worker_id":1,"event":{"event_id":0,"data":{"removed":{"block_hashes":5}}}}',
        b'{"worker_id":"x","event":{"event_id":0,"data":"cleared"}}',
    ],
)
def test_rubbish_is_a_value_error(payload):
    with pytest.raises(ValueError, match=r".+"):
        decode_router_event(payload)


@given(st.binary())
def test_no_payload_raises_anything_but_a_value_error(payload):
    with suppress(ValueError):
        decode_router_event(payload)


@pytest.mark.parametrize(
    ("event", "blocks"),
    [
        (BlockStored(None, (BlockHash(1, 1), BlockHash(2, 2))), 2),
        (BlockRemoved((1, 2, 3)), 3),
        (AllBlocksCleared(), 0),
    ],
)
def test_blocks_are_counted(event, blocks):
    assert count_blocks(event) == blocks
