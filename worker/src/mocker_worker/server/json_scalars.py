"""Texts and numbers for structured answers: words of the vocabulary, small numbers, known formats.

A value depends on its keywords and a 64-bit state alone. What has no value is None here; the caller
knows the place to report.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, gcd, lcm
from uuid import UUID

import xxhash

from mocker_worker.server.json_schema import Keywords, Number
from mocker_worker.tokenizer import WORDS

_USUAL_SPAN = 100
_TRIED_NUMBERS = 8
_FLOAT_STEP = Fraction(1, 4)
_FLOAT_PRECISION = 2**-40
_MAX_INTEGER_BITS = 1020
"""So that every number can be written and compared with floats."""


def mix(state: int, key: str | int) -> int:
    """Return the state, 0..2**64-1, of what `key` names below what `state` stands for."""
    return xxhash.xxh3_64_intdigest(str(key).encode("utf-8", "surrogatepass"), state)


def word(state: int) -> str:
    """Return one word of the vocabulary."""
    return WORDS[state % len(WORDS)]


def text(state: int, *, at_least: int = 0, at_most: int | None = None) -> str:
    """Return one to three words, cut or continued to the asked number of characters."""
    words = [word(mix(state, index)) for index in range(1 + state % 3)]
    length = sum(map(len, words)) + len(words) - 1
    while length < at_least:
        words.append(word(mix(state, len(words))))
        length += 1 + len(words[-1])
    return " ".join(words)[:at_most]


def has_format(name: str | None, value: str) -> bool:
    """Whether a text has a format; every text has those that are not known here."""
    return name not in _FORMATS or _FORMATS[name][1].fullmatch(value) is not None


def formatted(name: str | None, state: int) -> str | None:
    """Return a text of a format, None if the format is not known here."""
    return _FORMATS[name][0](state) if name in _FORMATS else None


def in_range(words: Keywords, value: Number) -> bool:
    """Whether a number keeps the bounds and the step of one schema; decimals are exact."""
    return (
        (words.minimum is None or value >= words.minimum)
        and (words.maximum is None or value <= words.maximum)
        and (words.exclusive_minimum is None or value > words.exclusive_minimum)
        and (words.exclusive_maximum is None or value < words.exclusive_maximum)
        and (words.multiple_of is None or _is_whole(_exact(value) / _exact(words.multiple_of)))
    )


def number(parts: Sequence[Keywords], state: int, *, whole: bool) -> Number | None:
    """Return a number that keeps the bounds and steps of all parts, near 0 if they allow it."""
    lows = [bound for part in parts for bound in (part.minimum, part.exclusive_minimum)]
    highs = [bound for part in parts for bound in (part.maximum, part.exclusive_maximum)]
    low = max((_exact(bound) for bound in lows if bound is not None), default=None)
    high = min((_exact(bound) for bound in highs if bound is not None), default=None)
    divisors = [part.multiple_of for part in parts if part.multiple_of is not None]
    steps = [_exact(divisor) for divisor in ([*divisors, 1] if whole else divisors)]
    step = _common_multiple(steps) if steps else _float_step(low, high)
    first = None if low is None else ceil(low / step)
    last = None if high is None else floor(high / step)
    found = [
        value
        for multiple in _near_zero(first, last, state)
        if (value := _as_json(multiple * step)) is not None
        and all(in_range(part, value) for part in parts)
    ]
    exact = (v for v in found if all((v / divisor).is_integer() for divisor in divisors))
    return next(exact, found[0] if found else None)


def _near_zero(first: int | None, last: int | None, state: int) -> Iterable[int]:
    """Return some whole numbers between two bounds, in an order that depends on the state."""
    start = last - _USUAL_SPAN + 1 if last is not None and last <= 0 else 0
    start = start if first is None else max(first, start)
    end = start + _USUAL_SPAN - 1
    span = (end if last is None else min(last, end)) - start + 1
    return (start + (state + index) % span for index in range(min(span, _TRIED_NUMBERS)))


def _float_step(low: Fraction | None, high: Fraction | None) -> Fraction:
    """Return a step that puts some numbers between the bounds; floats keep them apart."""
    if low is None or high is None:
        bound = abs(low or high or Fraction(0))
        return max(_FLOAT_STEP, bound * Fraction(_FLOAT_PRECISION))
    span = high - low
    if span > _TRIED_NUMBERS * _FLOAT_STEP:
        return max(_FLOAT_STEP, max(abs(low), abs(high)) * Fraction(_FLOAT_PRECISION))
    return abs(span) / _TRIED_NUMBERS or abs(low) or Fraction(1)


def _common_multiple(steps: Sequence[Fraction]) -> Fraction:
    return Fraction(
        lcm(*(step.numerator for step in steps)), gcd(*(step.denominator for step in steps))
    )


def _exact(value: Number) -> Fraction:
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def _is_whole(value: Fraction) -> bool:
    return value.denominator == 1


def _as_json(value: Fraction) -> Number | None:
    if value.numerator.bit_length() - value.denominator.bit_length() > _MAX_INTEGER_BITS:
        return None
    return value.numerator if _is_whole(value) else float(value)


def _date(state: int) -> str:
    return f"{2020 + state % 10}-{1 + state // 10 % 12:02}-{1 + state // 120 % 28:02}"


def _time(state: int) -> str:
    return f"{state % 24:02}:{state // 24 % 60:02}:{state // 1440 % 60:02}Z"


def _words(state: int, separator: str) -> str:
    return separator.join(word(mix(state, index)) for index in range(2))


_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]\d\d:\d\d)"
_HOST = r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*"
_BYTE = r"(25[0-5]|2[0-4]\d|1?\d?\d)"

_FORMATS: Mapping[str | None, tuple[Callable[[int], str], re.Pattern[str]]] = {
    "date": (_date, re.compile(_DATE, re.ASCII)),
    "time": (_time, re.compile(_TIME, re.ASCII)),
    "date-time": (
        lambda state: f"{_date(state)}T{_time(mix(state, 'time'))}",
        re.compile(f"{_DATE}[Tt]{_TIME}", re.ASCII),
    ),
    "duration": (
        lambda state: f"P{1 + state % 30}DT{1 + state // 30 % 23}H",
        re.compile(r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)", re.ASCII),
    ),
    "email": (
        lambda state: f"{_words(state, '.')}@example.com",
        re.compile(rf"[^@\s]+@{_HOST}", re.ASCII),
    ),
    "hostname": (lambda state: f"{_words(state, '-')}.example.com", re.compile(_HOST, re.ASCII)),
    "ipv4": (
        lambda state: f"192.0.2.{1 + state % 254}",
        re.compile(rf"{_BYTE}(\.{_BYTE}){{3}}", re.ASCII),
    ),
    "ipv6": (
        lambda state: f"2001:db8::{1 + state % 0xFFFF:x}",
        re.compile(r"(?=.*:.*:)[0-9A-Fa-f:.]+", re.ASCII),
    ),
    "uri": (
        lambda state: f"https://example.com/{_words(state, '/')}",
        re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+", re.ASCII),
    ),
    "uuid": (
        lambda state: str(UUID(int=state << 64 | mix(state, "low"), version=4)),
        re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", re.ASCII),
    ),
}
"""How a text of each format is made (names and addresses of RFC 2606, 5737 and 3849) and known."""
