"""A consumer that believes nothing: it hashes the tokens of every event again."""

import struct
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256
from random import Random

import cbor2
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_protocol.block_hash import BlockHash, Xxh3Chain
from mocker_protocol.engine_args import parse_engine_args
from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvCacheEvent
from mocker_worker.engine import EngineCore, FinishReason, Request

BLOCK_SIZE = 2
ALGORITHMS = ["xxh3", "sha256_cbor"]


class Consumer:
    """The blocks that events tell of, each by its hash, with what is needed to hash a child."""

    def __init__(self, algorithm: str, block_size: int = BLOCK_SIZE) -> None:
        self.algorithm = algorithm
        self.block_size = block_size
        self.digests: dict[int, bytes] = {}
        self.salts: dict[int, str | None] = {}

    def apply(self, events: Iterable[KvCacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self.store(event)
                case BlockRemoved(block_hashes):
                    for block_hash in block_hashes:
                        del self.digests[block_hash]
                        del self.salts[block_hash]
                case AllBlocksCleared():
                    self.digests.clear()
                    self.salts.clear()

    def store(self, event: BlockStored) -> None:
        assert len(event.token_ids) == len(event.blocks) * self.block_size
        parent, salt = event.parent_hash, event.cache_salt
        if parent is not None:
            assert self.salts[parent] == salt, "the salt of a prompt changed"
        for i, block in enumerate(event.blocks):
            tokens = list(event.token_ids[i * self.block_size : (i + 1) * self.block_size])
            local = self.local(tokens, salt)
            digest = self.digest(parent, tokens, local, salt)
            assert block.local == local
            assert block.sequence == int.from_bytes(digest[-8:], "big")
            assert block.sequence not in self.digests, "stored twice"
            parent = block.sequence
            self.digests[parent], self.salts[parent] = digest, salt

    def local(self, tokens: list[int], salt: str | None) -> int:
        seed = 1337 + (xxhash.xxh3_64(salt.encode(), 1).intdigest() if salt else 0)
        return xxhash.xxh3_64(struct.pack(f"<{len(tokens)}I", *tokens), seed % 2**64).intdigest()

    def digest(self, parent: int | None, tokens: list[int], local: int, salt: str | None) -> bytes:
        if self.algorithm == "sha256_cbor":
            seed = sha256(b"\x6evllm-none-hash").digest()
            before = seed if parent is None else self.digests[parent]
            extra = [salt] if salt and parent is None else None
            return sha256(cbor2.dumps([before, tokens, extra], canonical=True)).digest()
        if parent is None:
            return local.to_bytes(8, "big")
        assert parent in self.digests, "stored before its parent"
        pair = struct.pack("<QQ", parent, local)
        return xxhash.xxh3_64(pair, 1337).intdigest().to_bytes(8, "big")


REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 1), min_size=1, max_size=14),
        "max_tokens": st.integers(1, 10),
        "script": st.lists(st.sampled_from([0, 1, 300, 70_000, 2**32 - 1]), max_size=8),
        "seed": st.integers(0, 1),
        "stop_token_ids": st.sets(st.integers(100, 140), max_size=30),
        "min_tokens": st.integers(0, 5),
        "priority": st.integers(0, 2),
        "cache_salt": st.sampled_from([None, None, "", "a", "\u00e9"]),
    }
)
ACTIONS = st.lists(st.tuples(REQUESTS, st.integers(0, 4), st.booleans()), min_size=1, max_size=30)


@settings(max_examples=300, deadline=None)
@given(
    ACTIONS,
    st.sampled_from(ALGORITHMS),
    st.sampled_from(["fcfs", "priority"]),
    st.integers(12, 24),
    st.sampled_from([3, 8, 200]),
)
def test_the_events_of_any_run_say_what_the_engine_has_cached(
    actions: list, algorithm: str, policy: str, blocks: int, budget: int
) -> None:
    engine = EngineCore(
        parse_engine_args(
            {
                "block_size": BLOCK_SIZE,
                "num_gpu_blocks": blocks,
                "max_num_batched_tokens": budget,
                "prefix_caching_hash_algo": algorithm,
                "scheduling_policy": policy,
            }
        )
    )
    consumer = Consumer(algorithm)

    def run(passes: int) -> bool:
        for _ in range(passes):
            step = engine.step()
            if step is None:
                consumer.apply(engine.take_events())
                return False
            consumer.apply(step.kv_events)
        return True

    for i, (fields, passes, leaves) in enumerate(actions):
        request = Request(
            str(i),
            fields["prompt"],
            fields["max_tokens"],
            **{k: v for k, v in fields.items() if k not in ("prompt", "max_tokens")},
        )
        engine.add_request(request)
        run(passes)
        if leaves:
            engine.abort_request(str(i))
    while run(50):
        pass
    assert engine.num_kv_blocks_held == 0
    snapshot = Consumer(algorithm)
    snapshot.apply(engine.cached_blocks())
    assert snapshot.digests == consumer.digests
    assert snapshot.salts == consumer.salts
    assert len(consumer.digests) <= blocks
    assert engine.reset_prefix_cache()
    consumer.apply(engine.take_events())
    assert not consumer.digests
    assert engine.cached_blocks() == []


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_events_of_a_crowded_cache_say_what_it_holds(
    make_engine, drain, algorithm: str, policy: str
) -> None:
    random = Random(algorithm + policy)
    engine = make_engine(
        num_gpu_blocks=48,
        max_num_batched_tokens=32,
        prefix_caching_hash_algo=algorithm,
        scheduling_policy=policy,
    )
    requests = [
        Request(
            str(i),
            [random.randrange(2) for _ in range(random.randrange(1, 40))],
            random.randrange(1, 60),
            seed=random.randrange(3),
            script=[7] * random.randrange(60) if i % 3 == 0 else (),
            stop_token_ids=random.sample(range(100, 200), 3),
            priority=random.randrange(3),
            cache_salt=random.choice([None, None, "a", "b"]),
        )
        for i in range(200)
    ]
    for request in requests:
        engine.add_request(request)
    events = [event for step in drain(engine).steps for event in step.kv_events]
    consumer, snapshot = Consumer(algorithm, 4), Consumer(algorithm, 4)
    consumer.apply(events)
    snapshot.apply(engine.cached_blocks())
    assert consumer.digests == snapshot.digests
    assert consumer.salts == snapshot.salts
    assert engine.num_preemptions > 10
    assert sum(isinstance(event, BlockRemoved) for event in events) > 100
    assert {request.finish_reason for request in requests} == {
        FinishReason.STOP,
        FinishReason.LENGTH,
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_tokens_with_other_salts_share_nothing(make_engine, drain, algorithm: str) -> None:
    engine = make_engine(prefix_caching_hash_algo=algorithm)
    cached = {}
    for i, salt in enumerate([None, "a", "b", "", "a", "b"]):
        engine.add_request(Request(str(i), range(17), 1, cache_salt=salt))
        cached[i] = drain(engine).steps[0].outputs[0].num_cached_tokens
    assert list(cached.values()) == [0, 0, 0, 16, 16, 16]
    blocks = [block for chain in engine.cached_blocks() for block in chain.blocks]
    assert len({block.sequence for block in blocks}) == len(blocks) == 12
    assert {chain.cache_salt for chain in engine.cached_blocks()} == {None, "a", "b"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_tokens_of_an_event_are_those_of_its_new_blocks(make_engine, drain, algorithm) -> None:
    engine = make_engine(prefix_caching_hash_algo=algorithm)
    engine.add_request(Request("a", range(5), 1))
    drain(engine)
    engine.add_request(Request("b", range(13), 9, script=[50, 51, 52, 53, 54, 55, 56]))
    events = [event for step in drain(engine).steps for event in step.kv_events]
    assert [list(event.token_ids) for event in events] == [
        [*range(4, 12)],
        [12, 50, 51, 52],
    ]


def test_an_event_keeps_its_tokens_while_the_cache_changes(make_engine, drain) -> None:
    engine = make_engine(num_gpu_blocks=6)
    engine.add_request(Request("a", range(12), 9, script=range(20, 28)))
    first = engine.step().kv_events[0]
    drain(engine)
    engine.add_request(Request("b", range(100, 120), 1))
    drain(engine)
    assert first.token_ids == array("I", range(12))


def test_nothing_keeps_tokens_where_nothing_is_published(make_engine, drain) -> None:
    engine = make_engine(publish_kv_events=False)
    engine.add_request(Request("a", range(9), 1))
    drain(engine)
    assert [list(chain.token_ids) for chain in engine.cached_blocks()] == [[]]


def test_no_block_is_hashed_twice_however_often_its_request_starts_again(
    make_engine, drain, monkeypatch
) -> None:
    hashed: list[int] = []
    extend = Xxh3Chain.extend

    def counting(chain: Xxh3Chain, token_ids: Sequence[int]) -> list[BlockHash]:
        blocks = extend(chain, token_ids)
        hashed.extend(block.sequence for block in blocks)
        return blocks

    monkeypatch.setattr(Xxh3Chain, "extend", counting)
    engine = make_engine(num_gpu_blocks=12)
    for i in range(4):
        engine.add_request(Request(str(i), [i] * 9, 30))
    drain(engine)
    assert engine.num_preemptions > 3
    assert len(hashed) == len(set(hashed)) == 4 * ((9 + 29) // 4)
