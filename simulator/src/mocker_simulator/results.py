"""Results as text: a table for people, a row per request for programs."""

import json
from collections.abc import Iterable, Mapping
from typing import TextIO

from mocker_simulator.records import RequestRecord

_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_FIGURES = ("mean", "p50", "p90", "p99")


def table(figures: Mapping[str, float | int]) -> str:
    """Return the figures as an aligned table."""
    lines = [f"{'latency, ms':14}" + "".join(f"{figure:>12}" for figure in _FIGURES)]
    for name in _LATENCIES:
        values = "".join(f"{figures[f'{figure}_{name}_ms']:12.3f}" for figure in _FIGURES)
        lines.append(f"{name:14}{values}")
    lines.append("")
    done = {f"{figure}_{name}_ms" for name in _LATENCIES for figure in _FIGURES}
    lines += [f"{key:44}{value:>14,}" for key, value in figures.items() if key not in done]
    return "\n".join(lines)


def write_requests(records: Iterable[RequestRecord], file: TextIO) -> None:
    """Write one JSON object per request, in the order of arrival; absent times are null."""
    for record in records:
        row = {
            "index": record.index,
            "arrival_ms": record.arrival_ms,
            "first_admit_ms": record.first_admit_ms,
            "decode_admit_ms": record.decode_admit_ms,
            "first_token_ms": record.first_token_ms,
            "finish_ms": record.finish_ms,
            "ttft_ms": _number(record.ttft_ms),
            "tpot_ms": _number(record.tpot_ms),
            "e2e_ms": _number(record.e2e_ms),
            "input_tokens": record.prompt_tokens,
            "output_tokens": record.received_tokens,
            "reused_input_tokens": record.reused_tokens,
            "worker": record.worker,
            "decode_worker": record.decode_worker,
            "refused": record.refused or None,
        }
        file.write(json.dumps(row) + "\n")


def _number(value: float) -> float | None:
    """Return None for NaN, which JSON does not have."""
    return None if value != value else value
