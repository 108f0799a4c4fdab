"""Flags that take their default from the environment.

`--queue-full-status` has it from `MOCKER_QUEUE_FULL_STATUS`. A value that is wrong ends the program
with a message that names the flag, and the variable if it came from there, and says what may stand
in its place.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")
_PREFIX = "MOCKER_"
_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class _FromEnvironment(str):
    """A default that argparse converts like the text of a flag."""

    variable: str


def variable_of(flag: str) -> str:
    """Return the environment variable of a flag."""
    return _PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def setting(
    parser: argparse._ActionsContainer,
    environment: Mapping[str, str],
    flag: str,
    convert: Callable[[str], object] = str,
    *,
    default: object = None,
    **more: Any,  # noqa: ANN401 - argparse's own
) -> None:
    """Add a flag.

    Args:
        parser: Parser or group of flags.
        environment: Where the default is looked up; an empty variable counts as absent.
        flag: With its two dashes.
        convert: Makes the value from a text; its ValueError says what is wrong and what is right.
        default: The value when neither flag nor variable are given.
        more: As for `add_argument`; `action=argparse.BooleanOptionalAction` takes `boolean`.
    """
    variable = variable_of(flag)
    text = environment.get(variable)
    if text:
        default = _FromEnvironment(text)
        default.variable = variable
    action = parser.add_argument(flag, default=default, **more)
    action.type = _named(convert)
    action.help = f"{action.help or ''} [{variable}]".strip()


def _named(convert: Callable[[str], object]) -> Callable[[str], object]:
    def converted(text: str) -> object:
        try:
            return convert(text)
        except ValueError as error:
            source = f"{text.variable}: " if isinstance(text, _FromEnvironment) else ""
            raise argparse.ArgumentTypeError(f"{source}{error}") from error

    return converted


def boolean(text: str) -> bool:
    """Convert `true` or `false`, also written 1, yes, 0 or no."""
    try:
        return _WORDS[text.lower()]
    except KeyError:
        raise ValueError(f"must be true or false, not {text!r}") from None


def one_of(words: Iterable[_T]) -> Callable[[str], _T]:
    """Return what takes one of these words."""
    known = {str(word): word for word in words}

    def convert(text: str) -> _T:
        if text not in known:
            raise ValueError(f"must be one of {', '.join(known)}, not {text!r}")
        return known[text]

    return convert


def number(low: float, high: float) -> Callable[[str], float]:
    """Return what takes a number from `low` to `high`."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}, not {text!r}")
        return value

    return convert


def limit(text: str) -> int | None:
    """Convert a count of which 0 means no limit (None)."""
    if not text.isdecimal():
        raise ValueError(f"must be a whole number, 0 for no limit, not {text!r}")
    return int(text) or None


def names(text: str) -> tuple[str, ...]:
    """Split at commas; spaces around names and empty names are dropped."""
    return tuple(name for part in text.split(",") if (name := part.strip()))
