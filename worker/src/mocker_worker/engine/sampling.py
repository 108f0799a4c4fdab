"""The tokens that stand for a model's answer: random, in 100..200, the same for the same seed.

A token depends on its stream's seed and its position alone, so preemption, batching and the order
of requests cannot change an answer.
"""

from struct import Struct

import xxhash

FIRST_TOKEN_ID = 100
LAST_TOKEN_ID = 200

_SPAN = LAST_TOKEN_ID - FIRST_TOKEN_ID + 1
_MASK = 2**64 - 1
_pack_position = Struct("<Q").pack


def stream_seed(engine_seed: int, request_id: str, request_seed: int | None) -> int:
    """Return the seed of a request's tokens, 0..2**64-1; its own seed outweighs its id."""
    name = f"id:{request_id}" if request_seed is None else f"seed:{request_seed}"
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), engine_seed & _MASK)


def sample_token(seed: int, position: int) -> int:
    """Return the token at a position of a stream, in 100..200."""
    return FIRST_TOKEN_ID + xxhash.xxh3_64_intdigest(_pack_position(position), seed) % _SPAN
