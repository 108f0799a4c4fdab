"""Recovery queries as Dynamo's router sends them on its TCP request plane."""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from waiting import PATIENCE_S

_HEAD = struct.Struct(">QQQ")


def request_of(path: bytes, body: bytes) -> bytes:
    """Return a request as it is sent."""
    headers = b'{"request-id":"r1"}'
    parts = (struct.pack(">H", len(part)) + part for part in (path, headers))
    return b"".join(parts) + struct.pack(">I", len(body)) + body


def info_of(address: str, subject: str = "subject-1") -> dict[str, Any]:
    """Return where an answer should go."""
    info = {"address": address, "subject": subject, "context": "r1", "stream_type": "response"}
    return {"transport": "tcp_server", "info": json.dumps(info)}


def body_of(
    query: object = None,
    *,
    connection: object = None,
    payload_codec: str = "msgpack",
    control: bytes | None = None,
    data: bytes | None = None,
) -> bytes:
    """Return a query with its frame; what is not given is good."""
    said = {
        "id": "r1",
        "request_type": "single_in",
        "response_type": "many_out",
        "payload_codec": payload_codec,
        "connection_info": connection or info_of("127.0.0.1:4711"),
    }
    control = json.dumps(said).encode() if control is None else control
    if data is None:
        good = {"worker_id": 7, "dp_rank": 0, "start_event_id": None, "end_event_id": None}
        data = msgspec.msgpack.encode(
            {**good, "supports_tree_dump_failed": True, "kind": "recovery"}
            if query is None
            else query
        )
    return _HEAD.pack(len(control), len(data), 0) + control + data


class Answers:
    """Where a router is answered: the whole of each answer by its subject."""

    def __init__(self) -> None:
        self.address = ""
        self._arrived: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    @classmethod
    @contextlib.asynccontextmanager
    async def listening(cls) -> AsyncIterator["Answers"]:
        """Listen on a free port."""
        answers = cls()
        server = await asyncio.start_server(answers._take, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        answers.address = f"{host}:{port}"
        try:
            yield answers
        finally:
            server.close()

    async def next(self) -> tuple[str, Any]:
        """Return subject and answer of the next query that was answered."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._arrived.get()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello, ready, answer, end, sentinel = [await _frame(reader) for _ in range(5)]
        assert ready == (b'{"error":null}', b"")
        assert msgspec.msgpack.decode(end[1]) == {"complete_final": True}
        assert sentinel == (b'"sentinel"', b"")
        assert await reader.read() == b""
        writer.close()
        said = msgspec.msgpack.decode(answer[1])
        assert said["complete_final"] is False
        self._arrived.put_nowait((json.loads(hello[0])["subject"], said["data"]))


async def _frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    num_control, num_data, _ = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    return await reader.readexactly(num_control), await reader.readexactly(num_data)
