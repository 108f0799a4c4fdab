"""Reads Dynamo's profile data into a timing model: the NPZ form and the planner's raw JSON.

NPZ: arrays prefill_isl, prefill_ttft_ms, decode_active_kv_tokens, decode_context_length and
decode_itl (rows by KV tokens, columns by context). Raw JSON, from a profiler's results: a
prefill and a decode file with scattered decode points, which must form a full grid here.
"""

import ast
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple

from mocker_protocol.engine_args import InvalidEngineArgs

_MAGIC = b"\x93NUMPY"
_FORMATS = {"<f8": "d", "<f4": "f", "<i8": "q", "<i4": "i"}
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What a damaged file can raise on its way through zip, header and numbers."""


class _Array(NamedTuple):
    shape: tuple[int, ...]
    values: list[float]
    """In C order."""


def profile_from_npz(data: bytes) -> dict[str, Any]:
    """Return the `timing_model` argument that an NPZ file's content stands for.

    Raises:
        InvalidEngineArgs: if arrays are missing, of a kind that is not read, or do not fit.
    """
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            arrays = {
                name.removesuffix(".npy"): _array(name, archive.read(name))
                for name in archive.namelist()
            }
    except _UNREADABLE as error:
        raise InvalidEngineArgs(f"planner_profile_data: not a readable NPZ: {error}") from error
    axes = ("prefill_isl", "prefill_ttft_ms", "decode_active_kv_tokens", "decode_context_length")
    if missing := sorted({*axes, "decode_itl"} - arrays.keys()):
        raise InvalidEngineArgs(f"planner_profile_data: lacks {', '.join(missing)}")
    shape, times = arrays["decode_itl"]
    rows, columns = (len(arrays[name].values) for name in axes[2:])
    wanted = (rows, columns)
    if shape != wanted:
        raise InvalidEngineArgs(
            f"planner_profile_data: decode_itl has the shape {shape}; it must be {wanted}: "
            "a row per decode_active_kv_tokens, a column per decode_context_length"
        )
    return {
        "type": "profile",
        **{name: arrays[name].values for name in axes},
        "decode_itl_ms": [times[i : i + columns] for i in range(0, len(times), columns or 1)],
    }


def profile_from_json(prefill: str, decode: str) -> dict[str, Any]:
    """Return the `timing_model` argument that a pair of raw JSON files stands for.

    Args:
        prefill: `prefill_raw_data.json`: prefill_isl and prefill_ttft (ms).
        decode: `decode_raw_data.json`: x_kv_usage (0..1), y_context_length and z_itl (ms), one
            entry per measured point, and max_kv_tokens.

    Raises:
        InvalidEngineArgs: if a key is missing, or the decode points form no grid.
    """
    try:
        measured, points = json.loads(prefill), json.loads(decode)
        capacity = _first(points["max_kv_tokens"])
        grid = {
            (float(usage) * capacity, float(length)): float(itl)
            for usage, length, itl in zip(
                points["x_kv_usage"], points["y_context_length"], points["z_itl"], strict=True
            )
        }
        prefills = sorted(zip(measured["prefill_isl"], measured["prefill_ttft"], strict=True))
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise InvalidEngineArgs(f"planner_profile_data: not raw profile data: {error}") from error
    rows = sorted({kv for kv, _ in grid})
    columns = sorted({length for _, length in grid})
    if len(grid) != len(rows) * len(columns):
        raise InvalidEngineArgs(
            "planner_profile_data: the decode points form no grid; give an NPZ with decode_itl"
        )
    return {
        "type": "profile",
        "prefill_isl": [float(isl) for isl, _ in prefills],
        "prefill_ttft_ms": [float(ttft) for _, ttft in prefills],
        "decode_active_kv_tokens": rows,
        "decode_context_length": columns,
        "decode_itl_ms": [[grid[kv, length] for length in columns] for kv in rows],
    }


def _first(value: Any) -> float:  # noqa: ANN401 - a number, or a list that repeats it
    return float(value[0] if isinstance(value, list) else value)


def _array(name: str, data: bytes) -> _Array:
    """Return an array as numpy's format 1 to 3 stores it."""
    if not data.startswith(_MAGIC):
        raise ValueError(f"{name} is no array")
    wide = data[6] > 1
    (length,) = struct.unpack_from("<I" if wide else "<H", data, 8)
    start = (12 if wide else 10) + length
    header: Mapping[str, Any] = ast.literal_eval(data[start - length : start].decode("latin-1"))
    code = _FORMATS.get(header["descr"])
    if code is None or (header["fortran_order"] and len(header["shape"]) > 1):
        raise ValueError(f"{name} must hold little-endian numbers in C order")
    values = [float(value) for (value,) in struct.iter_unpack("<" + code, data[start:])]
    return _Array(tuple(header["shape"]), values)
