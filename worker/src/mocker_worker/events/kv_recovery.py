"""Tells Dynamo's KV routers that start late, or missed events, what the ranks have cached.

One server for all ranks, on the TCP request plane of Dynamo 1.6. A dump and the live events fit
together by number: a router drops live events that the dump has already, and applies those after
it, which it holds back until then. No peer can hold more than its share: connections, queries, the
time for each, and answers in memory are bounded.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence

from mocker_protocol.event_plane import MAX_BLOCKS, encode_single_router_event
from mocker_protocol.kv_events import KvCacheEvent, count_blocks
from mocker_protocol.request_plane import (
    ACKNOWLEDGEMENT,
    PlaneRequest,
    RecoveryQuery,
    RequestCutter,
    ReturnAddress,
    decode_query,
    encode_answer,
    encode_error,
    encode_too_new,
    encode_tree_dump,
    publisher_of,
)
from mocker_worker.events.hub import CacheDump

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
MAX_QUERIES = 64
"""Queries that are being answered or wait for it."""
MAX_ANSWERS = 4
"""Answers at a time: a dump has some 80 bytes per cached block."""
_READ_BYTES = 64 * 1024
_REQUEST_TIMEOUT_S = 10.0
"""For the rest of a request that has begun; between requests a router may be silent for ever."""
_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 30.0
"""For a whole answer, the wait for its turn included."""
_CLOSE_TIMEOUT_S = 2.0
_KEEP_IDLE_S = 60
"""Silence after which the kernel asks whether a peer is there."""


class KvRecoveryServer:
    """Answers the recovery queries about one worker."""

    def __init__(
        self, dump: Callable[[int], CacheDump], *, worker_id: int, publisher_ids: Sequence[int]
    ) -> None:
        """Say what is served.

        Args:
            dump: Gives what a rank has cached.
            worker_id: Whose ranks they are.
            publisher_ids: Who publishes the KV events of each rank.
        """
        self._dump = dump
        self._worker_id = worker_id
        self._ranks = {publisher_id: rank for rank, publisher_id in enumerate(publisher_ids)}
        self._server: asyncio.Server | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._num_connections = 0
        self._num_queries = 0
        self._turns = asyncio.Semaphore(MAX_ANSWERS)

    async def listen(self, host: str, port: int = 0) -> int:
        """Bind; returns the port. Connections wait until `run`.

        Raises:
            OSError: if the address cannot be bound.
        """
        self._server = await asyncio.start_server(
            self._accept, host, port, limit=_READ_BYTES, start_serving=False
        )
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def run(self) -> None:
        """Serve until cancelled."""
        if self._server is None:
            raise RuntimeError("listen first")
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await self._server.start_serving()
                await asyncio.Event().wait()
            finally:
                self._tasks = None
                self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _peer(writer)
        if self._tasks is None or self._num_connections >= MAX_CONNECTIONS:
            log.warning("%s: more than %d connections for KV recovery", peer, MAX_CONNECTIONS)
            writer.close()
            return
        self._num_connections += 1
        connection = self._serve(reader, writer, peer)
        self._tasks.create_task(connection, name=f"kv-recovery-{peer}")

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> None:
        try:
            async with _ending(writer):
                _keep_alive(writer)
                await self._take_requests(reader, writer)
        except (ValueError, TimeoutError) as error:
            log.warning("%s: no KV recovery query: %s", peer, str(error) or "it does not end")
        except OSError as error:
            log.debug("%s: %s", peer, error)
        except Exception:
            log.exception("%s: cannot take its KV recovery queries", peer)
        finally:
            self._num_connections -= 1

    async def _take_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read requests until the peer ends the connection.

        Raises:
            ValueError: if what it sends is no query.
            TimeoutError: if a request does not end, or nobody reads that it was taken.
            OSError: if the connection breaks.
        """
        cutter, loop = RequestCutter(), asyncio.get_running_loop()
        deadline_s: float | None = None
        while True:
            async with asyncio.timeout_at(deadline_s):
                data = await reader.read(_READ_BYTES)
            if not data:
                return
            if requests := cutter.feed(data):
                deadline_s = None
                for request in requests:
                    self._take(request)
                    writer.write(ACKNOWLEDGEMENT)
                async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                    await writer.drain()
            if cutter.is_within_request and deadline_s is None:
                deadline_s = loop.time() + _REQUEST_TIMEOUT_S

    def _take(self, request: PlaneRequest) -> None:
        publisher_id = publisher_of(request.path)
        query, address = decode_query(request.body)
        if self._tasks is None or self._num_queries >= MAX_QUERIES:
            raise ValueError(f"more than {MAX_QUERIES} queries at a time")
        self._num_queries += 1
        answer = self._answer(publisher_id, query, address)
        self._tasks.create_task(answer, name=f"kv-recovery-to-{address.host}")

    async def _answer(
        self, publisher_id: int, query: RecoveryQuery, address: ReturnAddress
    ) -> None:
        place = f"{address.host}:{address.port}"
        try:
            async with (
                asyncio.timeout(_ANSWER_TIMEOUT_S),
                self._turns,
                _connected(address) as writer,
            ):
                answer = await self._answer_to(publisher_id, query, place)
                for frame in encode_answer(address.subject, answer):
                    writer.write(frame)
                    await writer.drain()
        except (ConnectionResetError, BrokenPipeError) as error:
            # Routers leave once they have read what they need.
            log.debug("%s: %s", place, error)
        except (OSError, ValueError) as error:  # a timeout is an OSError
            log.warning("%s: cannot be told what is cached: %s", place, str(error) or "timeout")
        except Exception:
            log.exception("%s: cannot be told what is cached", place)
        finally:
            self._num_queries -= 1

    async def _answer_to(self, publisher_id: int, query: RecoveryQuery, place: str) -> bytes:
        dp_rank = self._ranks.get(publisher_id)
        if dp_rank is None or (query.worker_id, query.dp_rank) != (self._worker_id, dp_rank):
            return encode_error("the query is about another worker or rank")
        if not query.is_recovery:
            return encode_error("kind: only recovery is known here")
        events, last_event_id = self._dump(dp_rank)
        if query.start_event_id is not None and query.start_event_id > last_event_id:
            return encode_too_new(query, last_event_id)
        log.info(
            "telling the router at %s what rank %d has cached: %d blocks, up to event %d",
            *(place, dp_rank, sum(map(count_blocks, events)), last_event_id),
        )
        return encode_tree_dump(await self._encode(events, dp_rank), last_event_id)

    async def _encode(self, events: Sequence[KvCacheEvent], dp_rank: int) -> list[bytes]:
        """Return the events as they are sent; the engine runs in between if there are many."""
        encoded = []
        blocks_to_pause = MAX_BLOCKS
        for number, event in enumerate(events):
            encoded.append(
                encode_single_router_event(self._worker_id, number, event, dp_rank=dp_rank)
            )
            blocks_to_pause -= count_blocks(event)
            if blocks_to_pause <= 0:
                blocks_to_pause = MAX_BLOCKS
                await asyncio.sleep(0)
        return encoded


@contextlib.asynccontextmanager
async def _connected(address: ReturnAddress) -> AsyncIterator[asyncio.StreamWriter]:
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        _, writer = await asyncio.open_connection(address.host, address.port)
    async with _ending(writer):
        yield writer


@contextlib.asynccontextmanager
async def _ending(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Close a connection at the end; nothing of it stays, whatever its peer does."""
    try:
        yield
        writer.close()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await writer.wait_closed()
    finally:
        writer.transport.abort()


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Have the kernel look after peers that vanish without a word."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # two hours otherwise
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_IDLE_S)


def _peer(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if peer else "?"
