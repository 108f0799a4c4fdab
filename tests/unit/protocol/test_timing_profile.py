"""Profile files: one that numpy 2.4 wrote, and the profiler's raw JSON."""

import contextlib
import json
import struct
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from mocker_protocol.engine_args import InvalidEngineArgs, parse_engine_args
from mocker_protocol.timing_profile import profile_from_json, profile_from_npz

NPZ = Path(__file__).parent / "data" / "profile.npz"
PROFILE: dict[str, Any] = {
    "type": "profile",
    "prefill_isl": [100, 1000],
    "prefill_ttft_ms": [10, 100],
    "decode_active_kv_tokens": [0, 100, 400],
    "decode_context_length": [10, 50, 90],
    "decode_itl_ms": [[2, 4, 6], [4, 8, 10], [10, 20, 40]],
}
PREFILL = {"prefill_isl": [1000, 100], "prefill_ttft": [100, 10]}
DECODE = {
    "x_kv_usage": [usage for usage in (0, 0.1, 0.4) for _ in range(3)],
    "y_context_length": [10, 50, 90] * 3,
    "z_itl": [2, 4, 6, 4, 8, 10, 10, 20, 40],
    "max_kv_tokens": 1000,
}


def test_an_npz_file_of_numpy_is_read_without_numpy() -> None:
    model = profile_from_npz(NPZ.read_bytes())
    assert model == PROFILE
    assert parse_engine_args({"timing_model": model}).timing_model.type == "profile"


def test_raw_json_of_the_profiler_is_the_same_profile() -> None:
    assert profile_from_json(json.dumps(PREFILL), json.dumps(DECODE)) == PROFILE


def test_what_is_no_npz_is_refused() -> None:
    with pytest.raises(InvalidEngineArgs, match="not a readable NPZ"):
        profile_from_npz(b"PK no")


@pytest.mark.parametrize("key", ["x_kv_usage", "max_kv_tokens"])
def test_raw_json_that_lacks_a_key_is_refused(key: str) -> None:
    decode = {name: value for name, value in DECODE.items() if name != key}
    with pytest.raises(InvalidEngineArgs, match=key):
        profile_from_json(json.dumps(PREFILL), json.dumps(decode))


def test_raw_json_without_a_full_grid_is_refused() -> None:
    decode = {n: v[:-1] if isinstance(v, list) else v for n, v in DECODE.items()}
    with pytest.raises(InvalidEngineArgs, match="no grid"):
        profile_from_json(json.dumps(PREFILL), json.dumps(decode))


def npz_with(**arrays: tuple[tuple[int, ...], list[float]]) -> bytes:
    """Write arrays (shape, values) over those of PROFILE, as numpy would."""
    plain = {n: ((len(v),), v) for n, v in PROFILE.items() if n != "type" and "itl" not in n}
    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (shape, values) in {**plain, **arrays}.items():
            header = repr({"descr": "<f8", "fortran_order": False, "shape": shape}).encode()
            size = struct.pack("<H", len(header))
            numbers = struct.pack(f"<{len(values)}d", *values)
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + size + header + numbers)
    return data.getvalue()


def test_a_decode_table_of_another_shape_is_refused() -> None:
    contexts = ((2,), [10.0, 50.0])
    table = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    rows = profile_from_npz(npz_with(decode_context_length=contexts, decode_itl=((3, 2), table)))
    assert rows["decode_itl_ms"] == [[1, 2], [3, 4], [5, 6]]
    for shape in ((2, 3), (6,), (3, 2, 1)):
        with pytest.raises(InvalidEngineArgs, match=r"decode_itl has the shape .*\(3, 2\)"):
            profile_from_npz(npz_with(decode_context_length=contexts, decode_itl=(shape, table)))


def test_an_npz_that_is_damaged_anywhere_is_read_or_refused() -> None:
    whole = npz_with(decode_itl=((3, 3), [float(value) for value in range(9)]))
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        with contextlib.suppress(InvalidEngineArgs):
            profile_from_npz(bytes(damaged))


def test_raw_json_without_a_capacity_is_refused() -> None:
    with pytest.raises(InvalidEngineArgs, match="not raw profile data"):
        profile_from_json(json.dumps(PREFILL), json.dumps({**DECODE, "max_kv_tokens": []}))
