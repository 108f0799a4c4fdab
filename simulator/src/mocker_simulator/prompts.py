"""Prompts as keys of their full blocks: what two prompts share, without any token.

A trace names stretches of `trace_block_size` tokens by ids; a block that lies in one stretch has
its id as key. The engine's cache compares keys after equal prefixes, so no hash is needed.
"""

from collections.abc import Sequence
from itertools import chain, repeat

from mocker_worker.engine import BlockKey


class PromptKeys:
    """Turns a trace's ids into keys for one engine block size."""

    def __init__(self, trace_block_size: int, block_size: int) -> None:
        self._trace_block_size = trace_block_size
        self._block_size = block_size
        self._blocks_per_id, rest = divmod(trace_block_size, block_size)
        if rest:
            self._blocks_per_id = 0
        self._mixed: dict[tuple[int, ...], int] = {}

    def keys(self, ids: Sequence[int], num_tokens: int) -> list[BlockKey]:
        """Return one key per full block of a prompt of `num_tokens` tokens."""
        times = self._blocks_per_id
        num_blocks = num_tokens // self._block_size
        if times:
            keys: list[BlockKey] = list(chain.from_iterable(map(repeat, ids, repeat(times))))
            del keys[num_blocks:]
            return keys
        return [self._mixed_key(ids, block) for block in range(num_blocks)]

    def _mixed_key(self, ids: Sequence[int], block: int) -> int:
        """Return a key of its own for each combination of the ids that a block spans."""
        start = block * self._block_size
        end = start + self._block_size
        size = self._trace_block_size
        first, last = start // size, (end - 1) // size
        content = (start - first * size, *ids[first : last + 1])
        return self._mixed.setdefault(content, len(self._mixed))
