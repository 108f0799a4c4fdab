"""KV cache events, and their JSON on JetStream (Dynamo 0.7 RouterEvent).

A worker's events are numbered from 0 without gaps per data-parallel rank. A block's parent is
stored before it, and `removed` names a block exactly once, when it really leaves the cache.
"""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks that left the cache, named by their sequence hashes."""

    block_hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache of this worker and rank is empty."""


KvCacheEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode_router_event(
    worker_id: int, event_id: int, event: KvCacheEvent, *, dp_rank: int = 0
) -> bytes:
    """Return the JSON RouterEvent that Dynamo 0.7 reads from the KV event stream."""
    return _encoder.encode(
        {
            "worker_id": worker_id,
            "event": {"event_id": event_id, "data": _data(event), "dp_rank": dp_rank},
        }
    )


@dataclass(frozen=True, slots=True)
class RouterEvent:
    """One event of one worker and rank, as read back from the stream."""

    worker_id: int
    event_id: int
    event: KvCacheEvent
    dp_rank: int = 0


def decode_router_event(payload: bytes) -> RouterEvent:
    """Parse a JSON RouterEvent; `dp_rank` is 0 when absent.

    Raises:
        ValueError: if the payload is not a RouterEvent.
    """
    try:
        check_nesting(payload)
        message = _decoder.decode(payload)
        event = message["event"]
        return RouterEvent(
            worker_id=int(message["worker_id"]),
            event_id=int(event["event_id"]),
            event=_event(event["data"]),
            dp_rank=int(event.get("dp_rank", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a RouterEvent: {error}") from error


def _data(event: KvCacheEvent) -> object:
    match event:
        case BlockStored(parent_hash, blocks):
            return {
                "stored": {
                    "parent_hash": parent_hash,
                    "blocks": [
                        {"block_hash": block.sequence, "tokens_hash": block.local}
                        for block in blocks
                    ],
                }
            }
        case BlockRemoved(block_hashes):
            return {"removed": {"block_hashes": block_hashes}}
        case AllBlocksCleared():
            return "cleared"


def _event(data: object) -> KvCacheEvent:
    match data:
        case "cleared":
            return AllBlocksCleared()
        case {"stored": {"parent_hash": parent_hash, "blocks": blocks}}:
            return BlockStored(
                parent_hash,
                tuple(BlockHash(block["tokens_hash"], block["block_hash"]) for block in blocks),
            )
        case {"removed": {"block_hashes": block_hashes}}:
            return BlockRemoved(tuple(block_hashes))
    raise ValueError(f"unknown KV event data: {str(data)[:80]!r}")
