"""Block hashes of Dynamo's KV events: XXH3-64, seed 1337.

The *local* hash covers the tokens of one block, the *sequence* hash chains it to everything
before it. All values are unsigned 64-bit integers, up to 2**64-1.
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import xxhash

SEED = 1337
_TOKEN_BYTES = 4
_CHAIN = struct.Struct("<QQ")


class BlockHash(NamedTuple):
    """Identity of one full block: what it holds, and what it holds after all that precedes it."""

    local: int
    """`tokens_hash` (LocalBlockHash) on the wire."""
    sequence: int
    """`block_hash` (ExternalSequenceBlockHash) on the wire."""


def local_hash(token_ids: Sequence[int]) -> int:
    """Hash one block's token ids, each as 4 little-endian bytes (0 <= id < 2**32)."""
    return xxhash.xxh3_64_intdigest(_little_endian(token_ids), SEED)


def chained(parent: int | None, local: int) -> int:
    """Return the sequence hash of a block after `parent` (a sequence hash; None for the first)."""
    if parent is None:
        return local
    return xxhash.xxh3_64_intdigest(_CHAIN.pack(parent, local), SEED)


def hash_blocks(
    token_ids: Sequence[int], block_size: int, parent: int | None = None
) -> Iterator[BlockHash]:
    """Yield the hashes of the full blocks of `token_ids`; a trailing partial block has none."""
    packed = memoryview(_little_endian(token_ids))
    width = block_size * _TOKEN_BYTES
    for start in range(0, len(packed) - width + 1, width):
        local = xxhash.xxh3_64_intdigest(packed[start : start + width], SEED)
        parent = chained(parent, local)
        yield BlockHash(local, parent)


def _little_endian(token_ids: Sequence[int]) -> bytes:
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
