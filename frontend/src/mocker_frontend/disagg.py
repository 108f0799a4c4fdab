"""The bodies of the two legs of a disaggregated request (vLLM's NIXL connector, 0.33).

The prefill leg computes the prompt and one token and answers where its KV blocks are; the decode
leg is the client's request plus that answer. Fields that are not known here travel untouched.
"""

from typing import Any, TypeAlias

import msgspec

from mocker_protocol.json_nesting import TooDeep, check_nesting

JsonObject: TypeAlias = dict[str, Any]

_REMOTE_DECODE: JsonObject = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class InvalidBody(ValueError):
    """A request body that is not a JSON object; the text says why."""


def parse_body(payload: bytes) -> JsonObject:
    """Parse a request body.

    Raises:
        InvalidBody: if it is not a JSON object.
    """
    try:
        check_nesting(payload)
        body = msgspec.json.decode(payload)
    except TooDeep as error:
        raise InvalidBody(f"the request body is refused: {error}; flatten it") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody(f"the request body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidBody("the request body must be a JSON object")
    return body


def prefill_body(body: JsonObject) -> JsonObject:
    """Return the request for the prefill worker."""
    dropped = ("stream_options", "min_tokens")
    leg = {name: value for name, value in body.items() if name not in dropped}
    leg |= {"stream": False, "max_tokens": 1, "kv_transfer_params": dict(_REMOTE_DECODE)}
    if "max_completion_tokens" in body:
        leg["max_completion_tokens"] = 1
    return leg


def decode_body(body: JsonObject, kv_transfer_params: object) -> JsonObject:
    """Return the request for the decode worker; None as parameters means a local prefill."""
    if kv_transfer_params is None:
        return body
    return {**body, "kv_transfer_params": kv_transfer_params}


def with_usage(body: JsonObject) -> tuple[JsonObject, bool]:
    """Ask for the usage of a stream; return the body and whether the client had not asked.

    The frontend measures sequence lengths by it and takes the extra chunk out again; what its
    client is to see (`system_fingerprint`), the worker then puts on the chunk before it.
    """
    options = body.get("stream_options")
    if body.get("stream") is not True or not (options is None or isinstance(options, dict)):
        return body, False
    if options is not None and options.get("include_usage"):
        return body, False
    asked = {**(options or {}), "include_usage": True, "usage_is_hidden": True}
    if "continuous_usage_stats" in asked:
        asked["continuous_usage_stats"] = False  # without include_usage it means nothing
    return {**body, "stream_options": asked}, True
