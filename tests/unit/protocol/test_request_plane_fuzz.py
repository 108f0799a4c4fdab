"""Whatever comes over the request plane, its decoders raise nothing but a ValueError."""

import json
from contextlib import suppress

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from nested_values import nested
from request_plane_client import body_of, info_of, request_of

from mocker_protocol.request_plane import (
    MAX_REQUEST_BYTES,
    RequestCutter,
    decode_query,
    encode_answer,
    encode_error,
    publisher_of,
)

PATH = b"abc/dynamo/backend/worker_kv_query_source_1f"
GOOD = request_of(PATH, body_of())
NAMES = st.sampled_from(
    "worker_id dp_rank start_event_id end_event_id kind connection_info transport info address "
    "subject payload_codec id".split()
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["tcp_server", "msgpack", "127.0.0.1:80", "{}"])
)
VALUES = nested(SCALARS, NAMES)


def take(stream, cuts=()):
    """Do with a stream what the server does, in pieces that end where `cuts` say."""
    cutter = RequestCutter()
    with suppress(ValueError):
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            for request in cutter.feed(stream[start:end]):
                publisher_of(request.path)
                query, address = decode_query(request.body)
                assert 0 < address.port < 2**16
                assert isinstance(query.is_recovery, bool)
                b"".join(encode_answer(address.subject, encode_error("no")))


def test_a_good_request_is_taken():
    (request,) = RequestCutter().feed(GOOD)
    assert publisher_of(request.path) == 0x1F
    decode_query(request.body)


@given(st.binary(max_size=200))
def test_noise(stream):
    take(stream)
    with suppress(ValueError):
        publisher_of(stream)
    with suppress(ValueError):
        decode_query(stream)


@given(st.data())
def test_good_requests_with_broken_bytes(data):
    broken = bytearray(GOOD * 2)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cuts = data.draw(st.lists(st.integers(0, len(broken)), max_size=5))
    take(bytes(broken), sorted(cuts))


@given(st.lists(st.binary(max_size=30), max_size=6), st.data())
def test_requests_are_the_same_wherever_the_bytes_are_cut(bodies, data):
    stream = b"".join(request_of(PATH, body) for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    cutter, found = RequestCutter(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += cutter.feed(stream[start:end])
    assert [request.body for request in found] == bodies
    assert not cutter.is_within_request


@given(VALUES, VALUES, VALUES)
def test_parts_of_another_shape(control, info, query):
    connection = {"transport": "tcp_server", "info": json.dumps(info)}
    data = msgspec.msgpack.encode(query)
    take(request_of(PATH, body_of(control=json.dumps(control).encode(), data=data)))
    take(request_of(PATH, body_of(connection=connection, data=data)))
    take(request_of(PATH, body_of(data=data)))


@given(st.text(max_size=30), st.text(st.characters(), max_size=10))
def test_addresses_and_subjects(address, subject):
    for place in (address, f"127.0.0.1:{address}", f"[{address}]:1"):
        take(request_of(PATH, body_of(connection=info_of(place, subject))))


def test_parts_that_are_nested_too_deep():
    size = MAX_REQUEST_BYTES // 2
    info = {"transport": "tcp_server", "info": "[" * size}
    for body in (
        body_of(control=b"[" * size),
        body_of(control=b'{"a":' * (size // 5)),
        body_of(connection=info),
        body_of(data=b"\x91" * size),
        body_of(data=b"\x81\xa4kind" * (size // 6)),
    ):
        with suppress(ValueError):
            decode_query(body)


def test_a_subject_that_is_no_text_is_refused_or_answered():
    info = {"transport": "tcp_server", "info": '{"address":"127.0.0.1:1","subject":"\\ud800"}'}
    take(request_of(PATH, body_of(connection=info)))
