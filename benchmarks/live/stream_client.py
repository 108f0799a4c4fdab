"""A cheap client for many streams: raw HTTP/1.1 over asyncio's protocols, counting events only.

It shares two cores with the server that is measured, so it parses nothing. A connection sends its
next request when the answer's last chunk has come; with `fresh` each request has its own. An answer
that is refused, cut off or without what is expected near its end has failed, and is not repeated.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

_WORDS = "the of and to in is was for on that by with as are at from his it an were".split()
_END = b"0\r\n\r\n"
_TAIL_BYTES = 16
_TAIL_WITH_USAGE_BYTES = 700


@dataclass
class Tally:
    """What the streams brought."""

    events: int = 0
    answers: int = 0
    wall_s: float = 0.0
    arrivals_s: dict[int, list[float]] = field(default_factory=dict)
    """By connection: when data with events came; filled if they are to be kept."""
    failures: Counter[str] = field(default_factory=Counter)
    """How many answers failed, by what was seen."""


def chat_body(number: int, words: int, max_tokens: int) -> bytes:
    """Return a chat whose prompt is `words` built-in tokens, and other ones for each number."""
    text = "".join(f" {_WORDS[(number * 7 + k * k + k * number) % 20]}" for k in range(words))
    body = {"stream": True, "max_tokens": max_tokens}
    return json.dumps(body | {"messages": [{"role": "user", "content": text}]}).encode()


class _Streams(asyncio.Protocol):
    def __init__(self, load: "Load") -> None:
        self._load = load
        self._tail = b""
        self._tail_bytes = _TAIL_WITH_USAGE_BYTES if load.expects else _TAIL_BYTES
        self._number = -1
        self._is_asked = self._is_begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._next()

    def _next(self) -> None:
        request = self._load.next_request()
        if request is None:
            self._transport.close()
            return
        self._number, data = request
        self._tail = b""
        self._is_asked, self._is_begun = True, False
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if not self._is_asked:  # what follows the head of a refusal
            return
        if not self._is_begun:
            self._is_begun = True
            if data[8:13] != b" 200 ":
                self._give_up(data.partition(b"\r\n")[0].decode(errors="replace"))
                return
        self._load.received(self._number, data.count(b"data: "))
        self._tail = (self._tail + data)[-self._tail_bytes :]
        if self._tail.endswith(_END):
            self._is_asked = False
            self._load.answered(self._tail)
            if self._load.is_fresh:
                self._transport.close()
                self._load.reconnect()
            else:
                self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_asked:
            self._give_up(f"the connection was lost ({exc or 'closed by the server'})")

    def _give_up(self, reason: str) -> None:
        self._is_asked = False
        self._transport.close()
        self._load.failed(reason)
        self._load.reconnect()


class Load:
    """A closed loop: so many connections, each with one request at a time."""

    expects = b""
    """What an answer must have in its last bytes."""

    def __init__(
        self,
        port: int,
        body: Callable[[int], bytes],
        *,
        connections: int,
        requests: int,
        is_fresh: bool = False,
        keeps_times: bool = False,
    ) -> None:
        self.is_fresh = is_fresh
        self._port = port
        self._body = body
        self._connections = connections
        self._left = requests
        self._sent = 0
        self._total = requests
        self._keeps_times = keeps_times
        self._tally = Tally()

    async def run(self) -> Tally:
        """Send everything and wait for the answers."""
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        self._opening: set[asyncio.Task[None]] = set()
        began_s = time.perf_counter()
        for _ in range(self._connections):
            await self._connect()
        await self._done
        self._tally.wall_s = time.perf_counter() - began_s
        return self._tally

    def next_request(self) -> tuple[int, bytes] | None:
        """Return the next request's number and bytes."""
        if self._left <= 0:
            return None
        self._left -= 1
        self._sent += 1
        body = self._body(self._sent)
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        return self._sent, head + body

    def received(self, number: int, events: int) -> None:
        """Count events of a request."""
        self._tally.events += events
        if self._keeps_times and events:
            times = self._tally.arrivals_s.setdefault(number, [])
            times.extend([time.perf_counter()] * events)

    def answered(self, tail: bytes) -> None:
        """Count an answer, of which these are the last bytes."""
        if self.expects in tail:
            self._tally.answers += 1
            self._look_at_end()
        else:
            self.failed(f"without {self.expects.decode()}")

    def failed(self, reason: str) -> None:
        """Count an answer that is none."""
        self._tally.failures[reason] += 1
        self._look_at_end()

    def _look_at_end(self) -> None:
        ended = self._tally.answers + self._tally.failures.total()
        if ended == self._total and not self._done.done():
            self._done.set_result(None)

    def reconnect(self) -> None:
        """Open a connection in place of one that is closed."""
        if self._left > 0:
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Streams(self), "127.0.0.1", self._port)
        except OSError as error:
            if self.next_request() is not None:
                self.failed(f"no connection ({error.strerror})")
                self.reconnect()
