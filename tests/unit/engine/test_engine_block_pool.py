"""The block pool: examples, and a state machine against a plain model of it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mocker_protocol.block_hash import BlockHash
from mocker_worker.engine.block_pool import BlockContent, BlockPool

NUM_BLOCKS = 6


def content(sequence: int) -> BlockContent:
    return BlockContent(BlockHash(sequence, sequence), None)


def cache(pool: BlockPool, *sequences: int) -> list[int]:
    blocks, _ = pool.take(len(sequences))
    for block, sequence in zip(blocks, sequences, strict=True):
        pool.fill(block, content(sequence))
    return blocks


def test_tails_are_evicted_before_heads() -> None:
    pool = BlockPool(3)
    pool.release(cache(pool, 10, 11, 12))
    assert pool.take(2)[1] == [12, 11]
    assert pool.lookup(10) is not None


def test_blank_blocks_are_handed_out_before_cached_ones() -> None:
    pool = BlockPool(3)
    pool.release(cache(pool, 10))
    assert pool.take(2)[1] == []
    assert pool.take(1)[1] == [10]


def test_a_hit_makes_an_idle_block_held_and_young() -> None:
    pool = BlockPool(2)
    pool.release(cache(pool, 10))
    pool.release(cache(pool, 11))
    block = pool.lookup(10)
    assert block is not None
    pool.hold(block)
    pool.release([block])
    assert pool.take(1)[1] == [11]


def test_a_duplicate_lives_until_its_last_holder_leaves() -> None:
    pool = BlockPool(2)
    first, second = cache(pool, 10), cache(pool, 10)
    pool.release(first)
    assert pool.lookup(10) == second[0]
    assert pool.take(1)[1] == []
    pool.release(second)
    assert pool.take(1)[1] == [10]
    assert pool.lookup(10) is None


def test_content_computed_again_replaces_its_idle_twin() -> None:
    pool = BlockPool(2)
    pool.release(cache(pool, 10))
    block, _ = pool.take(1)
    assert not pool.fill(block[0], content(10))
    assert pool.lookup(10) == block[0]
    assert pool.num_cached == 1
    assert pool.take(1)[1] == []


def test_hashes_at_and_above_2_to_the_63_are_kept_as_they_are() -> None:
    pool = BlockPool(1)
    pool.release(cache(pool, 2**64 - 1))
    assert pool.take(1)[1] == [2**64 - 1]


def test_a_pool_in_use_is_not_cleared() -> None:
    pool = BlockPool(2)
    blocks = cache(pool, 10)
    with pytest.raises(RuntimeError):
        pool.clear()
    pool.release(blocks)
    pool.clear()
    assert (pool.num_cached, pool.num_free, pool.lookup(10)) == (0, 2, None)


class BlockPoolMachine(RuleBasedStateMachine):
    """Owners take, share, fill and release blocks at random."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.owners: list[list[int]] = []
        self.filled: dict[int, int] = {}
        self.cached: set[int] = set()

    def held(self) -> set[int]:
        return {block for owner in self.owners for block in owner}

    @rule(count=st.integers(0, NUM_BLOCKS))
    def take(self, count: int) -> None:
        count = min(count, self.pool.num_free)
        blocks, evicted = self.pool.take(count)
        assert len(set(blocks)) == count
        assert not set(blocks) & self.held(), "a block was given twice"
        assert len(set(evicted)) == len(evicted)
        assert set(evicted) <= self.cached, "an unknown content was removed"
        assert not set(evicted) & {self.filled.get(b) for b in self.held()}, "it was in use"
        self.cached -= set(evicted)
        for block in blocks:
            self.filled.pop(block, None)
        if blocks:
            self.owners.append(blocks)

    @precondition(lambda self: any(b not in self.filled for b in self.held()))
    @rule(data=st.data(), sequence=st.integers(0, 7))
    def fill(self, data: st.DataObject, sequence: int) -> None:
        unknown = sorted(b for b in self.held() if b not in self.filled)
        block = data.draw(st.sampled_from(unknown))
        assert self.pool.fill(block, content(sequence)) == (sequence not in self.cached)
        self.filled[block] = sequence
        self.cached.add(sequence)

    @rule(sequence=st.integers(0, 7))
    def hit(self, sequence: int) -> None:
        block = self.pool.lookup(sequence)
        assert (block is not None) == (sequence in self.cached)
        if block is not None:
            self.pool.hold(block)
            self.owners.append([block])

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.owners) - 1))
        self.pool.release(self.owners.pop(index))

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        assert self.pool.num_held == len(self.held())
        assert self.pool.num_free == NUM_BLOCKS - len(self.held())
        assert self.pool.num_cached == len(self.cached)
        assert {c.block_hash.sequence for c in self.pool.contents()} == self.cached


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
