"""A bound on how deep JSON from outside may be nested, to be checked before it is parsed.

At the edge of Python's recursion limit a C parser may fail in worse ways than with an error
(msgspec 0.23 has crashed the process there), and what was parsed just below the limit fails later,
when it is written again from a deeper stack.
"""

import re

MAX_LEVELS = 100

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_STEP = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


class TooDeep(ValueError):
    """JSON with more than `MAX_LEVELS` levels of arrays and objects."""

    def __init__(self) -> None:
        super().__init__(f"arrays and objects are nested deeper than {MAX_LEVELS} levels")


def check_nesting(payload: bytes) -> None:
    """See that JSON is not nested too deep; whether it is JSON at all is not looked at.

    Two counts for nearly all payloads; those with many brackets are scanned once.

    Raises:
        TooDeep: if it is.
    """
    if payload.count(b"[") + payload.count(b"{") <= MAX_LEVELS:
        return
    level = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", payload)):
        level += _STEP[bracket]
        if level > MAX_LEVELS:
            raise TooDeep
