"""Tool calls of a chat: whether the mock model calls a tool, which one, and with what arguments.

A model that may choose calls a tool when the user has spoken and answers with text when it has a
tool's result, so that an agent's loop ends after one round.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from mocker_worker.server.errors import InvalidRequest, NotSupported
from mocker_worker.server.json_scalars import mix
from mocker_worker.server.json_schema import Json
from mocker_worker.server.plausible_json import InvalidSchema, UnsupportedSchema, plausible

_MASK = 2**64 - 1


class ToolCall(NamedTuple):
    """A call of a function; `arguments` is the text of a JSON object."""

    name: str
    arguments: str


def wants_call(tool_choice: Json, last_role: str) -> bool:
    """Whether a request with tools is answered by a call rather than by text.

    Args:
        tool_choice: The field of the request; None counts as `auto`.
        last_role: The role of the last message.

    Raises:
        ApiError: if `tool_choice` has another form (400), or one that is not supported (501).
    """
    if tool_choice is None or tool_choice == "auto":
        return last_role == "user"
    if tool_choice == "none":
        return False
    if tool_choice != "required":
        _named(tool_choice)
    return True


def choose_tool(tools: Json, tool_choice: Json, seed: int) -> ToolCall:
    """Return the call that answers a request: the named tool, else one drawn from the seed.

    Raises:
        ApiError: if a tool is malformed or not among `tools` (400), or needs what the mock engine
            does not do (501); the message names the place, as in `tools[0].function.name`.
    """
    functions = check_tools(tools)
    state = mix(seed & _MASK, "tool")
    if tool_choice in (None, "auto", "required"):
        index = state % len(functions)
    else:
        index = _index_of(_named(tool_choice), functions)
    function = functions[index]
    return ToolCall(function["name"], _arguments(function.get("parameters"), index, state))


def check_tools(tools: Json) -> Sequence[dict[str, Any]]:
    """Return the functions of `tools`, of which each has a name and maybe parameters.

    Raises:
        ApiError: as `choose_tool`.
    """
    if not isinstance(tools, list) or not tools:
        raise InvalidRequest("tools", "tools: must be a list of at least one tool")
    return [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _function(tool: Json, path: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise InvalidRequest("tools", f"{path}: must be an object")
    if tool.get("type") == "custom":
        raise NotSupported("tools", f"use type function in {path}")
    if tool.get("type") != "function":
        raise InvalidRequest("tools", f"{path}.type: must be 'function'")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest("tools", f"{path}.function: must be an object")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidRequest("tools", f"{path}.function.name: must be a text that is not empty")
    if not isinstance(function.get("description"), str | None):
        raise InvalidRequest("tools", f"{path}.function.description: must be a text")
    if not isinstance(function.get("parameters"), dict | None):
        raise InvalidRequest("tools", f"{path}.function.parameters: must be a JSON schema")
    return function


def _named(tool_choice: Json) -> str:
    """Return the name in a `tool_choice` that names a function."""
    kind = tool_choice.get("type") if isinstance(tool_choice, dict) else None
    if kind in ("allowed_tools", "custom"):
        raise NotSupported("tool_choice", "use none, auto, required or a function")
    if kind != "function":
        raise InvalidRequest(
            "tool_choice", "tool_choice: must be 'none', 'auto', 'required' or name a function"
        )
    function = tool_choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequest("tool_choice", "tool_choice.function.name: must be a text")
    return name


def _index_of(name: str, functions: Sequence[dict[str, Any]]) -> int:
    for index, function in enumerate(functions):
        if function["name"] == name:
            return index
    raise InvalidRequest(
        "tool_choice", f"tool_choice.function.name: {name[:100]!r} is not the name of any of tools"
    )


def _arguments(parameters: dict[str, Any] | None, index: int, seed: int) -> str:
    """Return the text of an object that the parameters' schema allows; `{}` without a schema."""
    path = f"tools[{index}].function.parameters"
    schema = {"type": "object", **(parameters or {})}
    if isinstance(schema["type"], list) and "object" in schema["type"]:
        schema["type"] = "object"
    if schema["type"] != "object":
        raise InvalidRequest("tools", f"{path}.type: must be 'object'")
    try:
        return json.dumps(plausible(schema, seed), separators=(",", ":"))
    except InvalidSchema as error:
        place = f"{path}.{error.path}" if error.path else path
        raise InvalidRequest("tools", f"{place}: {error.reason}") from error
    except UnsupportedSchema as error:
        raise NotSupported("tools", f"leave out {path}.{error.path}") from error
