"""Clients that leave when they like: what a worker must survive and forget.

Each one sends a request of any kind over a socket of its own and then, by chance, reads the whole
answer, reads a part and leaves, or leaves at once; by closing, by a reset, or in the middle of its
request. Polite ones read all, look at it, and add up what they were given.
"""

import asyncio
import json
import random
import socket
import struct
from collections import Counter

from request_kinds import KindOfRequest, RequestKinds

_LONGEST_WAIT_S = 60


class Given:
    """What clients were answered, in the engine's terms."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        """Answers by `finished_reason`."""
        self.prompts = 0
        self.prompt_tokens = 0
        """Those of a prompt as often as it was answered."""
        self.generation_tokens = 0

    def add(self, request: KindOfRequest, answer: bytes) -> None:
        """Take one answer, a stream or not."""
        documents = list(map(json.loads, _documents(answer)))
        usage = documents[-1]["usage"]
        reasons: dict[int, str] = {}
        for document in documents:
            for choice in document["choices"]:
                if (reason := choice["finish_reason"]) is not None:
                    assert choice["index"] not in reasons, "a choice ended twice"
                    reasons[choice["index"]] = "stop" if reason == "tool_calls" else reason
        n = request.body.get("n", 1)
        is_silent = request.body["max_tokens"] == 0  # the engine makes one token nevertheless
        self.reasons.update(reasons.values())
        self.prompts += len(reasons) // n
        self.prompt_tokens += usage["prompt_tokens"] * n
        self.generation_tokens += usage["completion_tokens"] + is_silent * len(reasons)


class RudeClients:
    """So many clients at once, one request after the other."""

    def __init__(
        self, host: str, port: int, *, seed: int, role: str = "aggregated", ranks: int = 1
    ) -> None:
        self._address = host, port
        self._random = random.Random(seed)
        self._kinds = RequestKinds(self._random, role=role, ranks=ranks)
        self._is_polite = False
        self.outcomes: Counter[str] = Counter()
        """How requests ended, in the client's view."""

    async def run(self, clients: int, *, requests: int = 0, until_s: float = 0.0) -> None:
        """Send `requests` in all, or go on until a time of the loop's clock."""
        loop = asyncio.get_running_loop()
        left = [requests]

        async def one() -> None:
            while left[0] > 0 if requests else loop.time() < until_s:
                left[0] -= 1
                async with asyncio.timeout(_LONGEST_WAIT_S):
                    self.outcomes[await self._request()] += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(one())

    async def behave(self, clients: int, *, requests: int) -> Given:
        """Send requests, read every answer to its end and check that it is what it should be."""
        given, left = Given(), [requests]

        async def one() -> None:
            while left[0] > 0:
                left[0] -= 1
                async with asyncio.timeout(_LONGEST_WAIT_S):
                    await self._ask(given)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(one())
        return given

    async def _ask(self, given: Given) -> None:
        request = self._kinds.draw(may_break=False)
        if request.body.get("stream"):
            request.body["stream_options"] = {"include_usage": True}
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(request.data)
        head, body = await _response(reader)
        writer.close()
        status = int(head.split()[1])
        assert status == request.status, (status, request, body[:500])
        self.outcomes[f"answered {status}"] += 1
        if status == 200:
            given.add(request, body)

    async def _request(self) -> str:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            return await self._converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return "cut off"
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        request, way = self._kinds.draw(may_break=True), self._random.random()
        data = request.data
        if way < 0.05:
            writer.write(data[: self._random.randrange(1, len(data))])
            await writer.drain()
            return "left before the request was whole"
        writer.write(data)
        await writer.drain()
        if way < 0.2:
            return self._leave(writer, "left at once")
        if way < 0.6:
            await reader.read(self._random.choice((1, 200, 2000, 20_000)))
            return self._leave(writer, "left in the middle")
        head, _ = await _response(reader)
        if request.breaks:
            return "broken off" if head else "cut off"
        status = int(head.split()[1])
        assert status == request.status, (status, request)
        return f"answered {status}"

    def _leave(self, writer: asyncio.StreamWriter, outcome: str) -> str:
        if self._random.random() < 0.5:  # a reset in place of a goodbye
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return outcome


async def _response(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return head and body of the one response on a connection; empty if it is cut."""
    parts = []
    while part := await reader.read(65536):
        parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = _unchunked(body)
    return head, body


def _unchunked(data: bytes) -> bytes:
    parts, at = [], 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end], 16)
        parts.append(data[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(parts)


def _documents(answer: bytes) -> list[bytes]:
    """Return the JSON documents of an answer: one, or those of its events."""
    if not answer.startswith(b"data:"):
        return [answer]
    *events, done, rest = answer.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b""), answer[-200:]
    return [event.removeprefix(b"data: ") for event in events]
