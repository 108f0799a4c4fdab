"""Measured requests of a real engine: what calibration fits to and fidelity is judged by.

JSON lines as vLLM's benchmarks keep them: `input_toks`, `output_toks`, and `queued_ts`,
`first_token_ts` and `last_token_ts` in seconds of one clock; `scheduled_ts` is optional.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from mocker_simulator.traces import InvalidTrace
from mocker_simulator.workload import Workload

_BLOCK = 16


class _Row(msgspec.Struct):
    input_toks: int
    output_toks: int
    queued_ts: float
    first_token_ts: float
    last_token_ts: float
    scheduled_ts: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """One request; times in ms since the first request was queued."""

    prompt_tokens: int
    output_tokens: int
    queued_ms: float
    scheduled_ms: float
    first_token_ms: float
    last_token_ms: float

    @property
    def ttft_ms(self) -> float:
        """From the queue to the first token."""
        return self.first_token_ms - self.queued_ms

    @property
    def tpot_ms(self) -> float:
        """Mean time between tokens; NaN with fewer than two."""
        gaps = self.output_tokens - 1
        return (self.last_token_ms - self.first_token_ms) / gaps if gaps > 0 else float("nan")


def read_measured(path: Path) -> list[Measured]:
    """Read measured requests in the order in which they were queued.

    Raises:
        InvalidTrace: if a row is not what it should be.
        OSError: if the file cannot be read.
    """
    try:
        rows = msgspec.json.Decoder(_Row).decode_lines(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidTrace(f"{path}: not measured requests: {error}") from error
    if len(rows) < 2:
        raise InvalidTrace(f"{path}: has fewer than two requests; measure more")
    for number, row in enumerate(rows, 1):
        if reason := _fault(row):
            raise InvalidTrace(f"{path}, request {number}: {reason}; remove the row")
    rows.sort(key=lambda row: row.queued_ts)
    start = rows[0].queued_ts

    def ms(moment: float) -> float:
        return (moment - start) * 1000

    return [
        Measured(
            row.input_toks,
            row.output_toks,
            ms(row.queued_ts),
            ms(row.scheduled_ts or row.queued_ts),
            ms(row.first_token_ts),
            ms(row.last_token_ts),
        )
        for row in rows
    ]


def _fault(row: _Row) -> str | None:
    if row.input_toks < 1 or row.output_toks < 1:
        return "input_toks and output_toks must be at least 1"
    if not row.queued_ts <= row.first_token_ts <= row.last_token_ts:
        return "must be queued, first and last answered in this order"
    return None


def replay_of(requests: list[Measured]) -> Workload:
    """Return the load that was measured; no two prompts share anything."""
    start, ids = 0, list[list[int]]()
    for request in requests:
        end = start - (-request.prompt_tokens // _BLOCK)
        ids.append(list(range(start, end)))
        start = end
    return Workload(
        arrivals_ms=[request.queued_ms for request in requests],
        prompt_tokens=[request.prompt_tokens for request in requests],
        output_tokens=[request.output_tokens for request in requests],
        block_ids=ids,
        trace_block_size=_BLOCK,
    )
