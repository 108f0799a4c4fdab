import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_schema_judge import is_valid

from mocker_worker.server.errors import InvalidRequest, NotSupported
from mocker_worker.server.tool_calls import check_tools, choose_tool, wants_call

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def tool(name="weather", **function):
    return {"type": "function", "function": {"name": name, **function}}


def named(name):
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("tool_choice", "last_role", "wanted"),
    [
        (None, "user", True),
        ("auto", "user", True),
        ("auto", "tool", False),
        ("auto", "assistant", False),
        ("none", "user", False),
        ("required", "tool", True),
        (named("weather"), "tool", True),
    ],
)
def test_a_model_that_may_choose_calls_for_the_user_and_answers_a_result(
    tool_choice, last_role, wanted
):
    assert wants_call(tool_choice, last_role) is wanted


@settings(deadline=None)
@given(st.integers())
def test_the_arguments_are_compact_json_that_the_parameters_allow(seed):
    call = choose_tool([tool(parameters=PARAMETERS)], "auto", seed)

    arguments = json.loads(call.arguments)
    assert call.name == "weather"
    assert is_valid(PARAMETERS, arguments)
    assert call.arguments == json.dumps(arguments, separators=(",", ":"))
    assert call == choose_tool([tool(parameters=PARAMETERS)], "auto", seed)


def test_every_tool_is_called_by_some_seed():
    tools = [tool("one"), tool("two"), tool("three")]

    assert {choose_tool(tools, "required", s).name for s in range(40)} == {"one", "two", "three"}


def test_the_named_tool_is_called():
    tools = [tool("one"), tool("two", parameters={"properties": {"a": {"const": 1}}})]

    assert choose_tool(tools, named("two"), 0) == ("two", '{"a":1}')


@pytest.mark.parametrize("parameters", [{}, None, {"type": ["null", "object"]}])
def test_a_tool_without_parameters_gets_an_empty_object(parameters):
    assert choose_tool([tool(parameters=parameters)], None, 0).arguments == "{}"


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        ({}, "tools: "),
        ([], "tools: "),
        (["weather"], "tools[0]: "),
        ([{"function": {"name": "a"}}], "tools[0].type: "),
        ([tool(), {"type": "function"}], "tools[1].function: "),
        ([{"type": "function", "function": {}}], "tools[0].function.name: "),
        ([tool("")], "tools[0].function.name: "),
        ([tool(description=1)], "tools[0].function.description: "),
        ([tool(parameters=[])], "tools[0].function.parameters: "),
    ],
)
def test_a_malformed_tool_is_refused_with_its_place(tools, place):
    with pytest.raises(InvalidRequest) as caught:
        check_tools(tools)

    assert caught.value.param == "tools"
    assert caught.value.message.startswith(place)


@pytest.mark.parametrize(
    ("parameters", "place"),
    [
        ({"type": "string"}, "tools[0].function.parameters.type: "),
        (
            {"properties": {"a": {"type": "text"}}},
            "tools[0].function.parameters.properties.a.type: ",
        ),
        ({"minProperties": 2, "maxProperties": 1}, "tools[0].function.parameters: "),
    ],
)
def test_parameters_that_no_arguments_satisfy_are_refused_with_the_place(parameters, place):
    with pytest.raises(InvalidRequest) as caught:
        choose_tool([tool(parameters=parameters)], "auto", 0)

    assert caught.value.message.startswith(place)


def test_parameters_that_need_an_unsupported_keyword_are_answered_with_501():
    code = {"type": "string", "pattern": "^[A-Z]+$"}
    parameters = {"properties": {"code": code}, "required": ["code"]}

    with pytest.raises(NotSupported, match=r"tools\[0\].*parameters\.properties\.code\.pattern"):
        choose_tool([tool(parameters=parameters)], "auto", 0)


@pytest.mark.parametrize("tool_choice", ["any", 3, {}, {"type": "function"}, named(None)])
def test_another_tool_choice_is_refused(tool_choice):
    with pytest.raises(InvalidRequest, match="tool_choice"):
        wants_call(tool_choice, "user")
    with pytest.raises(InvalidRequest, match="tool_choice"):
        choose_tool([tool()], tool_choice, 0)


def test_a_named_tool_must_be_among_the_tools():
    with pytest.raises(InvalidRequest, match=r"tool_choice\.function\.name: 'other'"):
        choose_tool([tool()], named("other"), 0)


@pytest.mark.parametrize("kind", ["custom", "allowed_tools"])
def test_other_kinds_of_tools_are_answered_with_501(kind):
    with pytest.raises(NotSupported):
        wants_call({"type": kind}, "user")
    with pytest.raises(NotSupported):
        check_tools([{"type": "custom", "custom": {"name": "a"}}])
