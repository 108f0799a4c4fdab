import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.block_hash import hash_blocks
from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from mocker_protocol.zmq_events import (
    END_OF_REPLAY,
    EventFormat,
    StoredBlocks,
    decode_batch,
    decode_frames,
    decode_replay_request,
    encode_batch,
    encode_sequence,
)

TOKENS = list(range(1, 9))
HASHES = [14643705804678351452, 4945711292740353085]
STORED = BlockStored(None, tuple(hash_blocks(TOKENS, 4)), TOKENS)
WIRE = StoredBlocks(tuple(HASHES), None, tuple(TOKENS), 4)
TIME_S = 1_700_000_000.0


def batch_of(*events, event_format=EventFormat.MAP, dp_rank=0):
    return encode_batch(events, timestamp_s=TIME_S, dp_rank=dp_rank, event_format=event_format)


# What Dynamo's mocker sends for the blocks of STORED: positional in 1.0, maps in 1.6.
DYNAMO_ARRAY = bytes.fromhex(
    "93cb41d954fc400000009195ab426c6f636b53746f72656492cfcb38e4d7fb2dca5ccf44a2b2379d6d3c3dc09801"
    "020304050607080400"
)
DYNAMO_MAP = bytes.fromhex(
    "93cb41d954fc400000009186a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cfcb38"
    "e4d7fb2dca5ccf44a2b2379d6d3c3db1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739801"
    "02030405060708aa626c6f636b5f73697a6504a967726f75705f6964780000"
)


@pytest.mark.parametrize("payload", [DYNAMO_ARRAY, DYNAMO_MAP])
def test_what_dynamo_sends_is_understood(payload):
    batch = decode_batch(payload)
    assert (batch.timestamp_s, batch.events, batch.dp_rank) == (TIME_S, (WIRE,), 0)


def test_the_positional_form_is_that_of_dynamo_with_lora_id_medium_and_lora_name():
    assert batch_of(STORED, event_format=EventFormat.ARRAY) == (
        DYNAMO_ARRAY[:11] + b"\x98" + DYNAMO_ARRAY[12:-1] + b"\xc0\xa3GPU\xc0" + b"\x00"
    )


# vLLM's classes, made anew from the published definition of their fields.
STORED_FIELDS = [
    ("block_hashes", list[int]),
    ("parent_block_hash", int | None),
    ("token_ids", list[int]),
    ("block_size", int),
    ("lora_id", int | None),
    ("medium", str | None),
    ("lora_name", str | None),
]
REMOVED_FIELDS = [("block_hashes", list[int]), ("medium", str | None)]
EXTRA_KEYS = ("extra_keys", list | None, None)
GROUP = ("group_idx", int | None, None)


def vllm_classes(stored_fields, removed_fields, **options):
    """Return the classes of the three events and of a batch of them."""
    options = {"tag": True, "omit_defaults": True, "gc": False} | options
    stored = msgspec.defstruct("BlockStored", stored_fields, **options)
    removed = msgspec.defstruct("BlockRemoved", removed_fields, **options)
    cleared = msgspec.defstruct("AllBlocksCleared", [], **options)
    fields = [
        ("ts", float),
        ("events", list[stored | removed | cleared]),
        ("data_parallel_rank", int | None, None),
    ]
    batch = msgspec.defstruct("KVEventBatch", fields, array_like=True, omit_defaults=True)
    return stored, removed, cleared, batch


# Arrays hold defaults, too: msgspec leaves them out of maps only.
VLLM_MAP = vllm_classes([*STORED_FIELDS, EXTRA_KEYS, GROUP], [*REMOVED_FIELDS, GROUP])
VLLM_ARRAY = vllm_classes(STORED_FIELDS, REMOVED_FIELDS, array_like=True)
VLLM_SALTED_ARRAY = vllm_classes([*STORED_FIELDS, EXTRA_KEYS], REMOVED_FIELDS, array_like=True)
SALTED = BlockStored(None, tuple(hash_blocks(TOKENS, 4, cache_salt="s")), TOKENS, "s")
CHILD = BlockStored(HASHES[0], STORED.blocks[1:], TOKENS[4:], "s")


@pytest.mark.parametrize(
    ("event", "form", "classes", "optional"),
    [
        (STORED, EventFormat.MAP, VLLM_MAP, ([None, None], 0)),
        (SALTED, EventFormat.MAP, VLLM_MAP, ([("s",), None], 0)),
        (CHILD, EventFormat.MAP, VLLM_MAP, ([None], 0)),
        (STORED, EventFormat.ARRAY, VLLM_ARRAY, ()),
        (SALTED, EventFormat.ARRAY, VLLM_SALTED_ARRAY, ([("s",), None],)),
        (CHILD, EventFormat.ARRAY, VLLM_ARRAY, ()),
    ],
)
def test_stored_blocks_are_byte_for_byte_what_vllm_sends(event, form, classes, optional):
    stored, _, _, batch_class = classes
    hashes, tokens = [block.sequence for block in event.blocks], list(event.token_ids)
    theirs = stored(hashes, event.parent_hash, tokens, 4, None, "GPU", None, *optional)
    payload = batch_of(event, event_format=form, dp_rank=1)
    assert payload == msgspec.msgpack.encode(batch_class(TIME_S, [theirs], 1))
    assert msgspec.msgpack.decode(payload, type=batch_class).events[0].token_ids == tokens


@pytest.mark.parametrize(
    ("form", "classes", "group"),
    [(EventFormat.MAP, VLLM_MAP, (0,)), (EventFormat.ARRAY, VLLM_ARRAY, ())],
)
def test_removed_and_cleared_are_byte_for_byte_what_vllm_sends(form, classes, group):
    _, removed, cleared, batch_class = classes
    batch = batch_class(TIME_S, [removed(HASHES, "GPU", *group), cleared()], 0)
    payload = batch_of(BlockRemoved(tuple(HASHES)), AllBlocksCleared(), event_format=form)
    assert payload == msgspec.msgpack.encode(batch)
    assert msgspec.msgpack.decode(payload, type=batch_class) == batch


def test_a_map_holds_what_vllm_always_sends_even_if_it_is_empty():
    _, [event], _ = msgspec.msgpack.decode(batch_of(STORED))
    assert event == {
        "type": "BlockStored",
        "block_hashes": HASHES,
        "parent_block_hash": None,
        "token_ids": TOKENS,
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
    }


@pytest.mark.parametrize("form", list(EventFormat))
@given(
    st.lists(
        st.one_of(
            st.builds(BlockRemoved, st.lists(st.integers(0, 2**64 - 1)).map(tuple)),
            st.just(AllBlocksCleared()),
            st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=40).map(
                lambda tokens: BlockStored(
                    None, tuple(hash_blocks(tokens, 2)), tokens[: len(tokens) // 2 * 2]
                )
            ),
        )
    ),
    st.integers(0, 1023),
)
def test_what_is_written_is_read_back(form, events, dp_rank):
    batch = decode_batch(batch_of(*events, event_format=form, dp_rank=dp_rank))
    assert batch.dp_rank == dp_rank
    for ours, theirs in zip(events, batch.events, strict=True):
        if isinstance(ours, BlockStored):
            assert theirs.block_hashes == tuple(block.sequence for block in ours.blocks)
            assert theirs.token_ids == tuple(ours.token_ids)
            assert theirs.block_size == 2
        else:
            assert theirs == ours


@pytest.mark.parametrize(
    "payload",
    [
        [TIME_S, [["BlockStored", [-3803038269031200164], None, [1, 2, 3, 4], 4]]],
        [1_700_000_000, [["BlockStored", [HASHES[0]], None, [1, 2, 3, 4], 4, None, "GPU"]], None],
        [
            TIME_S,
            [["BlockStored", [b"\x07" * 24 + HASHES[0].to_bytes(8, "big")], None, [1, 2, 3, 4], 4]],
            0,
        ],
        {
            "ts": TIME_S,
            "events": [
                {
                    "type": "BlockStored",
                    "block_hashes": [HASHES[0]],
                    "parent_block_hash": None,
                    "token_ids": [1, 2, 3, 4],
                    "block_size": 4,
                    "session_id": "x",
                }
            ],
        },
    ],
    ids=["signed, no rank", "integer time, nil rank", "digest", "map all through"],
)
def test_every_form_that_engines_send_is_understood(payload):
    batch = decode_batch(msgspec.msgpack.encode(payload))
    [event] = batch.events
    assert (event.block_hashes, event.token_ids) == ((HASHES[0],), (1, 2, 3, 4))
    assert (batch.timestamp_s, batch.dp_rank) == (TIME_S, 0)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        *map(
            msgspec.msgpack.encode,
            [
                None,
                [],
                [1.0],
                [1.0, None, 0],
                ["now", [], 0],
                [1.0, [], "0"],
                [1.0, [None], 0],
                [1.0, [["BlockMoved"]], 0],
                [1.0, [["BlockStored"]], 0],
                [1.0, [["BlockStored", ["x"], None, [1], 1]], 0],
                [1.0, [["BlockStored", [b"short"], None, [1], 1]], 0],
                [1.0, [["BlockStored", [1], None, ["x"], 1]], 0],
                [1.0, [["BlockStored", [1], "x", [1], 1]], 0],
                [1.0, [["BlockRemoved", 7]], 0],
                [1.0, [{"type": "BlockStored"}], 0],
                [1.0, [{"type": []}], 0],
            ],
        ),
    ],
)
def test_what_is_no_batch_is_a_value_error(payload):
    with pytest.raises(ValueError, match="not a batch of KV events"):
        decode_batch(payload)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.sampled_from(
        [
            "BlockStored",
            "BlockRemoved",
            "AllBlocksCleared",
            "type",
            "ts",
            "events",
            "block_hashes",
            "token_ids",
        ]
    ),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=40,
)


def refused_or_read(payload):
    """Decode; only a ValueError that says what it is about may come out."""
    try:
        decode_batch(payload)
    except ValueError as error:
        return str(error).startswith("not a batch of KV events: ")
    return True


@given(st.binary(max_size=400))
def test_no_bytes_do_more_than_be_refused(payload):
    assert refused_or_read(payload)


@given(VALUES | st.tuples(st.floats(), st.lists(VALUES), VALUES))
def test_no_values_do_more_than_be_refused(value):
    assert refused_or_read(msgspec.msgpack.encode(value))


@given(st.binary(min_size=1, max_size=200), st.data())
def test_no_damaged_batch_does_more_than_be_refused(noise, data):
    payload = bytearray(batch_of(STORED, BlockRemoved((1,)), AllBlocksCleared()))
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place : place + len(noise)] = noise
    assert refused_or_read(bytes(payload))


def test_three_frames_are_a_message():
    message = decode_frames([b"kv@pod@mock", encode_sequence(258), b"payload"])
    assert message == ("kv@pod@mock", 258, b"payload")
    assert encode_sequence(258) == b"\0\0\0\0\0\0\1\2"
    assert (-1).to_bytes(8, "big", signed=True) == END_OF_REPLAY


@given(st.lists(st.binary(max_size=12), max_size=5))
def test_other_frames_are_refused(frames):
    try:
        topic, sequence, payload = decode_frames(frames)
    except ValueError:
        return
    assert [topic.encode(), encode_sequence(sequence), payload] == frames


@given(st.lists(st.binary(max_size=12), max_size=4))
def test_a_replay_request_is_an_empty_frame_and_a_sequence(frames):
    try:
        start = decode_replay_request(frames)
    except ValueError:
        return
    assert frames == [b"", start.to_bytes(len(frames[1]), "big")]
