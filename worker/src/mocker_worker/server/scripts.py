"""What the engine is told to say: nothing (random tokens), the prompt again, or plausible JSON."""

import json
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import xxhash

from mocker_worker.config import Mode
from mocker_worker.server.errors import InvalidRequest, NotSupported
from mocker_worker.server.permitted_tokens import PermittedTokens
from mocker_worker.server.requests import ChatRequest, GenerationRequest, Prompt
from mocker_worker.tokenizer import Tokenizer


class CalledTool(NamedTuple):
    """A function that the answer calls; its arguments are the answer's tokens."""

    call_id: str
    name: str
    finish_reason: str = "tool_calls"
    """As OpenAI's API has it, `stop` if the request has named the function."""


class Script(NamedTuple):
    """The tokens of an answer; none for random ones."""

    token_ids: Sequence[int] = ()
    tool: CalledTool | None = None
    candidates: Sequence[int] = ()
    """Ids that the tokens were drawn from, all as likely; empty if the tokens are certain."""


RANDOM = Script()


class ScriptWriter:
    """Decides what answers say; the same request and seed get the same."""

    def __init__(self, tokenizer: Tokenizer, mode: Mode) -> None:
        self.tokenizer = tokenizer
        self._mode = mode

    def script(
        self,
        request: GenerationRequest,
        prompt: Prompt,
        name: str,
        *,
        permitted: PermittedTokens | None,
        num_tokens: int,
    ) -> Script:
        """Return what to say.

        Args:
            request: A checked request.
            prompt: The prompt that is answered.
            name: Of the answer; takes the place of a seed that the request does not have.
            permitted: What the request permits; None for all.
            num_tokens: Length of an answer whose tokens are drawn here.

        Raises:
            ApiError: if it asks for something that cannot be made up.
        """
        seed = xxhash.xxh3_64_intdigest(
            f"{name if request.seed is None else request.seed}".encode("utf-8", "surrogatepass")
        )
        script = self._known(request, prompt, seed)
        if permitted is None:
            return script
        if not script.token_ids and permitted.candidates:
            drawn = lengthened(permitted.draw(seed, num_tokens), num_tokens)
            return Script(drawn, candidates=permitted.candidates)
        permitted.check(script.token_ids)
        return script

    def _known(self, request: GenerationRequest, prompt: Prompt, seed: int) -> Script:
        """Return what to say where more than chance decides."""
        if isinstance(request, ChatRequest) and request.tools:
            # Only who calls tools pays for what makes up their arguments.
            from mocker_worker.server.tool_calls import check_tools, choose_tool, wants_call

            check_tools(request.tools)
            if wants_call(request.tool_choice, request.messages[-1].role):
                function, arguments = choose_tool(request.tools, request.tool_choice, seed)
                is_named = isinstance(request.tool_choice, dict)
                call = CalledTool(
                    f"call_{seed:016x}", function, "stop" if is_named else "tool_calls"
                )
                return Script(self._encode(arguments), call)
        text = _structured(request, seed)
        if text is not None:
            return Script(self._encode(text))
        if self._mode is Mode.ECHO:
            return Script(self._echoed(request, prompt))
        return RANDOM

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _echoed(self, request: GenerationRequest, prompt: Prompt) -> Sequence[int]:
        """Return the latest message of the user, or the prompt of a completion."""
        if not isinstance(request, ChatRequest):
            return prompt.token_ids
        texts = [message.text for message in request.messages if message.role == "user"]
        return self._encode(texts[-1] if texts else request.messages[-1].text)


def lengthened(script: Sequence[int], num_tokens: int) -> Sequence[int]:
    """Return a script that is repeated until it has `num_tokens` tokens, where it is shorter."""
    if not script or len(script) >= num_tokens:
        return script
    times = -(-num_tokens // len(script))
    return (array("I", script) * times)[:num_tokens]


def _structured(request: GenerationRequest, seed: int) -> str | None:
    """Return a text of the form that the request wants; None if it wants none."""
    outputs = request.structured_outputs
    if outputs is not None:
        if outputs.choice:
            return outputs.choice[seed % len(outputs.choice)]
        if outputs.json is not None:
            return _json_text(_schema(outputs.json), seed, "structured_outputs.json")
        if outputs.json_object:
            return _json_text({"type": "object"}, seed, "structured_outputs.json_object")
    if request.response_format is not None:
        return _formatted(request.response_format, seed)
    return None


def _formatted(response_format: dict[str, Any], seed: int) -> str | None:
    match response_format:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return _json_text(_ANY_OBJECT, seed, "response_format")
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return _json_text(schema, seed, "response_format.json_schema.schema")
        case {"type": "json_schema"}:
            raise InvalidRequest(
                "response_format", "response_format.json_schema.schema: must be a JSON schema"
            )
        case {"type": "structural_tag"}:
            raise NotSupported("response_format", "use type json_object or json_schema")
    raise InvalidRequest(
        "response_format", "response_format.type: must be text, json_object or json_schema"
    )


_ANY_OBJECT = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "score": {"type": "number"}},
}


def _schema(value: str | dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            "structured_outputs", f"structured_outputs.json: is not JSON: {error}"
        ) from error


def _json_text(schema: Any, seed: int, field: str) -> str:  # noqa: ANN401 - JSON
    from mocker_worker.server.plausible_json import InvalidSchema, UnsupportedSchema, plausible

    try:
        return json.dumps(plausible(schema, seed), separators=(",", ":"))
    except UnsupportedSchema as error:
        raise NotSupported(f"{field}.{error.path}", "leave this keyword out") from error
    except InvalidSchema as error:
        path = f"{field}.{error.path}" if error.path else field
        raise InvalidRequest(field.partition(".")[0], f"{path}: {error.reason}") from error
