"""KV cache events, and their JSON on JetStream (Dynamo 0.7 RouterEvent).

A worker's events are numbered from 0 without gaps per data-parallel rank. A block's parent is
stored before it, and `removed` names a block exactly once, when it really leaves the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.json_nesting import check_nesting


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that entered the cache as one chain, parents first."""

    parent_hash: int | None
    """Sequence hash of the block before the first one; None at the start of a prompt."""
    blocks: tuple[BlockHash, ...]
    token_ids: Sequence[int] = field(default=(), compare=False)
    """Tokens of all blocks, one block after the other; empty where they are not known. Not
    compared: the hashes say the same."""
    cache_salt: str | None = field(default=None, compare=False)
    """What the prompt's hashes were salted with; in the hashes already, so not compared."""


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks that left the cache, named by their sequence hashes."""

    block_hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache of this worker and rank is empty."""


KvCacheEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


def count_blocks(event: KvCacheEvent) -> int:
    """Return how many blocks an event names."""
    match event:
        case BlockStored(blocks=named) | BlockRemoved(named):
            return len(named)
        case AllBlocksCleared():
            return 0


@dataclass(frozen=True, slots=True)
class RouterEvent:
    """One event of one worker and rank, as read back."""

    worker_id: int
    event_id: int
    event: KvCacheEvent
    dp_rank: int = 0


class _Block(msgspec.Struct, frozen=True, gc=False):
    block_hash: int
    tokens_hash: int


class _Stored(msgspec.Struct, frozen=True):
    parent_hash: int | None
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


class _RouterEvent(msgspec.Struct, frozen=True):
    worker_id: int
    event: _Event


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_RouterEvent)


def encode_router_event(
    worker_id: int, event_id: int, event: KvCacheEvent, *, dp_rank: int = 0
) -> bytes:
    """Return the JSON RouterEvent that Dynamo 0.7 reads from the KV event stream."""
    return _encoder.encode(_RouterEvent(worker_id, _Event(event_id, _data(event), dp_rank)))


def decode_router_event(payload: bytes) -> RouterEvent:
    """Parse a JSON RouterEvent; `dp_rank` is 0 when absent.

    Raises:
        ValueError: if the payload is not a RouterEvent.
    """
    check_nesting(payload)
    try:
        message = _decoder.decode(payload)
        event = message.event
        return RouterEvent(message.worker_id, event.event_id, _event(event.data), event.dp_rank)
    except ValueError as error:
        raise ValueError(f"not a RouterEvent: {error}") from error


def _data(event: KvCacheEvent) -> _Data | str:
    match event:
        case BlockStored(parent_hash, blocks):
            return _Data(
                _Stored(parent_hash, [_Block(sequence, local) for local, sequence in blocks])
            )
        case BlockRemoved(block_hashes):
            return _Data(removed=_Removed(block_hashes))
        case AllBlocksCleared():
            return "cleared"


def _event(data: _Data | str) -> KvCacheEvent:
    match data:
        case "cleared":
            return AllBlocksCleared()
        case _Data(stored=_Stored(parent_hash, blocks)):
            return BlockStored(
                parent_hash,
                tuple(BlockHash(block.tokens_hash, block.block_hash) for block in blocks),
            )
        case _Data(removed=_Removed(block_hashes)):
            return BlockRemoved(tuple(block_hashes))
    raise ValueError(f"unknown KV event data: {str(data)[:80]!r}")
