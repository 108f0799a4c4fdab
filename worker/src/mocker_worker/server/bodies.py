"""From a request's body to a checked struct, with vLLM's errors."""

import re
from typing import NoReturn, TypeVar

import msgspec

from mocker_protocol.json_nesting import TooDeep, check_nesting
from mocker_worker.server.errors import InvalidRequest

_Body = TypeVar("_Body")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_FIELD = re.compile(r"(?:missing required|contains unknown) field `([^`]*)`")


def decode_body(decoder: "msgspec.json.Decoder[_Body]", body: bytes) -> _Body:
    """Decode JSON and check types and ranges.

    Raises:
        InvalidRequest: naming the field.
    """
    try:
        check_nesting(body)
        return decoder.decode(body)
    except TooDeep as error:
        raise InvalidRequest(None, f"the body is refused: {error}; flatten it") from error
    except msgspec.ValidationError as error:
        _refuse(str(error))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(None, f"the body is not JSON: {error}") from error


def _refuse(message: str) -> NoReturn:
    """Turn msgspec's text, which ends with the path of the value, into vLLM's error."""
    path = _PATH.search(message)
    named = _FIELD.search(message)
    field = path[1] if path else ""
    if named:
        field = f"{field}.{named[1]}" if field else named[1]
    text = _PATH.sub("", message)
    param = re.split(r"[.\[]", field)[0] or None
    raise InvalidRequest(param, f"{field}: {text}" if field else text)
