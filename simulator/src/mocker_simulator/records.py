"""What became of each request, and how far apart its tokens were."""

from dataclasses import dataclass, field

from mocker_worker.engine import BlockKey, OutlineRequest


@dataclass(slots=True)
class RequestRecord:
    """One request's times, in virtual milliseconds; None for what did not happen."""

    index: int
    """Position in the workload."""
    arrival_ms: float
    prompt_tokens: int
    output_tokens: int
    """Asked for; a request that was not refused got all of them."""
    worker: int = -1
    """The worker that had the request first."""
    decode_worker: int | None = None
    first_admit_ms: float | None = None
    decode_admit_ms: float | None = None
    """First admission on a decode worker."""
    first_token_ms: float | None = None
    finish_ms: float | None = None
    latest_token_ms: float = 0.0
    received_tokens: int = 0
    first_reused_tokens: int = 0
    """Prompt tokens found in the cache at the first admission."""
    reused_tokens: int = 0
    """The same, and what was found when it came back after preemptions."""
    refused: str = ""
    """Why an engine would not take it."""

    @property
    def ttft_ms(self) -> float:
        """Arrival to first token; NaN of a refused request."""
        return _since(self.first_token_ms, self.arrival_ms)

    @property
    def e2e_ms(self) -> float:
        """Arrival to last token; NaN of a refused request."""
        return _since(self.finish_ms, self.arrival_ms)

    @property
    def tpot_ms(self) -> float:
        """Mean time between its tokens; NaN with fewer than two."""
        if self.finish_ms is None or self.first_token_ms is None or self.received_tokens < 2:
            return float("nan")
        return (self.finish_ms - self.first_token_ms) / (self.received_tokens - 1)


def _since(moment_ms: float | None, start_ms: float) -> float:
    return float("nan") if moment_ms is None else moment_ms - start_ms


class SimulatedRequest(OutlineRequest):
    """A request that carries its record through the engines."""

    __slots__ = ("is_handed_over", "prompt_keys", "record")

    def __init__(
        self,
        record: RequestRecord,
        *,
        prompt_keys: list[BlockKey],
        remote_prefill: bool = False,
    ) -> None:
        super().__init__(
            str(record.index),
            record.prompt_tokens,
            record.output_tokens,
            prompt_keys=prompt_keys,
            answer_key=-1 - record.index,
            remote_prefill=remote_prefill,
        )
        self.record = record
        self.prompt_keys = prompt_keys
        self.is_handed_over = False
        """Whether a prefill worker has done its part, and a decode worker is to go on."""


@dataclass(slots=True)
class TokenGaps:
    """Times between a request's tokens, as stretches of evenly growing gaps."""

    stretches: list[tuple[float, float, int]] = field(default_factory=list)
    """Shortest and longest gap in ms, and how many lie evenly between."""

    def add(self, gap_ms: float) -> None:
        """Count one gap."""
        self.stretches.append((gap_ms, gap_ms, 1))

    def add_stretch(self, first_ms: float, last_ms: float, count: int) -> None:
        """Count gaps that go evenly from the first to the last."""
        if first_ms > last_ms:
            first_ms, last_ms = last_ms, first_ms
        self.stretches.append((first_ms, last_ms, count))
