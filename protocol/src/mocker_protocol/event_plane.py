"""The event plane of Dynamo 1.x on NATS core: an envelope, and the KV events of 1.6 in it.

Both are MessagePack maps with named fields. A message of the topic `kv-events` holds an array of
RouterEvents, one of `kv_metrics` or `forward-pass-metrics` a single map. A publisher of KV events
speaks for one worker and rank. Nothing is kept by the server.
"""

from collections.abc import Iterable, Sequence

import msgspec

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvCacheEvent,
    RouterEvent,
)
from mocker_protocol.msgpack_nesting import check_msgpack_nesting

KV_EVENTS_TOPIC = "kv-events"
MAX_EVENTS = 128
"""Events of one message."""
MAX_BLOCKS = 8192
"""Blocks of all events of one message."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What every message of the event plane is wrapped in."""

    publisher_id: int
    sequence: int
    """From 0 per publisher and topic."""
    published_at: int
    """Unix time in milliseconds."""
    topic: str
    payload: bytes


class _Block(msgspec.Struct, frozen=True, gc=False):
    block_hash: int
    tokens_hash: int
    mm_extra_info: object = None


class _Stored(msgspec.Struct, frozen=True):
    parent_hash: int | None
    start_position: int | None
    blocks: Sequence[_Block]


class _Removed(msgspec.Struct, frozen=True):
    block_hashes: Sequence[int]


class _Data(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the two; nothing in it is `cleared`, which is a bare word."""

    stored: _Stored | None = None
    removed: _Removed | None = None


class _Event(msgspec.Struct, frozen=True):
    event_id: int
    data: _Data | str
    dp_rank: int = 0


class _RouterEvent(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: int
    storage_tier: str = "device"
    event: _Event


_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_events = msgspec.msgpack.Decoder(list[_RouterEvent])


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the message as it is published."""
    return _encoder.encode(envelope)


def decode_envelope(message: bytes) -> Envelope:
    """Open a message; its payload is not looked at.

    Raises:
        ValueError: if it is no envelope.
    """
    check_msgpack_nesting(message)
    return _envelopes.decode(message)


def encode_router_events(
    worker_id: int, events: Iterable[tuple[int, KvCacheEvent]], *, dp_rank: int = 0
) -> bytes:
    """Return the payload that Dynamo 1.6 reads: events of one rank with their ids, in order."""
    return _encoder.encode(
        [_router_event(worker_id, event_id, event, dp_rank) for event_id, event in events]
    )


def encode_single_router_event(
    worker_id: int, event_id: int, event: KvCacheEvent, *, dp_rank: int = 0
) -> bytes:
    """Return one event as it stands in the array of a payload."""
    return _encoder.encode(_router_event(worker_id, event_id, event, dp_rank))


def decode_router_events(payload: bytes) -> list[RouterEvent]:
    """Parse the payload of a message of the topic `kv-events`.

    Raises:
        ValueError: if it is not an array of RouterEvents.
    """
    check_msgpack_nesting(payload)
    return [
        RouterEvent(
            item.worker_id, item.event.event_id, _event(item.event.data), item.event.dp_rank
        )
        for item in _events.decode(payload)
    ]


def _router_event(worker_id: int, event_id: int, event: KvCacheEvent, dp_rank: int) -> _RouterEvent:
    return _RouterEvent(worker_id=worker_id, event=_Event(event_id, _data(event), dp_rank))


def _data(event: KvCacheEvent) -> _Data | str:
    match event:
        case BlockStored(parent_hash, blocks):
            named = [_Block(sequence, local) for local, sequence in blocks]
            return _Data(_Stored(parent_hash, None, named))
        case BlockRemoved(block_hashes):
            return _Data(removed=_Removed(block_hashes))
        case AllBlocksCleared():
            return "cleared"


def _event(data: _Data | str) -> KvCacheEvent:
    match data:
        case "cleared":
            return AllBlocksCleared()
        case _Data(stored=_Stored(parent_hash, _, blocks)):
            return BlockStored(
                parent_hash,
                tuple(BlockHash(block.tokens_hash, block.block_hash) for block in blocks),
            )
        case _Data(removed=_Removed(block_hashes)):
            return BlockRemoved(tuple(block_hashes))
    raise ValueError(f"unknown KV event data: {str(data)[:80]!r}")
