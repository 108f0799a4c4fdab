"""KV events on ZMQ, byte for byte as vLLM sends them.

A message has three frames: topic, sequence (8 bytes, big-endian, one more for each message of a
rank) and a MessagePack batch `[seconds, [event, ...], rank]`. Events are maps with the key `type`
(vLLM 0.33) or positional arrays that begin with their tag (vLLM until the spring of 2026). Block
hashes are unsigned 64-bit integers. Readers take all that vLLM, SGLang and Dynamo send.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvCacheEvent
from mocker_protocol.msgpack_nesting import check_msgpack_nesting

GPU = "GPU"
END_OF_REPLAY = b"\xff" * 8
"""Sequence frame (-1) of the message that ends a replay; its topic and payload are empty."""
_SEQUENCE_BYTES = 8
_HASH_MASK = 2**64 - 1
_GROUP = 0
"""Index of the only KV cache group."""


class EventFormat(StrEnum):
    """How events stand in a batch; the batch itself is an array in both."""

    MAP = "map"
    ARRAY = "array"


class _StoredMap(msgspec.Struct, tag_field="type", tag="BlockStored", omit_defaults=True, gc=False):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str] | None] | None = None
    group_idx: int | None = None


class _RemovedMap(
    msgspec.Struct, tag_field="type", tag="BlockRemoved", omit_defaults=True, gc=False
):
    block_hashes: Sequence[int]
    medium: str | None
    group_idx: int | None = None


_CLEARED = {EventFormat.MAP: {"type": "AllBlocksCleared"}, EventFormat.ARRAY: ["AllBlocksCleared"]}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def encode_batch(
    events: Sequence[KvCacheEvent],
    *,
    timestamp_s: float,
    dp_rank: int,
    event_format: EventFormat = EventFormat.MAP,
) -> bytes:
    """Return the payload frame; every stored event must hold the token ids of all its blocks."""
    encode = _as_map if event_format is EventFormat.MAP else _as_array
    return _encoder.encode([timestamp_s, [encode(event) for event in events], dp_rank])


def encode_sequence(sequence: int) -> bytes:
    """Return the sequence frame."""
    return sequence.to_bytes(_SEQUENCE_BYTES, "big")


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """`BlockStored` as it was on the wire."""

    block_hashes: tuple[int, ...]
    """Unsigned, whatever form they had."""
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    """Of all blocks, one after the other."""
    block_size: int
    medium: str | None = None
    extra_keys: tuple[tuple[Any, ...] | None, ...] | None = None
    """What the hash of each block covers beside its tokens, such as the cache salt."""


WireEvent: TypeAlias = StoredBlocks | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one message holds."""

    timestamp_s: float
    events: tuple[WireEvent, ...]
    dp_rank: int
    """0 when absent."""


class Message(NamedTuple):
    """The three frames, read."""

    topic: str
    sequence: int
    payload: bytes


def decode_frames(frames: Sequence[bytes]) -> Message:
    """Read topic and sequence of a message.

    Raises:
        ValueError: if these are not the three frames of a message.
    """
    if len(frames) != 3:
        raise ValueError(f"not a KV event message: {len(frames)} frames instead of 3")
    topic, sequence, payload = frames
    if len(sequence) != _SEQUENCE_BYTES:
        raise ValueError(f"not a KV event message: a sequence of {len(sequence)} bytes, not 8")
    return Message(topic.decode("utf-8"), int.from_bytes(sequence, "big"), payload)


def decode_replay_request(frames: Sequence[bytes]) -> int:
    """Read the first sequence that a client wants, of what it sent after its identity.

    Raises:
        ValueError: if the frames are not an empty one and a sequence of up to 8 bytes.
    """
    match frames:
        case [b"", sequence] if 0 < len(sequence) <= _SEQUENCE_BYTES:
            return int.from_bytes(sequence, "big")
    raise ValueError("not a replay request: an empty frame and a sequence of 8 bytes are")


def decode_batch(payload: bytes) -> EventBatch:
    """Read a payload frame in any form that engines send.

    Raises:
        ValueError: if it is not a batch of KV events.
    """
    try:
        check_msgpack_nesting(payload)
        timestamp_s, events, dp_rank = _batch_fields(_decoder.decode(payload))
        return EventBatch(_number(timestamp_s), tuple(map(_event, events)), _integer(dp_rank or 0))
    except (ValueError, TypeError) as error:
        raise ValueError(f"not a batch of KV events: {error}") from error


def _as_map(event: KvCacheEvent) -> object:
    match event:
        case BlockStored():
            return _StoredMap(
                [block.sequence for block in event.blocks],
                event.parent_hash,
                _plain(event.token_ids),
                len(event.token_ids) // len(event.blocks),
                None,
                GPU,
                None,
                _extra_keys(event),
                _GROUP,
            )
        case BlockRemoved(block_hashes):
            return _RemovedMap(block_hashes, GPU, _GROUP)
        case AllBlocksCleared():
            return _CLEARED[EventFormat.MAP]


def _as_array(event: KvCacheEvent) -> object:
    """Return the positional form of vLLM before it had extra keys; a salt needs them, though."""
    match event:
        case BlockStored():
            fields = [
                "BlockStored",
                [block.sequence for block in event.blocks],
                event.parent_hash,
                _plain(event.token_ids),
                len(event.token_ids) // len(event.blocks),
                None,
                GPU,
                None,
            ]
            return [*fields, _extra_keys(event)] if _first_salt(event) else fields
        case BlockRemoved(block_hashes):
            return ["BlockRemoved", block_hashes, GPU]
        case AllBlocksCleared():
            return _CLEARED[EventFormat.ARRAY]


def _plain(token_ids: Sequence[int]) -> Sequence[int]:
    return token_ids if isinstance(token_ids, list | tuple) else list(token_ids)


def _first_salt(event: BlockStored) -> str | None:
    """Return the salt if the first block's own hash covers it, not only those of its ancestors."""
    return event.cache_salt or None if event.parent_hash is None else None


def _extra_keys(event: BlockStored) -> list[tuple[str] | None]:
    keys: list[tuple[str] | None] = [None] * len(event.blocks)
    if salt := _first_salt(event):
        keys[0] = (salt,)
    return keys


def _batch_fields(batch: object) -> tuple[object, list[object], object]:
    match batch:
        case [timestamp_s, list(events)]:
            return timestamp_s, events, None
        case [timestamp_s, list(events), dp_rank, *_]:
            return timestamp_s, events, dp_rank
        case {"ts": timestamp_s, "events": list(events), **others}:
            return timestamp_s, events, others.get("data_parallel_rank")
    raise ValueError("it is neither an array of time, events and rank nor such a map")


_STORED_FIELDS = (
    "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys"
).split()
_REMOVED_FIELDS = ["block_hashes", "medium"]


def _event(event: object) -> WireEvent:
    match event:
        case ["BlockStored", *values]:
            return _stored(dict(zip(_STORED_FIELDS, values, strict=False)))
        case ["BlockRemoved", *values]:
            return _removed(dict(zip(_REMOVED_FIELDS, values, strict=False)))
        case {"type": "BlockStored", **fields}:
            return _stored(fields)
        case {"type": "BlockRemoved", **fields}:
            return _removed(fields)
        case ["AllBlocksCleared", *_] | {"type": "AllBlocksCleared"}:
            return AllBlocksCleared()
    raise ValueError("an event is neither BlockStored nor BlockRemoved nor AllBlocksCleared")


def _stored(fields: dict[Any, Any]) -> StoredBlocks:
    parent = fields.get("parent_block_hash")
    medium = fields.get("medium")
    extra_keys = fields.get("extra_keys")
    return StoredBlocks(
        block_hashes=tuple(map(_hash, _list(fields, "block_hashes"))),
        parent_block_hash=None if parent is None else _hash(parent),
        token_ids=tuple(map(_integer, _list(fields, "token_ids"))),
        block_size=_integer(fields.get("block_size")),
        medium=medium if isinstance(medium, str) else None,
        extra_keys=tuple(map(_keys, extra_keys)) if isinstance(extra_keys, list) else None,
    )


def _removed(fields: dict[Any, Any]) -> BlockRemoved:
    return BlockRemoved(tuple(map(_hash, _list(fields, "block_hashes"))))


def _keys(keys: object) -> tuple[Any, ...] | None:
    return tuple(keys) if isinstance(keys, list) else None


def _list(fields: dict[Any, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list")
    return value


def _hash(value: object) -> int:
    """Take a signed or unsigned integer, or a digest, whose last 8 bytes count."""
    if isinstance(value, bytes) and len(value) >= _SEQUENCE_BYTES:
        return int.from_bytes(value[-_SEQUENCE_BYTES:], "big")
    return _integer(value) & _HASH_MASK


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("a number is not an integer")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("the time is not a number")
    return float(value)
