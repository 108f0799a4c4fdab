"""Who this process is on the event plane: a random publisher for each rank."""

import secrets
import time
from collections import Counter

from mocker_protocol.event_plane import Envelope, encode_envelope

_ID_BITS = 62
"""Dynamo's ids fit into signed integers."""


class Envelopes:
    """Wraps messages; a new process is a new publisher, whose sequences begin at 0."""

    def __init__(self, num_ranks: int) -> None:
        self.publisher_ids = [secrets.randbits(_ID_BITS) for _ in range(num_ranks)]
        self._sequences: Counter[tuple[int, str]] = Counter()

    @property
    def num_ranks(self) -> int:
        """Ranks that have a publisher."""
        return len(self.publisher_ids)

    def wrap(self, dp_rank: int, topic: str, payload: bytes) -> bytes:
        """Return the next message of a rank's topic."""
        sequence = self._sequences[dp_rank, topic]
        self._sequences[dp_rank, topic] += 1
        return encode_envelope(
            Envelope(
                publisher_id=self.publisher_ids[dp_rank],
                sequence=sequence,
                published_at=time.time_ns() // 1_000_000,
                topic=topic,
                payload=payload,
            )
        )
