"""Reading traces: Mooncake's JSON lines and Azure's CSV.

Mooncake (also Dynamo's replay input): one object a line with `timestamp` in ms, `input_length`,
`output_length` and `hash_ids`, each id standing for 512 tokens in the public traces. Azure: the
columns TIMESTAMP, ContextTokens and GeneratedTokens, and nothing about shared prefixes.
"""

import csv
from datetime import UTC, datetime
from io import StringIO
from itertools import count, islice
from pathlib import Path

import msgspec

from mocker_simulator.workload import Workload

MOONCAKE_BLOCK_TOKENS = 512


class InvalidTrace(ValueError):
    """A trace that cannot be read; the text names the line and the remedy."""


class _Row(msgspec.Struct):
    input_length: int
    output_length: int
    hash_ids: list[int]
    timestamp: float | None = None
    created_time: float | None = None


def read_trace(
    path: Path, *, limit: int | None = None, trace_block_size: int | None = None
) -> Workload:
    """Read a trace by its suffix: `.csv` is Azure's, anything else is JSON lines.

    Raises:
        InvalidTrace: if a row is not what it should be.
        OSError: if the file cannot be read.
    """
    if path.suffix == ".csv":
        return _read_azure(path, limit)
    return _read_mooncake(path, limit, trace_block_size or MOONCAKE_BLOCK_TOKENS)


def _read_mooncake(path: Path, limit: int | None, trace_block_size: int) -> Workload:
    lines = path.read_bytes()
    if limit is not None:
        lines = b"\n".join(lines.split(b"\n", limit)[:limit])
    try:
        rows = msgspec.json.Decoder(_Row).decode_lines(lines)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidTrace(f"{path}: not a Mooncake trace: {error}") from error
    for number, row in enumerate(rows, 1):
        _check(path, number, row, trace_block_size)
    rows.sort(key=_arrival_ms)
    return Workload(
        arrivals_ms=[_arrival_ms(row) for row in rows],
        prompt_tokens=[row.input_length for row in rows],
        output_tokens=[row.output_length for row in rows],
        block_ids=[row.hash_ids for row in rows],
        trace_block_size=trace_block_size,
    )


def _arrival_ms(row: _Row) -> float:
    return float(row.timestamp if row.timestamp is not None else row.created_time or 0.0)


def _check(path: Path, number: int, row: _Row, trace_block_size: int) -> None:
    if row.input_length < 1 or row.output_length < 1:
        raise InvalidTrace(f"{path}, line {number}: lengths must be at least 1; remove the row")
    if len(row.hash_ids) * trace_block_size < row.input_length:
        raise InvalidTrace(
            f"{path}, line {number}: {len(row.hash_ids)} hash_ids of {trace_block_size} tokens do "
            f"not cover input_length {row.input_length}; correct --trace-block-size"
        )


def _read_azure(path: Path, limit: int | None) -> Workload:
    times: list[datetime] = []
    prompts: list[int] = []
    outputs: list[int] = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidTrace(f"{path}: not UTF-8 text: {error}") from error
    for number, row in enumerate(islice(csv.DictReader(StringIO(text)), limit), 2):
        try:
            times.append(_without_zone(datetime.fromisoformat(row["TIMESTAMP"])))
            prompts.append(max(int(row["ContextTokens"]), 1))
            outputs.append(max(int(row["GeneratedTokens"]), 1))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidTrace(f"{path}, line {number}: not an Azure trace: {error}") from error
    start = min(times, default=datetime.min)
    order = sorted(range(len(times)), key=times.__getitem__)
    unique = count()
    size = MOONCAKE_BLOCK_TOKENS
    return Workload(
        arrivals_ms=[(times[i] - start).total_seconds() * 1000 for i in order],
        prompt_tokens=[prompts[i] for i in order],
        output_tokens=[outputs[i] for i in order],
        block_ids=[list(islice(unique, -(-prompts[i] // size))) for i in order],
        trace_block_size=size,
    )


def _without_zone(moment: datetime) -> datetime:
    """Return a moment in UTC, which is what a stamp without a zone means in these traces."""
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
