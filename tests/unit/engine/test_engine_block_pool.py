"""The block pool: examples, and a state machine against a plain model of single blocks."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mocker_worker.engine.block_pool import BlockPool, Run

NUM_BLOCKS = 6


class Owner:
    """Somebody who holds a path of known blocks and then some of unknown content."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.run: Run = pool.hold(pool.lookup([], 0))
        self.path: list[int] = []
        self.blank = 0

    def hit(self, keys: list[int]) -> int:
        prefix = self.pool.lookup(keys, len(keys))
        self.pool.release(self.run, 0, self)
        self.run = self.pool.hold(prefix)
        self.path = keys[: prefix.num_blocks]
        return prefix.num_blocks

    def take(self, count: int) -> list[int]:
        self.blank += count
        return self.pool.take(count)

    def fill(self, *keys: int) -> list[list[int]]:
        self.run, stored = self.pool.fill(self.run, list(keys), self)
        self.path += keys
        self.blank -= len(keys)
        return [stored.keys] if stored else []

    def leave(self) -> None:
        self.pool.release(self.run, self.blank, self)


def cache(pool: BlockPool, *keys: int) -> Owner:
    owner = Owner(pool)
    owner.take(len(keys))
    owner.fill(*keys)
    return owner


def known(pool: BlockPool, *keys: int) -> int:
    return pool.lookup(list(keys), len(keys)).num_blocks


def test_tails_are_evicted_before_heads() -> None:
    pool = BlockPool(3)
    cache(pool, 10, 11, 12).leave()
    assert pool.take(2) == [12, 11]
    assert known(pool, 10, 11, 12) == 1


def test_blank_blocks_are_handed_out_before_cached_ones() -> None:
    pool = BlockPool(3)
    cache(pool, 10).leave()
    assert pool.take(2) == []
    assert pool.take(1) == [10]


def test_a_hit_makes_an_idle_block_held_and_young() -> None:
    pool = BlockPool(2)
    cache(pool, 10).leave()
    cache(pool, 11).leave()
    owner = Owner(pool)
    assert owner.hit([10]) == 1
    owner.leave()
    assert pool.take(1) == [11]


def test_a_hit_on_the_head_of_an_idle_run_leaves_its_tail_as_old_as_it_was() -> None:
    pool = BlockPool(4)
    cache(pool, 10, 11, 12).leave()
    cache(pool, 20).leave()
    owner = Owner(pool)
    assert owner.hit([10, 99]) == 1
    assert pool.num_held == 1
    owner.leave()
    assert pool.take(4) == [12, 11, 20, 10]


def test_the_same_key_after_another_prefix_is_another_content() -> None:
    pool = BlockPool(4)
    cache(pool, 1, 7).leave()
    cache(pool, 2, 7).leave()
    assert (known(pool, 1, 7), known(pool, 2, 7), known(pool, 7)) == (2, 2, 0)


def test_a_duplicate_lives_until_its_last_holder_leaves() -> None:
    pool = BlockPool(2)
    first, second = cache(pool, 10), cache(pool, 10)
    assert pool.num_held == 2
    first.leave()
    assert (pool.num_held, known(pool, 10)) == (1, 1)
    assert pool.take(1) == []
    second.leave()
    assert pool.take(1) == [10]
    assert known(pool, 10) == 0


def test_a_hit_shares_the_first_of_two_duplicates() -> None:
    pool = BlockPool(4)
    first, second = cache(pool, 10), cache(pool, 10)
    third = Owner(pool)
    assert third.hit([10]) == 1
    first.leave()
    assert pool.num_held == 2, "the third holder still has the first block"
    second.leave()
    assert pool.num_held == 1


def test_content_computed_again_replaces_its_idle_twin() -> None:
    pool = BlockPool(2)
    cache(pool, 10).leave()
    owner = Owner(pool)
    owner.take(1)
    assert owner.fill(10) == []
    assert (pool.num_cached, pool.num_held) == (1, 1)
    assert pool.take(1) == []


def test_hashes_at_and_above_2_to_the_63_are_kept_as_they_are() -> None:
    pool = BlockPool(1)
    cache(pool, 2**64 - 1).leave()
    assert pool.take(1) == [2**64 - 1]


def test_a_pool_in_use_is_not_cleared() -> None:
    pool = BlockPool(2)
    owner = cache(pool, 10)
    with pytest.raises(RuntimeError):
        pool.clear()
    owner.leave()
    pool.clear()
    assert (pool.num_cached, pool.num_free, known(pool, 10)) == (0, 2, 0)


class BlockPoolMachine(RuleBasedStateMachine):
    """Owners hit, take, fill and leave at random; the model knows contents by their paths."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.owners: list[Owner] = []
        self.cached: set[tuple[int, ...]] = set()
        self.order: list[tuple[int, ...]] = []
        """Idle paths, the first to be evicted in front."""

    def held(self) -> set[tuple[int, ...]]:
        return {tuple(o.path[: i + 1]) for o in self.owners for i in range(len(o.path))}

    def evict(self, keys: list[int]) -> None:
        for key in keys:
            path = self.order.pop(0)
            assert path[-1] == key
            self.cached.remove(path)

    @rule(path=st.lists(st.integers(0, 2), max_size=4))
    def hit(self, path: list[int]) -> None:
        owner = Owner(self.pool)
        expected = 0
        while expected < len(path) and tuple(path[: expected + 1]) in self.cached:
            expected += 1
        assert owner.hit(path) == expected
        self.owners.append(owner)
        self.order = [p for p in self.order if p not in self.held()]

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), count=st.integers(0, NUM_BLOCKS))
    def take(self, data: st.DataObject, count: int) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        self.evict(owner.take(min(count, self.pool.num_free)))

    @precondition(lambda self: any(owner.blank for owner in self.owners))
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from([o for o in self.owners if o.blank]))
        keys = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=owner.blank))
        before = len(owner.path)
        stored = [key for keys in owner.fill(*keys) for key in keys]
        paths = [tuple(owner.path[: i + 1]) for i in range(before, len(owner.path))]
        assert stored == [path[-1] for path in paths if path not in self.cached]
        self.cached.update(paths)
        self.order = [p for p in self.order if p not in self.held()]

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.owners) - 1))
        owner = self.owners.pop(index)
        owner.leave()
        paths = [tuple(owner.path[: i + 1]) for i in reversed(range(len(owner.path)))]
        self.order += [path for path in paths if path not in self.held()]

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        assert self.pool.num_cached == len(self.cached)
        assert len(self.order) == len(self.cached - self.held())
        least = len(self.held()) + sum(owner.blank for owner in self.owners)
        most = sum(len(owner.path) + owner.blank for owner in self.owners)
        assert least <= self.pool.num_held <= most
        assert self.pool.num_held + len(self.order) <= NUM_BLOCKS
        contents = [len(run.keys) for run in self.pool.contents()]
        assert sum(contents) == len(self.cached)


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
