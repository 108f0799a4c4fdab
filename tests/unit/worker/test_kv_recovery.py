"""Recovery queries to a worker, over sockets."""

import asyncio
import contextlib

import msgspec
import pytest
from request_plane_client import Answers, body_of, info_of, request_of
from waiting import PATIENCE_S

from mocker_protocol.block_hash import BlockHash
from mocker_protocol.event_plane import decode_router_events
from mocker_protocol.kv_events import BlockStored
from mocker_worker.events import kv_recovery
from mocker_worker.events.hub import CacheDump
from mocker_worker.events.kv_recovery import KvRecoveryServer

WORKER_ID = 7
PUBLISHER_IDS = [0x1F, 0x2F]
PATH = b"7/dynamo/backend/worker_kv_query_source_"
EVENTS = [
    BlockStored(None, (BlockHash(1, 1), BlockHash(2, 12))),
    BlockStored(12, (BlockHash(3, 123),)),
]


class Dialogue:
    """A router's connection to a server, and where it is answered."""

    def __init__(self, port, answers):
        self.port = port
        self.answers = answers
        self.dumps = {0: CacheDump(EVENTS, 41), 1: CacheDump([], 0)}
        self.asked = []

    def dump(self, dp_rank):
        self.asked.append(dp_rank)
        return self.dumps[dp_rank]

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.port)

    def query(self, subject="subject-1", *, rank=0, address=None, publisher=None, **changes):
        wanted = {"worker_id": WORKER_ID, "dp_rank": rank, "start_event_id": None} | changes
        connection = info_of(address or self.answers.address, subject)
        path = PATH + f"{publisher or PUBLISHER_IDS[rank]:x}".encode()
        return request_of(path, body_of(wanted, connection=connection))

    async def ask(self, *queries):
        """Send queries on one connection, and return their answers by subject."""
        reader, writer = await self.connect()
        for query in queries:
            writer.write(query)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readexactly(4 * len(queries)) == bytes(4 * len(queries))
        answers = dict([await self.answers.next() for _ in queries])
        writer.close()
        return answers

    async def is_ended(self, sent):
        """Whether the server ends a connection on which something is sent."""
        reader, writer = await self.connect()
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        return True


@pytest.fixture
async def dialogue():
    async with Answers.listening() as answers:
        dialogue = Dialogue(0, answers)
        server = KvRecoveryServer(
            lambda dp_rank: dialogue.dump(dp_rank),
            worker_id=WORKER_ID,
            publisher_ids=PUBLISHER_IDS,
        )
        dialogue.server = server
        dialogue.port = await server.listen("127.0.0.1")
        task = asyncio.create_task(server.run())
        yield dialogue
        task.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([task])
        assert task.cancelled()


def events_of(answer):
    return decode_router_events(msgspec.msgpack.encode(answer["TreeDump"]["events"]))


async def test_a_router_is_told_what_is_cached(dialogue):
    answer = (await dialogue.ask(dialogue.query()))["subject-1"]

    assert (answer["TreeDump"]["last_event_id"], answer["TreeDump"]["reset_scope"]) == (41, "all")
    events = events_of(answer)
    assert [event.event for event in events] == EVENTS
    assert [(event.worker_id, event.event_id, event.dp_rank) for event in events] == [
        (WORKER_ID, 0, 0),
        (WORKER_ID, 1, 0),
    ]


async def test_each_rank_is_asked_by_its_publisher_on_one_connection(dialogue):
    answers = await dialogue.ask(dialogue.query("a", rank=1), dialogue.query("b", rank=0))

    assert answers["a"]["TreeDump"] == {"events": [], "last_event_id": 0, "reset_scope": "all"}
    assert len(answers["b"]["TreeDump"]["events"]) == 2


async def test_who_missed_an_event_is_told_everything(dialogue):
    answer = (await dialogue.ask(dialogue.query(start_event_id=41)))["subject-1"]
    assert len(answer["TreeDump"]["events"]) == 2


async def test_who_asks_for_the_future_is_told_so(dialogue):
    query = dialogue.query(start_event_id=42, end_event_id=50)
    assert await dialogue.ask(query) == {
        "subject-1": {
            "TooNew": {"requested_start": 42, "requested_end": 50, "newest_available": 41}
        }
    }


@pytest.mark.parametrize(
    "change",
    [{"worker_id": 8}, {"dp_rank": 1}, {"publisher": 0x3F}, {"kind": {"status": {}}}],
    ids=str,
)
async def test_other_questions_are_answered_with_an_error(dialogue, change):
    answer = (await dialogue.ask(dialogue.query(**change)))["subject-1"]
    assert list(answer) == ["Error"]
    assert dialogue.asked == []


async def test_a_large_cache_is_told_while_the_loop_turns(dialogue):
    blocks = [
        BlockStored(None, tuple(BlockHash(chain, 1000 * chain + n) for n in range(1000)))
        for chain in range(50)
    ]
    dialogue.dumps[0] = CacheDump(blocks, 5)
    events = events_of((await dialogue.ask(dialogue.query()))["subject-1"])
    assert [event.event for event in events] == blocks

    turns = []

    async def turn():
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await dialogue.server._encode(blocks, 0)
    turning.cancel()
    assert len(turns) >= 5


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + bytes(70_000),
        request_of(b"7/dynamo/backend/generate", body_of()),
        request_of(PATH + b"1f", b"rubbish"),
        request_of(PATH + b"1f", body_of(connection=info_of("router.example:80"))),
        request_of(PATH + b"1f", body_of(data=b"\x91" * 1000)),
        bytes(4) + b"\xff\xff\xff\xff",
    ],
    ids=["http", "endpoint", "frame", "name", "nested", "length"],
)
async def test_what_is_no_query_ends_its_connection_with_one_line(dialogue, caplog, sent):
    assert await dialogue.is_ended(sent)
    assert await dialogue.ask(dialogue.query())

    (line,) = [record for record in caplog.records if record.levelname != "INFO"]
    assert "no KV recovery query" in line.message
    assert line.exc_info is None


async def test_a_request_that_does_not_end_is_given_up(dialogue, caplog, monkeypatch):
    monkeypatch.setattr(kv_recovery, "_REQUEST_TIMEOUT_S", 0.05)
    assert await dialogue.is_ended(dialogue.query()[:-1])
    assert "no KV recovery query: it does not end" in caplog.text


async def test_a_router_that_is_gone_when_it_is_answered_harms_nobody(dialogue, caplog):
    reader, writer = await dialogue.connect()
    writer.write(dialogue.query(address="127.0.0.1:1"))
    assert await reader.readexactly(4) == bytes(4)
    async with asyncio.timeout(PATIENCE_S):
        while "cannot be told what is cached" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await dialogue.ask(dialogue.query())
    writer.close()


async def test_routers_that_read_no_answer_are_given_up(dialogue, caplog, monkeypatch):
    monkeypatch.setattr(kv_recovery, "_ANSWER_TIMEOUT_S", 0.3)
    chain = BlockStored(None, tuple(BlockHash(n, n) for n in range(1000)))
    dialogue.dumps[0] = CacheDump([chain] * 200, 5)
    num_queries = 2 * kv_recovery.MAX_ANSWERS
    held = []
    silent = await asyncio.start_server(lambda *ends: held.append(ends), "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    reader, writer = await dialogue.connect()
    for _ in range(num_queries):
        writer.write(dialogue.query(address=f"{host}:{port}"))
    async with asyncio.timeout(PATIENCE_S):
        await reader.readexactly(4 * num_queries)
        while dialogue.server._num_queries:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.01)
    assert caplog.text.count("cannot be told what is cached: timeout") == num_queries

    monkeypatch.undo()
    dialogue.dumps[0] = CacheDump(EVENTS, 41)
    assert await dialogue.ask(dialogue.query())
    for end in (writer, *(end for _, end in held)):
        end.close()
    silent.close()


async def test_connections_beyond_the_limit_are_ended(dialogue, caplog, monkeypatch):
    monkeypatch.setattr(kv_recovery, "MAX_CONNECTIONS", 2)
    first, second = await dialogue.connect(), await dialogue.connect()
    for reader, writer in (first, second):
        writer.write(dialogue.query())
        await reader.readexactly(4)
        await dialogue.answers.next()
    assert await dialogue.is_ended(b"")
    assert "more than 2 connections" in caplog.text

    first[1].close()
    async with asyncio.timeout(PATIENCE_S):
        while dialogue.server._num_connections > 1:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.01)
    assert await dialogue.ask(dialogue.query())
    second[1].close()


async def test_queries_beyond_the_limit_are_not_taken(dialogue, caplog, monkeypatch):
    monkeypatch.setattr(kv_recovery, "MAX_QUERIES", 0)
    assert await dialogue.is_ended(dialogue.query())
    assert "more than 0 queries" in caplog.text


async def test_a_dump_that_fails_is_logged_and_served_on(dialogue, caplog):
    del dialogue.dumps[1]
    reader, writer = await dialogue.connect()
    writer.write(dialogue.query(rank=1))
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.readexactly(4) == bytes(4)
        while "cannot be told what is cached" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    writer.close()
    assert await dialogue.ask(dialogue.query())


async def test_an_address_that_is_taken_is_an_error_at_once(dialogue):
    other = KvRecoveryServer(dialogue.dump, worker_id=1, publisher_ids=[1])
    with pytest.raises(OSError, match="address already in use"):
        await other.listen("127.0.0.1", dialogue.port)
