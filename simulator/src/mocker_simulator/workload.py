"""What the simulated clients send: requests in the order of their arrival."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests, as columns of equal length."""

    arrivals_ms: list[float]
    """Ascending; ignored when a fixed number of clients sends the requests."""
    prompt_tokens: list[int]
    output_tokens: list[int]
    block_ids: list[list[int]]
    """Per request the ids of its prompt's stretches of `trace_block_size` tokens."""
    trace_block_size: int

    def __len__(self) -> int:
        return len(self.arrivals_ms)

    def sped_up(self, ratio: float) -> "Workload":
        """Return the same requests, `ratio` times as fast after each other."""
        return replace(self, arrivals_ms=[at / ratio for at in self.arrivals_ms])
