"""Flags that take their default from the environment.

`--queue-full-status` has it from `MOCKER_QUEUE_FULL_STATUS`. A value that is wrong ends the program
with a message that names the flag, and the variable if it came from there, and says what may stand
in its place.
"""

import argparse
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

_T = TypeVar("_T")
_PREFIX = "MOCKER_"
_MAX_PORT = 65535
_CLOSE_RATIO = 0.85
"""Of equal letters in two names, above which one is taken for a slip of the other."""
_NATS_URL = re.compile(r"((nats|tls)://)?[^\s/,]+/?|wss?://[^\s,]+")
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
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
    variable: str | None = None,
    **more: Any,  # noqa: ANN401 - argparse's own
) -> None:
    """Add a flag; what is parsed has the variables of all such flags as `variables`.

    Args:
        parser: Parser or group of flags.
        environment: Where the default is looked up; an empty variable counts as absent.
        flag: With its two dashes.
        convert: Makes the value from a text; its ValueError says what is wrong and what is right.
        default: The value when neither flag nor variable are given.
        variable: Its environment variable, if it is not that of `variable_of`.
        more: As for `add_argument`; `action=argparse.BooleanOptionalAction` takes `boolean`.
    """
    variable = variable or variable_of(flag)
    text = environment.get(variable)
    if text:
        default = _FromEnvironment(text)
        default.variable = variable
    action = parser.add_argument(flag, default=default, **more)
    action.type = checked(convert)
    action.help = f"{action.help or ''} [{variable}]".strip()
    parser.set_defaults(variables=(*(parser.get_default("variables") or ()), variable))


def stray_variables(
    environment: Mapping[str, str], *, variables: Collection[str], flags: Collection[str]
) -> Iterator[str]:
    """Yield a line about each variable that somebody seems to have meant for this program.

    Args:
        environment: Where the variables are.
        variables: Those that have an effect.
        flags: All flags, as argparse stores them.
    """
    for found in sorted(environment):
        if not found.startswith(_PREFIX) or found in variables:
            continue
        if (flag := found.removeprefix(_PREFIX).lower()) in flags:
            yield f"{found} has no effect: give the flag --{flag.replace('_', '-')} itself"
        elif meant := _similar(found, variables):
            yield f"{found} has no effect: is {meant} meant?"


def _similar(found: str, variables: Collection[str]) -> str | None:
    """Return a variable that has all words of another name, or the other way round, or a typo."""
    words = set(found.split("_"))
    for variable in variables:
        known = set(variable.split("_"))
        if words <= known or known <= words:
            return variable
    return next(iter(get_close_matches(found, variables, 1, _CLOSE_RATIO)), None)


def checked(convert: Callable[[str], object]) -> Callable[[str], object]:
    """Return the same for argparse, which else leaves out what a ValueError says."""

    def converted(text: str) -> object:
        try:
            return convert(str(text))  # no value may be the marked kind of text
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


def seconds(text: str) -> float:
    """Convert a duration."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ValueError(f"must be a number of seconds, at least 0, not {text!r}")
    return value


def port(text: str) -> int:
    """Convert the number of a TCP port; 0 is one of them."""
    if not text.isdecimal() or int(text) > _MAX_PORT:
        raise ValueError(f"must be a port, 0 to {_MAX_PORT}, not {text!r}")
    return int(text)


def limit(text: str) -> int | None:
    """Convert a count of which 0 means no limit (None)."""
    if not text.isdecimal():
        raise ValueError(f"must be a whole number, 0 for no limit, not {text!r}")
    return int(text) or None


def names(text: str) -> tuple[str, ...]:
    """Split at commas; spaces around names and empty names are dropped."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def urls(text: str) -> tuple[str, ...]:
    """Convert URLs of HTTP, separated by commas."""
    found = names(text)
    for url in found:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"must be http:// or https:// URLs, separated by commas, not {url!r}")
    return found


def nats_url(text: str) -> str:
    """Take the URL of a NATS server."""
    if not _NATS_URL.fullmatch(text):
        raise ValueError(f"must be nats://HOST:PORT (or tls, ws, wss), not {text!r}")
    return text


def namespace(text: str) -> str:
    """Take a Dynamo namespace, which becomes a part of names on NATS."""
    if not _NAMESPACE.fullmatch(text):
        raise ValueError(
            f"must consist of A-Z, a-z, 0-9, -, _ and dots between them, not {text!r}; "
            "on Kubernetes it is <namespace>-<MockerDeployment>"
        )
    return text


def model_name(text: str) -> str:
    """Take any text that answers and metrics can hold, but an empty one."""
    if not text.strip():
        raise ValueError("must not be empty")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must be UTF-8")  # other bytes of the command line become surrogates
    return text


def count(text: str) -> int:
    """Convert a number of things, one or more."""
    if not text.isdecimal() or not int(text):
        raise ValueError(f"must be a whole number, at least 1, not {text!r}")
    return int(text)
