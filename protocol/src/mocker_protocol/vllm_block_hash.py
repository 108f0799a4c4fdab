"""Block hashes of vLLM 0.33 with `--prefix-caching-hash-algo sha256_cbor`, bit for bit.

A block's digest is the SHA-256 of the canonical CBOR of [the digest before it, its token ids, its
extra keys]. Events carry the digest's last 8 bytes as a big-endian integer. The chain starts from
a fixed seed, as in a vLLM without PYTHONHASHSEED. Local hashes, which vLLM has none of, are
Dynamo's.
"""

from array import array
from collections.abc import Sequence
from hashlib import sha256

from cbor2 import dumps

from mocker_protocol.block_hash import BlockHash, block_hashes, local_hashes, local_seed

NONE_HASH = sha256(dumps("vllm-none-hash")).digest()
"""What stands for the digest before the first block."""
_WIRE_BYTES = 8


class Sha256CborChain:
    """Hashes of one prompt's blocks, and of its answer's; the full digests stay inside."""

    __slots__ = ("_digest", "_salt", "_seed", "block_size")

    def __init__(self, block_size: int, cache_salt: str | None = None) -> None:
        """Start at a prompt's first block, the only one whose extra keys have the salt."""
        self.block_size = block_size
        self._seed = local_seed(cache_salt)
        self._salt = cache_salt
        self._digest = NONE_HASH

    def extend(self, token_ids: Sequence[int]) -> list[BlockHash]:
        """Return the hashes of the next full blocks; a trailing partial block has none yet."""
        tokens = token_ids.tolist() if isinstance(token_ids, array) else list(token_ids)
        local = local_hashes(token_ids, self.block_size, self._seed)
        return block_hashes(local, [self._next(block) for block in self._cut(tokens)])

    def _cut(self, tokens: list[int]) -> list[list[int]]:
        size = self.block_size
        return [tokens[end - size : end] for end in range(size, len(tokens) + 1, size)]

    def _next(self, block: list[int]) -> int:
        extra_keys = (self._salt,) if self._salt and self._digest is NONE_HASH else None
        self._digest = sha256(dumps((self._digest, block, extra_keys))).digest()
        return int.from_bytes(self._digest[-_WIRE_BYTES:], "big")
