"""Every engine argument as a flag of the command line, made from the one model of them."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from mocker_protocol.engine_args import EngineArgs, InvalidEngineArgs
from mocker_protocol.timing_profile import profile_from_json, profile_from_npz

_SKIPPED = frozenset(
    "worker_type publish_kv_events timing_model engine_type zmq_kv_events_port "
    "zmq_replay_port".split()
)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per engine argument; the default of each means that it was not given."""
    group = parser.add_argument_group("engine arguments (of every worker)")
    group.add_argument(
        "--extra-engine-args", metavar="FILE", help="engine arguments as a JSON object"
    )
    group.add_argument(
        "--timing-model",
        type=json.loads,
        metavar="JSON",
        help='such as {"type": "fixed", "prefill_ms": 20, "decode_ms": 8}',
    )
    group.add_argument(
        "--planner-profile-data",
        metavar="PATH",
        help="an NPZ file of pass times, or a directory with the profiler's raw JSON files",
    )
    for name, kind in _fields():
        flag = "--" + name.replace("_", "-")
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None)
        else:
            group.add_argument(flag, type=kind, metavar=kind.__name__.upper())


def engine_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the engine arguments that were given as flags."""
    names = [name for name, _ in _fields()] + ["timing_model"]
    given = {n: getattr(arguments, n) for n in names if getattr(arguments, n) is not None}
    if arguments.planner_profile_data is not None:
        given["timing_model"] = read_profile(Path(arguments.planner_profile_data))
    return given


def read_text(path: Path) -> str:
    """Read a file of engine arguments.

    Raises:
        InvalidEngineArgs: if it is no UTF-8 text.
        OSError: if it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidEngineArgs(f"{path}: not UTF-8 text: {error}") from error


def read_profile(path: Path) -> dict[str, Any]:
    """Read an NPZ file, or a directory with prefill_raw_data.json and decode_raw_data.json.

    Raises:
        InvalidEngineArgs: if a file is no UTF-8 text, or not what it should be.
        OSError: if it cannot be read.
    """
    if path.is_dir():
        prefill, decode = path / "prefill_raw_data.json", path / "decode_raw_data.json"
        return profile_from_json(read_text(prefill), read_text(decode))
    return profile_from_npz(path.read_bytes())


def _fields() -> Iterator[tuple[str, type]]:
    for name, field in EngineArgs.model_fields.items():
        if name not in _SKIPPED:
            yield name, _plain(field.annotation)


def _plain(annotation: Any) -> type:  # noqa: ANN401 - an annotation can be anything
    """Return the type that a flag's text is turned into."""
    if get_origin(annotation) in (Union, UnionType):
        return _plain(next(a for a in get_args(annotation) if a is not type(None)))
    if hasattr(annotation, "__metadata__"):
        return _plain(annotation.__origin__)
    return annotation if annotation in (bool, int, float) else str
