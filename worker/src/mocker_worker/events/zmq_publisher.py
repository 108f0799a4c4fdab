"""Publishes KV events on ZMQ as vLLM does: a PUB socket per rank, and a replay socket if wanted.

One event is one message, and its sequence is the event's number. Events are sent in the call that
hands them over: PUB never waits, a subscriber that is too slow loses messages by ZMQ's rules, and
sees the gap. What was sent before anybody subscribed is lost, too; a replay brings it back.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import zmq

from mocker_protocol.kv_events import AllBlocksCleared, KvCacheEvent
from mocker_protocol.zmq_events import encode_batch, encode_sequence
from mocker_worker.events.hub import NumberedEvent
from mocker_worker.events.zmq_address import Address
from mocker_worker.events.zmq_options import ZmqOptions, topic_of
from mocker_worker.events.zmq_replay import Replay

log = logging.getLogger(__name__)

_LINGER_MS = 500
_MAX_REQUEST_BYTES = 1024

Socket: TypeAlias = "zmq.Socket[bytes]"


class ZmqKvPublisher:
    """The ZMQ transport of one worker; a `KvTransport`."""

    name = "zmq"

    def __init__(
        self,
        options: ZmqOptions,
        *,
        dp_size: int,
        model_name: str,
        pod_name: str | None = None,
        pod_ip: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Open the sockets.

        Args:
            options: What the user wants.
            dp_size: Ranks of the worker.
            model_name: For topics.
            pod_name: For topics.
            pod_ip: For topics, and where others reach what is bound.
            port: Port of the HTTP server, for topics.

        Raises:
            ValueError: if the options do not fit the ranks, or a topic cannot be filled in.
            OSError: if a socket cannot be bound.
        """
        options.check_ranks(dp_size)
        names = {"model": model_name, "pod_name": pod_name, "pod_ip": pod_ip, "port": str(port)}
        topic = topic_of(options.topic, names)
        self.resynchronize: Callable[[int], None] | None = None
        """Tells a rank anew (`KvEventHub.resynchronize`) for who wants more than is kept."""
        self._is_running = False
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 2 * dp_size + 16)
        self._ranks: list[_Rank] = []
        try:
            for dp_rank in range(dp_size):
                rank = _Rank(self._context, options, dp_rank=dp_rank, topic=topic, pod_ip=pod_ip)
                self._ranks.append(rank)
        except BaseException:
            self.close()
            raise
        self.published_events = 0
        self.dropped_events = 0
        for source in self.sources():
            log.info("KV events of rank %(data_parallel_rank)d on ZMQ: %(endpoint)s", source)

    def publish(self, events: Sequence[NumberedEvent]) -> None:
        """Send events of one rank."""
        for dp_rank, event_id, event in events:
            if self._ranks[dp_rank].publish(event_id, event):
                self.published_events += 1
            else:
                self.dropped_events += 1

    async def run(self) -> None:
        """Answer replay requests until cancelled, then close."""
        self._is_running = True
        try:
            async with asyncio.TaskGroup() as tasks:
                for rank in self._ranks:
                    if rank.replay is not None:
                        replaying = rank.replay.run(partial(self._tell_anew, rank.dp_rank))
                        tasks.create_task(replaying, name=f"kv-replay-{rank.dp_rank}")
                await asyncio.Event().wait()
        finally:
            self._close_sockets()
            # It waits until subscribers have what was flushed, or the time for that is over.
            await asyncio.to_thread(self._context.term)

    async def flush(self, timeout_s: float) -> None:
        """Send no more, and leave what was sent to ZMQ for a moment.

        `run` ends when subscribers have it; where nothing runs, everything is closed at once.
        """
        linger_ms = min(_LINGER_MS, int(timeout_s * 1000))
        for rank in self._ranks:
            rank.events.close(linger_ms)
        if not self._is_running:
            self._close_sockets()
            await asyncio.to_thread(self._context.term)

    def close(self) -> None:
        """Close everything; for a publisher that does not run."""
        self._close_sockets()
        self._context.term()

    def sources(self) -> list[dict[str, object]]:
        """Say where each rank publishes: what vLLM answers to `GET /kv_event_sources`."""
        return [rank.source for rank in self._ranks]

    def _tell_anew(self, dp_rank: int) -> None:
        if self.resynchronize is not None:
            self.resynchronize(dp_rank)

    def _close_sockets(self) -> None:
        for rank in self._ranks:
            rank.close()


class _Rank:
    """Sockets and memory of one rank."""

    def __init__(
        self,
        context: "zmq.Context[Socket]",
        options: ZmqOptions,
        *,
        dp_rank: int,
        topic: str,
        pod_ip: str,
    ) -> None:
        self.dp_rank = dp_rank
        self.replay: Replay | None = None
        self._format = options.format
        self._topic = topic.encode()
        self._sockets: list[Socket] = []
        try:
            address = Address.parse(options.endpoint).for_rank(dp_rank)
            self.events, endpoint = self._open(context, zmq.PUB, address, hwm=options.hwm)
            replay_endpoint = self._open_replay(context, options)
        except BaseException:
            self.close()
            raise
        self.source: dict[str, object] = {
            "data_parallel_rank": dp_rank,
            "publisher": "zmq",
            "endpoint": str(endpoint.reachable(pod_ip)),
            "replay_endpoint": replay_endpoint and str(replay_endpoint.reachable(pod_ip)),
            "topic": topic,
            "buffer_steps": options.buffer_steps,
            "hwm": options.hwm,
        }

    def publish(self, event_id: int, event: KvCacheEvent) -> bool:
        """Send an event; False if the socket does not take it."""
        payload = encode_batch(
            [event],
            timestamp_s=time.time(),
            dp_rank=self.dp_rank,
            event_format=self._format,
        )
        if self.replay is not None:
            is_cleared = isinstance(event, AllBlocksCleared)
            self.replay.keep(event_id, payload, is_cleared=is_cleared)
        try:
            self.events.send_multipart(
                [self._topic, encode_sequence(event_id), payload], zmq.NOBLOCK
            )
        except zmq.ZMQError as error:
            log.debug("KV event %d of rank %d is lost: %s", event_id, self.dp_rank, error)
            return False
        return True

    def close(self) -> None:
        """Close the sockets at once."""
        for socket in self._sockets:
            socket.close(0)

    def _open_replay(self, context: "zmq.Context[Socket]", options: ZmqOptions) -> Address | None:
        if options.replay_endpoint is None:
            return None
        address = Address.parse(options.replay_endpoint).for_rank(self.dp_rank)
        # A whole replay, and its end, find a place in the queue of a client.
        hwm = options.buffer_steps + 1
        socket, endpoint = self._open(context, zmq.ROUTER, address, hwm=hwm)
        self.replay = Replay(socket, topic=self._topic, buffer_steps=options.buffer_steps)
        return endpoint

    def _open(
        self, context: "zmq.Context[Socket]", kind: int, address: Address, *, hwm: int
    ) -> tuple[Socket, Address]:
        """Open a socket; return it and where it is, with the port that it got."""
        socket = context.socket(kind)
        self._sockets.append(socket)
        if kind == zmq.ROUTER:
            socket.set(zmq.MAXMSGSIZE, _MAX_REQUEST_BYTES)
        socket.set(zmq.SNDHWM, hwm)
        socket.set(zmq.IPV6, address.is_ipv6)
        try:
            if kind == zmq.PUB and not address.is_bound:
                socket.connect(str(address))
                return socket, address
            socket.bind(str(address))
        except zmq.ZMQError as error:
            raise OSError(
                error.errno, f"KV events: cannot use {address}: {error.strerror}; choose another"
            ) from error
        return socket, Address.parse(socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0"))
