"""Consumers of KV events on ZMQ, each by the rules that its project states, and what feeds them.

None of them shares code with the publisher: they know frames, MessagePack and tokens. What one
believes is a set of prefixes (all tokens up to the end of a cached block).
"""

import asyncio
import contextlib
import random

import msgspec
import zmq
import zmq.asyncio

from mocker_protocol.engine_args import EngineArgs
from mocker_worker.engine import EngineCore, Request
from mocker_worker.events.hub import KvEventHub
from mocker_worker.events.zmq_options import ZmqOptions
from mocker_worker.events.zmq_publisher import ZmqKvPublisher

END = b"\xff" * 8
_ASKED_AGAIN_AFTER_S = 2.0


class Refused(Exception):
    """A message that the consumer does not take."""


class PrefixIndex:
    """What is cached by engine hash; keys of its own are made from the tokens."""

    def __init__(self):
        self.by_hash = {}

    @property
    def prefixes(self):
        return set(self.by_hash.values())

    def stored(self, hashes, parent, token_ids, block_size):
        if len(token_ids) != len(hashes) * block_size:
            raise Refused("tokens and blocks do not fit")
        if parent is not None and parent not in self.by_hash:
            raise Refused("unknown parent")
        prefix = () if parent is None else self.by_hash[parent]
        for number, block_hash in enumerate(hashes):
            prefix += tuple(token_ids[number * block_size : (number + 1) * block_size])
            self.by_hash[block_hash] = prefix

    def removed(self, hashes):
        for block_hash in hashes:
            if block_hash not in self.by_hash:
                raise Refused("unknown block")
            del self.by_hash[block_hash]

    def cleared(self):
        self.by_hash.clear()


def hash64(value):
    """Take an unsigned or a signed integer, or the last 8 bytes of a digest."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    if not isinstance(value, int):
        raise Refused("no hash")
    return value & (2**64 - 1)


class ArrayDecoder:
    """Positional events in a batch that is an array."""

    batch_lengths = frozenset({2, 3})

    def __init__(self):
        self.index = PrefixIndex()

    def apply(self, payload):
        batch = msgspec.msgpack.decode(payload)
        if not isinstance(batch, list) or len(batch) not in self.batch_lengths:
            raise Refused("no batch")
        for event in batch[1]:
            self.apply_event(event)

    def apply_event(self, event):
        if not isinstance(event, list):
            raise Refused("no array")
        match event:
            case ["BlockStored", hashes, parent, token_ids, block_size, *_]:
                parent = None if parent is None else hash64(parent)
                self.index.stored(list(map(hash64, hashes)), parent, token_ids, block_size)
            case ["BlockRemoved", hashes, *_]:
                self.index.removed(map(hash64, hashes))
            case ["AllBlocksCleared"]:
                self.index.cleared()
            case _:
                raise Refused("unknown event")


class AnyDecoder(ArrayDecoder):
    """Positional events and maps, in a batch that is an array."""

    def apply_event(self, event):
        if isinstance(event, dict):
            names = {
                "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size"),
                "BlockRemoved": ("block_hashes",),
                "AllBlocksCleared": (),
            }[event["type"]]
            event = [event["type"], *(event[name] for name in names)]
        super().apply_event(event)


class KvCacheManager:
    """llm-d-kv-cache (June 2026): one SUB for all pods, arrays only, no replay, no sequence check.

    The topic must be `kv@<pod>@<model>`; other messages are dropped.
    """

    def __init__(self, context):
        self.socket = context.socket(zmq.SUB)
        self.socket.subscribe("kv@")
        self.pods = {}
        self.dropped = 0

    async def run(self):
        while True:
            self.take(await self.socket.recv_multipart())

    def take(self, frames):
        if len(frames) != 3 or len(frames[1]) != 8:
            self.dropped += 1
            return
        match frames[0].decode().split("@"):
            case ["kv", pod, _model]:
                self.pods.setdefault(pod, ArrayDecoder()).apply(frames[2])
            case _:
                self.dropped += 1

    def close(self):
        self.socket.close(0)

    def prefixes(self, pod):
        return self.pods[pod].index.prefixes if pod in self.pods else None


class Subscriber:
    """A consumer of one rank that can ask for a replay."""

    def __init__(self, context, source, decoder):
        self.decoder = decoder()
        self.last = None
        self.replays = []
        """The first sequence of each replay that was asked for."""
        self.resets = 0
        self.heard = False
        """Whether a live message came: from then on none is lost on the way."""
        self.lose = set()
        """Sequences of live messages to lose on the way, once each."""
        self.live = context.socket(zmq.SUB)
        self.live.subscribe("")
        self.live.connect(source["endpoint"])
        self._context, self._replay_endpoint = context, source["replay_endpoint"]

    @property
    def prefixes(self):
        return self.decoder.index.prefixes

    def close(self):
        self.live.close(0)

    async def replay(self, start):
        """Ask until an answer is whole: a request to a publisher that is away is lost."""
        while True:
            self.replays.append(start)
            with contextlib.suppress(TimeoutError), self._context.socket(zmq.DEALER) as socket:
                socket.connect(self._replay_endpoint)
                async with asyncio.timeout(_ASKED_AGAIN_AFTER_S):
                    return await self._replay(socket, start)

    async def _replay(self, socket, start):
        await socket.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            delimiter, topic, sequence, payload = await socket.recv_multipart()
            assert delimiter == b""
            if sequence == END:
                assert (topic, payload) == (b"", b"")
                return
            self.apply(int.from_bytes(sequence, "big"), payload)

    async def receive(self):
        while True:
            _, sequence, payload = await self.live.recv_multipart()
            self.heard = True
            number = int.from_bytes(sequence, "big")
            if number in self.lose:
                self.lose.remove(number)
                continue
            return number, payload

    def apply(self, sequence, payload):
        if self.last is not None and sequence <= self.last:
            return
        self.decoder.apply(payload)
        self.last = sequence


class Router(Subscriber):
    """llm-d-router (August 2026): arrays and maps, replay at start and after a gap.

    A live sequence that goes back means that the engine started anew.
    """

    def __init__(self, context, source):
        super().__init__(context, source, AnyDecoder)

    async def run(self):
        await self.replay(0)
        latest = -1
        while True:
            sequence, payload = await self.receive()
            if sequence <= latest:
                self.decoder.index.cleared()
                self.last = None
                self.resets += 1
            latest = sequence
            expected = 0 if self.last is None else self.last + 1
            if sequence > expected:
                await self.replay(expected)
            self.apply(sequence, payload)


class AiBrix(Subscriber):
    """AIBrix (August 2026): arrays only, one replay from 0 at the start."""

    def __init__(self, context, source):
        super().__init__(context, source, ArrayDecoder)

    async def run(self):
        await self.replay(0)
        while True:
            self.apply(*await self.receive())


class RandomWorker:
    """Engines of some ranks under random requests, and what publishes their events."""

    def __init__(self, *, seed=1, dp_size=1, num_gpu_blocks=48, options=None, **publisher):
        self.args = EngineArgs(
            num_gpu_blocks=num_gpu_blocks, block_size=4, speedup_ratio=0.0, max_num_seqs=4
        )
        self.rng = random.Random(seed)
        self.engines = [EngineCore(self.args, dp_rank=rank) for rank in range(dp_size)]
        self.publisher = ZmqKvPublisher(
            options or ZmqOptions(endpoint="tcp://*:0", replay_endpoint="tcp://*:0"),
            dp_size=dp_size,
            model_name="mock",
            **publisher,
        )
        self.hub = KvEventHub(self._snapshot, dp_size)
        self.hub.attach(self.publisher)
        self.publisher.resynchronize = self.hub.resynchronize
        self.num_requests = 0
        self._shared = [self.rng.randrange(50_000) for _ in range(40)]

    @property
    def sources(self):
        return self.publisher.sources()

    def serve(self, num_requests, *, dp_rank=0):
        """Run requests with shared prefixes to their ends; the cache is far too small for them."""
        engine = self.engines[dp_rank]
        for _ in range(num_requests):
            self.num_requests += 1
            head = self._shared[: self.rng.randrange(len(self._shared) + 1)]
            tail = [self.rng.randrange(150_000) for _ in range(self.rng.randrange(1, 60))]
            request = Request(f"r{self.num_requests}", head + tail, self.rng.randrange(1, 20))
            engine.add_request(request)
            if self.rng.random() < 0.3:
                continue
            while engine.has_unfinished_requests:
                self.hub.publish(dp_rank, engine.step().kv_events)
        while engine.has_unfinished_requests:
            self.hub.publish(dp_rank, engine.step().kv_events)

    def cached(self, dp_rank=0):
        """Return the prefixes that the engine has."""
        index = PrefixIndex()
        for event in self.engines[dp_rank].cached_blocks():
            hashes = [block.sequence for block in event.blocks]
            index.stored(hashes, event.parent_hash, event.token_ids, self.args.block_size)
        return index.prefixes

    async def until_subscribed(self, has_heard, dp_rank=0):
        """Publish everything until somebody hears it: PUB drops what nobody subscribed to."""
        while not has_heard():
            self.hub.resynchronize(dp_rank)
            await asyncio.sleep(0.01)

    def _snapshot(self, dp_rank):
        self.engines[dp_rank].take_events()
        return self.engines[dp_rank].cached_blocks()


@contextlib.asynccontextmanager
async def running(*parts):
    """Run publishers and consumers in the background; gives a list of tasks."""
    tasks = [asyncio.create_task(part.run()) for part in parts]
    try:
        yield tasks
        failed = [task for task in tasks if task.done()]
        for task in failed:
            task.result()
        assert not failed, "it runs until it is cancelled"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for part in parts:
            part.close()


@contextlib.contextmanager
def consumer_context():
    """Give an asyncio context; whatever was opened in it is closed."""
    context = zmq.asyncio.Context()
    try:
        yield context
    finally:
        context.destroy(linger=0)
