"""A bound on how deep MessagePack from outside may be nested, to be checked before it is parsed.

For the reason that `json_nesting` gives. Whether the bytes are MessagePack at all is the parser's
to say: a scan that runs out of bytes finds nothing wrong.
"""

import struct

from mocker_protocol.json_nesting import MAX_LEVELS, TooDeep

_CONTAINERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
_FIXED_BYTES = {
    **dict(zip(range(0xCA, 0xD4), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8), strict=True)),
    **dict(zip(range(0xD4, 0xD9), (2, 3, 5, 9, 17), strict=True)),
}
"""Bytes after the first one of floats, integers and extensions of fixed size."""
_SIZES = (">B", ">H", ">I")
_BINARY_HEADS = {
    first + step: (form, extra)
    for first, extra in ((0xC4, 0), (0xC7, 1), (0xD9, 0))
    for step, form in enumerate(_SIZES)
}
"""Format of the length, and bytes besides it, of binaries, extensions and strings."""
_CONTAINER_HEADS = {0xDC: (">H", 1), 0xDD: (">I", 1), 0xDE: (">H", 2), 0xDF: (">I", 2)}
"""Format of the length, and items per element, of arrays and maps."""


def check_msgpack_nesting(payload: bytes) -> None:
    """See that MessagePack is not nested too deep.

    One count for short messages; others are scanned.

    Raises:
        TooDeep: if it is.
    """
    if len(payload) - len(payload.translate(None, _CONTAINERS)) <= MAX_LEVELS:
        return
    try:
        _scan(payload)
    except (IndexError, struct.error):
        return


def _scan(payload: bytes) -> None:
    open_items = [1]
    position = 0
    while open_items:
        if open_items[-1] == 0:
            open_items.pop()
            continue
        open_items[-1] -= 1
        position, items = _head(payload, position)
        if items is None:
            continue
        if len(open_items) > MAX_LEVELS:
            raise TooDeep
        open_items.append(items)


def _head(payload: bytes, position: int) -> tuple[int, int | None]:
    """Return where the next value begins, and the items of this one if it holds any."""
    first = payload[position]
    position += 1
    if 0x80 <= first <= 0x8F:
        return position, 2 * (first & 0x0F)
    if 0x90 <= first <= 0x9F:
        return position, first & 0x0F
    if 0xA0 <= first <= 0xBF:
        return position + (first & 0x1F), None
    if first in _BINARY_HEADS:
        form, extra = _BINARY_HEADS[first]
        (length,) = struct.unpack_from(form, payload, position)
        return position + struct.calcsize(form) + extra + length, None
    if first in _CONTAINER_HEADS:
        form, each = _CONTAINER_HEADS[first]
        (length,) = struct.unpack_from(form, payload, position)
        return position + struct.calcsize(form), each * length
    return position + _FIXED_BYTES.get(first, 0), None
