"""From a request's body to a checked struct, with vLLM's errors.

Integers may be written as integral floats (`4.0`), as pydantic lets vLLM take them. Only a body
with such a number is decoded more than once.
"""

import contextlib
import json
import re
from typing import Any, NoReturn, TypeVar

import msgspec

from mocker_protocol.json_nesting import TooDeep, check_nesting
from mocker_worker.server.errors import InvalidRequest

_Body = TypeVar("_Body")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_NOT_AN_INTEGER = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `float`")
_FIELD = re.compile(r"(?:missing required|contains unknown) field `([^`]*)`")


def decode_body(decoder: "msgspec.json.Decoder[_Body]", body: bytes) -> _Body:
    """Decode JSON and check types and ranges.

    Raises:
        InvalidRequest: naming the field.
    """
    try:
        check_nesting(body)
        return _decode(decoder, body)
    except TooDeep as error:
        raise InvalidRequest(None, f"the body is refused: {error}; flatten it") from error
    except msgspec.ValidationError as error:
        _refuse(str(error))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(None, f"the body is not JSON: {error}") from error


def _decode(decoder: "msgspec.json.Decoder[_Body]", body: bytes) -> _Body:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if not _NOT_AN_INTEGER.match(str(error)):
            raise
    return _with_integral_floats(decoder, body)


def _with_integral_floats(decoder: "msgspec.json.Decoder[_Body]", body: bytes) -> _Body:
    """Decode anew, taking the integral floats of fields of integers for integers."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    corrected: set[str] = set()
    while True:
        try:
            return decoder.decode(msgspec.json.encode(fields))
        except msgspec.ValidationError as error:
            message = str(error)
            field = _param(_path(message))
            if field is None or field in corrected or not _NOT_AN_INTEGER.match(message):
                raise
        corrected.add(field)
        with contextlib.suppress(msgspec.ValidationError):  # a number that is none for a float
            value = _integral(msgspec.json.decode(fields[field]))
            fields[field] = msgspec.Raw(json.dumps(value).encode())  # integers of any length


def _integral(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, list):
        return [_integral(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _path(message: str) -> str:
    path = _PATH.search(message)
    return path[1] if path else ""


def _param(path: str) -> str | None:
    return re.split(r"[.\[]", path)[0] or None


def _refuse(message: str) -> NoReturn:
    """Turn msgspec's text, which ends with the path of the value, into vLLM's error."""
    field = _path(message)
    if named := _FIELD.search(message):
        field = f"{field}.{named[1]}" if field else named[1]
    text = _PATH.sub("", message)
    raise InvalidRequest(_param(field), f"{field}: {text}" if field else text)
