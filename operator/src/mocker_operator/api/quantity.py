"""Kubernetes quantities (`500m`, `0.5`, `64Mi`), so that two spellings of one value are equal."""

import re
from fractions import Fraction
from typing import Final

QUANTITY_PATTERN: Final = (
    r"^[+]?([0-9]{1,18}([.][0-9]{0,9})?|[.][0-9]{1,9})"
    r"([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
)
"""What the resource accepts: no negative values, at most 18 digits before the point."""

_SPLIT: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
)
_SCALE: Final[dict[str, Fraction]] = {
    **{
        suffix: Fraction(1024) ** power
        for power, suffix in enumerate("Ki Mi Gi Ti Pi Ei".split(), 1)
    },
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", 1)},
}


def parse_quantity(text: str) -> Fraction:
    """Return the exact value of a quantity.

    Raises:
        ValueError: if the text is not a quantity.
    """
    match = _SPLIT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; write one such as 500m or 64Mi")
    number, suffix = Fraction(match[1].rstrip(".")), match[2] or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return number * Fraction(10) ** int(suffix[1:])
    return number * _SCALE.get(suffix, Fraction(1))
