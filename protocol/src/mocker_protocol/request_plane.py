"""Dynamo 1.6's request plane over TCP, as far as the recovery query of its KV router goes.

A router that starts late, or misses events, asks the source of a rank's KV events for what it has
cached. Requests come on connections that the router keeps; each is acknowledged there and answered
on a connection to the address that it names. All integers are big-endian. Whatever comes from
outside is bounded before it is kept or parsed.
"""

import struct
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import NamedTuple

import msgspec

from mocker_protocol.json_nesting import check_nesting
from mocker_protocol.msgpack_nesting import check_msgpack_nesting
from mocker_protocol.names import KV_QUERY_ENDPOINT_PREFIX

MAX_REQUEST_BYTES = 64 * 1024
"""Of the body of a request, which has some 600 bytes; its path and headers are bounded by form."""
ACKNOWLEDGEMENT = bytes(4)

_CODEC = "msgpack"
_TRANSPORT = "tcp_server"
_RECOVERY = "recovery"
_PUBLISHER_DIGITS = 16
_FRAME_HEAD = struct.Struct(">QQQ")
"""Bytes of the control part, bytes of the data part, and a checksum, or 0 for none."""
_SHORT, _LONG = struct.Struct(">H"), struct.Struct(">I")


class RequestError(ValueError):
    """Bytes that are no recovery query."""


class PlaneRequest(NamedTuple):
    """One request as it was cut from the stream."""

    path: bytes
    """`<instance id in hex>/<namespace>/<component>/<endpoint>`."""
    body: bytes


class RecoveryQuery(msgspec.Struct, frozen=True):
    """What a router wants to know."""

    worker_id: int
    dp_rank: int
    start_event_id: int | None = None
    """First event that it misses; None if it knows nothing yet."""
    end_event_id: int | None = None
    kind: object = _RECOVERY

    @property
    def is_recovery(self) -> bool:
        """Whether it asks for events, and not for the state of an agent that no worker has."""
        return self.kind == _RECOVERY


class ReturnAddress(NamedTuple):
    """Where an answer goes."""

    host: str
    """An IP address, never a name."""
    port: int
    subject: str
    """Tells the receiver which request is answered."""


class _Connection(msgspec.Struct, frozen=True):
    transport: str
    info: str


class _Control(msgspec.Struct, frozen=True):
    connection_info: _Connection
    payload_codec: str


class _Info(msgspec.Struct, frozen=True):
    address: str
    subject: str


_controls = msgspec.json.Decoder(_Control)
_infos = msgspec.json.Decoder(_Info)
_queries = msgspec.msgpack.Decoder(RecoveryQuery)
_encoder = msgspec.msgpack.Encoder()


class RequestCutter:
    """Cuts the bytes of a connection into requests; holds at most one that is not complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_within_request(self) -> bool:
        """Whether a request has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[PlaneRequest]:
        """Take the next bytes; returns the requests that they complete.

        Raises:
            RequestError: if a request is longer than any query; nothing can be cut after that.
        """
        self._buffer += data
        requests = []
        position = 0
        while (cut := self._cut(position)) is not None:
            request, position = cut
            requests.append(request)
        del self._buffer[:position]
        return requests

    def _cut(self, start: int) -> tuple[PlaneRequest, int] | None:
        """Return the request that begins there, and where it ends."""
        path = self._part(start, _SHORT)
        headers = None if path is None else self._part(path[1], _SHORT)
        body = None if headers is None else self._part(headers[1], _LONG)
        if path is None or body is None:
            return None
        request = PlaneRequest(*(bytes(self._buffer[slice(*part)]) for part in (path, body)))
        return request, body[1]

    def _part(self, start: int, form: struct.Struct) -> tuple[int, int] | None:
        """Return where the part lies whose length stands at `start`."""
        begin = start + form.size
        if len(self._buffer) < begin:
            return None
        (length,) = form.unpack_from(self._buffer, start)
        if length > MAX_REQUEST_BYTES:
            raise RequestError(f"a request of {length} bytes: {MAX_REQUEST_BYTES} is the most")
        return None if len(self._buffer) < begin + length else (begin, begin + length)


def publisher_of(path: bytes) -> int:
    """Return the publisher id in the path of a request.

    Raises:
        RequestError: if it is the path of another endpoint.
    """
    endpoint = path.decode("utf-8", "replace").rpartition("/")[2]
    name, prefix, digits = endpoint.rpartition(KV_QUERY_ENDPOINT_PREFIX)
    if name or not prefix or not digits.isalnum() or len(digits) > _PUBLISHER_DIGITS:
        raise RequestError(f"only KV recovery is served here, not {endpoint[:80]!r}")
    try:
        return int(digits, 16)
    except ValueError:
        raise RequestError(f"{digits!r} is no publisher id") from None


def decode_query(body: bytes) -> tuple[RecoveryQuery, ReturnAddress]:
    """Open the body of a request.

    Raises:
        ValueError: if it is no query, or names no place for the answer.
    """
    control, data = _split(body)
    check_nesting(control)
    said = _controls.decode(control)
    if said.payload_codec != _CODEC:
        raise RequestError(f"payload_codec: {said.payload_codec[:40]!r} is not {_CODEC}")
    if said.connection_info.transport != _TRANSPORT:
        raise RequestError(f"transport: {said.connection_info.transport[:40]!r} is not tcp_server")
    address = _return_address(said.connection_info.info.encode("utf-8", "surrogatepass"))
    check_msgpack_nesting(data)
    return _queries.decode(data), address


def encode_answer(subject: str, answer: bytes) -> Iterator[bytes]:
    """Yield the frames of a whole answer, in order, from what one of the functions below gave."""
    hello = msgspec.json.encode({"subject": subject, "stream_type": "response"})
    yield encode_frame(control=hello)
    yield encode_frame(control=b'{"error":null}')
    yield encode_frame(data=answer)
    yield encode_frame(data=_encoder.encode({"complete_final": True}))
    yield encode_frame(control=b'"sentinel"')


def encode_frame(*, control: bytes = b"", data: bytes = b"") -> bytes:
    """Return a frame of two parts, without a checksum."""
    return _FRAME_HEAD.pack(len(control), len(data), 0) + control + data


def encode_tree_dump(events: Sequence[bytes], last_event_id: int) -> bytes:
    """Return the answer that begins a rank anew.

    Args:
        events: RouterEvents that build all that is cached from nothing, parents first.
        last_event_id: Of the newest event that is part of it.
    """
    return _answer(
        "TreeDump",
        {
            "events": [msgspec.Raw(event) for event in events],
            "last_event_id": last_event_id,
            "reset_scope": "all",
        },
    )


def encode_too_new(query: RecoveryQuery, newest_event_id: int) -> bytes:
    """Return the answer to who asks for events that are still to come."""
    return _answer(
        "TooNew",
        {
            "requested_start": query.start_event_id,
            "requested_end": query.end_event_id,
            "newest_available": newest_event_id,
        },
    )


def encode_error(message: str) -> bytes:
    """Return the answer to a query that has none."""
    return _answer("Error", message)


def _answer(kind: str, content: object) -> bytes:
    return _encoder.encode({"data": {kind: content}, "complete_final": False})


def _split(body: bytes) -> tuple[bytes, bytes]:
    """Cut a frame that stands alone into its control and data parts."""
    if len(body) < _FRAME_HEAD.size:
        raise RequestError("the body has no head")
    num_control, num_data, _ = _FRAME_HEAD.unpack_from(body)
    if _FRAME_HEAD.size + num_control + num_data != len(body):
        raise RequestError("the lengths of the parts are not that of the body")
    data_start = _FRAME_HEAD.size + num_control
    return body[_FRAME_HEAD.size : data_start], body[data_start:]


def _return_address(info: bytes) -> ReturnAddress:
    check_nesting(info)
    said = _infos.decode(info)
    host, _, port = said.address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    ip_address(host)
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if not 0 < number < 2**16:
        raise RequestError(f"address: {said.address[:80]!r} has no port")
    return ReturnAddress(host, number, said.subject)
