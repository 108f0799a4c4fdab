"""Block hashes of Dynamo's KV events: XXH3-64, seed 1337.

The *local* hash covers the tokens of one block, the *sequence* hash chains it to everything
before it. A cache salt changes the seed of the local hashes (Dynamo 1.6). All values are unsigned
64-bit integers, up to 2**64-1.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol

import xxhash

SEED = 1337
_SALT_SEED = 1
_TOKEN_BYTES = 4
_MASK = 2**64 - 1
_pack_pair = struct.Struct("<QQ").pack
_xxh3 = xxhash.xxh3_64_intdigest


class BlockHash(NamedTuple):
    """Identity of one full block: what it holds, and what it holds after all that precedes it."""

    local: int
    """`tokens_hash` (LocalBlockHash) on the wire."""
    sequence: int
    """`block_hash` (ExternalSequenceBlockHash) on the wire."""


class HashChain(Protocol):
    """Hashes of one prompt's blocks, and of its answer's, each from all before it."""

    block_size: int

    def extend(self, token_ids: Sequence[int]) -> list[BlockHash]:
        """Return the hashes of the next full blocks; a trailing partial block has none yet."""


class Xxh3Chain:
    """Dynamo's hashes."""

    __slots__ = ("_parent", "_seed", "block_size")

    def __init__(
        self, block_size: int, cache_salt: str | None = None, *, parent: int | None = None
    ) -> None:
        """Start at a prompt's first block, or after one with the sequence hash `parent`."""
        self.block_size = block_size
        self._seed = local_seed(cache_salt)
        self._parent = parent

    def extend(self, token_ids: Sequence[int]) -> list[BlockHash]:
        """Return the hashes of the next full blocks; a trailing partial block has none yet."""
        local = local_hashes(token_ids, self.block_size, self._seed)
        if not local:
            return []
        if self._parent is None:
            sequence = list(accumulate(local, _chain))
        else:
            sequence = list(accumulate(local, _chain, initial=self._parent))[1:]
        self._parent = sequence[-1]
        return block_hashes(local, sequence)


def local_seed(cache_salt: str | None) -> int:
    """Return the seed of the local hashes of prompts with this salt; none or empty: 1337."""
    if not cache_salt:
        return SEED
    return (SEED + _xxh3(cache_salt.encode(), _SALT_SEED)) & _MASK


def local_hash(token_ids: Sequence[int], seed: int = SEED) -> int:
    """Hash one block's token ids, each as 4 little-endian bytes (0 <= id < 2**32)."""
    return _xxh3(_little_endian(token_ids), seed)


def local_hashes(token_ids: Sequence[int], block_size: int, seed: int = SEED) -> list[int]:
    """Return the local hash of each full block."""
    packed = _little_endian(token_ids)
    width = block_size * _TOKEN_BYTES
    ends = range(width, len(packed) + 1, width)
    return [_xxh3(packed[end - width : end], seed) for end in ends]


def chained(parent: int | None, local: int) -> int:
    """Return the sequence hash of a block after `parent` (a sequence hash; None for the first)."""
    return local if parent is None else _chain(parent, local)


def hash_blocks(
    token_ids: Sequence[int],
    block_size: int,
    parent: int | None = None,
    cache_salt: str | None = None,
) -> list[BlockHash]:
    """Return the hashes of the full blocks of `token_ids`; a trailing partial block has none."""
    return Xxh3Chain(block_size, cache_salt, parent=parent).extend(token_ids)


def block_hashes(local: Sequence[int], sequence: Sequence[int]) -> list[BlockHash]:
    """Pair hashes up, in a third of the time that calls of `BlockHash` take."""
    return list(map(_new_block_hash, zip(local, sequence, strict=True)))


_new_block_hash = partial(tuple.__new__, BlockHash)


def _chain(parent: int, local: int) -> int:
    return _xxh3(_pack_pair(parent, local), SEED)


def _little_endian(token_ids: Sequence[int]) -> bytes:
    packed = token_ids
    if not isinstance(packed, array) or packed.typecode != "I":
        packed = array("I", packed)
    if sys.byteorder == "big":
        packed = packed[:]
        packed.byteswap()
    return packed.tobytes()
