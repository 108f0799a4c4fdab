"""Sends past messages again to whoever asks for them: vLLM's replay socket.

A client sends an empty frame and a sequence. It gets every message kept from that one on, in the
frames of a live message behind an empty one, then an end marker. A client that wants more than is
kept gets what makes it right, which vLLM does not have: everything from the latest `cleared` on,
and if that is not kept either, the rank is told anew. Nobody waits for a client that does not
read: what finds no place in its queue is lost to it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import zmq

from mocker_protocol.zmq_events import END_OF_REPLAY, decode_replay_request, encode_sequence

log = logging.getLogger(__name__)

MAX_KEPT_BYTES = 32 * 2**20
"""Payloads of one rank: 10,000 messages with the tokens of long prompts would be a gigabyte."""
_MESSAGES_AT_ONCE = 64
"""Sent before the loop turns: about a millisecond."""


class Replay:
    """The latest messages of one rank, and the socket that replays them."""

    def __init__(self, socket: "zmq.Socket[bytes]", *, topic: bytes, buffer_steps: int) -> None:
        """Take a bound ROUTER socket."""
        self._socket = socket
        self._topic = topic
        self._buffer_steps = buffer_steps
        self._messages: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._latest_cleared = -1
        self._latest_told_anew = -1
        """The last message of the latest snapshot that a client made necessary."""

    def keep(self, sequence: int, payload: bytes, *, is_cleared: bool) -> None:
        """Add a message; the oldest ones go when there are too many."""
        self._messages.append((sequence, payload))
        self._kept_bytes += len(payload)
        if is_cleared:
            self._latest_cleared = sequence
        while len(self._messages) > self._buffer_steps or self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= len(self._messages.popleft()[1])

    async def run(self, tell_anew: Callable[[], None]) -> None:
        """Answer clients until cancelled.

        Args:
            tell_anew: Publishes `cleared` and what is cached, if it can.
        """
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        # ZMQ signals what arrives only once, so that after it everything must be taken.
        descriptor = self._socket.fileno()
        loop.add_reader(descriptor, asked.set)
        try:
            while True:
                await self._answer_all(tell_anew)
                await asked.wait()
                asked.clear()
        finally:
            loop.remove_reader(descriptor)

    async def _answer_all(self, tell_anew: Callable[[], None]) -> None:
        while True:
            try:
                identity, *request = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                start = decode_replay_request(request)
            except ValueError as error:
                log.debug("replay: %s", error)
            else:
                if self._must_tell_anew(start):
                    tell_anew()
                    self._latest_told_anew = self._messages[-1][0] if self._messages else start
                await self._answer(identity, start)
            await asyncio.sleep(0)

    def _must_tell_anew(self, start: int) -> bool:
        """Whether a client lacks what only a snapshot can give; one that cannot be kept is rare."""
        first = self._first()
        return start < first and max(self._latest_cleared, self._latest_told_anew) < first

    async def _answer(self, identity: bytes, start: int) -> None:
        if start < self._first():
            start = max(start, self._latest_cleared)
        kept = [message for message in self._messages if message[0] >= start]
        log.debug("replay: %d messages from %d on", len(kept), start)
        for number, (sequence, payload) in enumerate(kept, 1):
            self._send(identity, self._topic, encode_sequence(sequence), payload)
            if number % _MESSAGES_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._send(identity, b"", END_OF_REPLAY, b"")

    def _first(self) -> int:
        """Return the oldest sequence that is kept."""
        return self._messages[0][0] if self._messages else 0

    def _send(self, *frames: bytes) -> None:
        identity, *message = frames
        try:
            self._socket.send_multipart([identity, b"", *message], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.debug("replay: a message is lost: %s", error)
