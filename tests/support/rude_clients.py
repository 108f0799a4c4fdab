"""Clients that leave when they like: what a worker must survive and forget.

Each one sends a request over a socket of its own and then, by chance, reads the whole answer,
reads a part and leaves, or leaves at once; by closing, by a reset, or in the middle of its request.
"""

import asyncio
import json
import random
import socket
import struct
from collections import Counter

_LONGEST_WAIT_S = 60


class RudeClients:
    """So many clients at once, one request after the other."""

    def __init__(self, host: str, port: int, *, seed: int) -> None:
        self._address = host, port
        self._random = random.Random(seed)
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

    async def _request(self) -> str:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            return await self._converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return "cut off"
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        data, way = self._data(), self._random.random()
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
        status = (await reader.readline()).split()[1].decode()
        while await reader.read(65536):
            pass
        return f"answered {status}"

    def _leave(self, writer: asyncio.StreamWriter, outcome: str) -> str:
        if self._random.random() < 0.5:  # a reset in place of a goodbye
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return outcome

    def _data(self) -> bytes:
        draw = self._random
        body = {
            "prompt": [draw.randrange(1000) for _ in range(draw.choice((1, 20, 300)))],
            "max_tokens": draw.choice((1, 5, 50, 500)),
            "stream": draw.random() < 0.7,
        }
        for field, value in (
            ("n", 3),
            ("stop", " the"),
            ("logprobs", 2),
            ("echo", True),
            ("stop_token_ids", [150]),
        ):
            if draw.random() < 0.15:
                body[field] = value
        text = json.dumps(body).encode()
        return (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(text) + text
        )
