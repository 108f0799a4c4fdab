import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_worker.server.admin import AdminChange
from mocker_worker.server.bodies import decode_body
from mocker_worker.server.errors import ApiError, InvalidRequest, error_body
from mocker_worker.server.requests import ChatRequest, CompletionRequest
from mocker_worker.server.tokenization import DetokenizeRequest, TokenizeRequest

BODIES = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest, AdminChange)
DECODERS = [msgspec.json.Decoder(body) for body in BODIES]
FIELDS = sorted({name for body in BODIES for name in body.__struct_fields__} | {"role", "content"})

any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)


def refusal(decoder, body):
    """Return the error that a body gets; None if it is taken."""
    try:
        request = decode_body(decoder, body)
        if isinstance(request, ChatRequest | CompletionRequest):
            request.check()
    except ApiError as error:
        return error
    return None


def decoded(body):
    """Decode a body as each kind; nothing but an error of the API may come out of it."""
    for decoder in DECODERS:
        error = refusal(decoder, body)
        assert error is None or error.status in (400, 501)
        assert error is None or json.loads(error_body(error))["error"]["message"]


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data):
    decoded(data)


@given(any_json)
def test_any_json_is_decoded_or_refused(value):
    decoded(json.dumps(value).encode())


@given(any_json, st.data())
def test_damaged_json_is_decoded_or_refused(value, data):
    body = bytearray(json.dumps(value).encode())
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] = data.draw(st.integers(0, 255))

    decoded(bytes(body))


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "a", "n": "x"}, "n", "n: Expected `int | null`, got `str`"),
        ({"prompt": "a", "stream_options": {"include_usage": 1}}, "stream_options", "bool"),
        ({"n": 1}, "prompt", "prompt: Object missing required field"),
        ([], None, "Expected `object`, got `array`"),
    ],
)
def test_the_field_that_is_wrong_is_named(body, param, words):
    with pytest.raises(InvalidRequest) as caught:
        decode_body(msgspec.json.Decoder(CompletionRequest), json.dumps(body).encode())

    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"max_tokens": 4.0}, {"max_tokens": 4}),
        ({"max_tokens": 4e2, "n": 2.0, "seed": -3.0}, {"max_tokens": 400, "n": 2, "seed": -3}),
        ({"stop_token_ids": [1.0, 2]}, {"stop_token_ids": [1, 2]}),
        ({"prompt": [1.0, 2, 3.0]}, {"prompt": [1, 2, 3]}),
        ({"n": 2.0, "seed": -0.0, "other": 10**400}, {"n": 2, "seed": 0}),
        ({"prompt": [[1.0], [2]]}, {"prompt": [[1], [2]]}),
        ({"max_tokens": 4.0, "temperature": 1.0}, {"max_tokens": 4, "temperature": 1.0}),
        (
            {"max_tokens": 4.0, "kv_transfer_params": {"a": 1.0}},
            {"max_tokens": 4, "kv_transfer_params": {"a": 1.0}},
        ),
    ],
)
def test_an_integral_float_is_an_integer(given, taken):
    decoder = msgspec.json.Decoder(CompletionRequest)
    request = decode_body(decoder, json.dumps({"prompt": "a", **given}).encode())
    expected = decode_body(decoder, json.dumps({"prompt": "a", **taken}).encode())
    assert repr(request) == repr(expected)


@pytest.mark.parametrize(
    ("rest", "param"),
    [
        (b", broken", None),
        (b"}}", None),
        (b',"model":"\xff"}', None),
        (b',"other":"\\ud800"}', None),
        (b',"seed":1e400}', "seed"),
        (b',"stop_token_ids":[1.0,1e400]}', "stop_token_ids"),
    ],
    ids=["syntax", "trailing", "no UTF-8", "half a character", "range", "range in a list"],
)
def test_what_is_wrong_behind_an_integral_float_is_refused(rest, param):
    with pytest.raises(InvalidRequest) as refused:
        decode_body(msgspec.json.Decoder(CompletionRequest), b'{"prompt":"a","n":1.0' + rest)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({"max_tokens": 4.5}, "max_tokens", "Expected `int | null`, got `float`"),
        ({"max_tokens": 4.0, "n": 1.5}, "n", "Expected `int | null`, got `float`"),
        ({"max_tokens": -1.0}, "max_tokens", "Expected `int` >= 0"),
        ({"max_tokens": 1e30}, "max_tokens", "Expected `int` <= "),
        ({"max_tokens": 4.0, "seed": "x"}, "seed", "Expected `int | null`, got `str`"),
        ({"logprobs": 21.0}, "logprobs", "Expected `int` <= 20"),
        ({"prompt": [1.0, 2.5]}, "prompt", "got `float`"),
        ({"prompt": 1.0}, "prompt", "Expected `str | array`, got `float`"),
        ({"stream": 1.0}, "stream", "got `float`"),
    ],
)
def test_other_floats_are_no_integers(given, field, reason):
    body = json.dumps({"prompt": "a", **given}).encode()
    with pytest.raises(InvalidRequest, match=f"^{field}.*: ") as refused:
        decode_body(msgspec.json.Decoder(CompletionRequest), body)
    assert refused.value.param == field
    assert reason in str(refused.value)
