"""What must hold under any load: the event stream, the counts, and that everybody finishes."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mocker_protocol.block_hash import BlockHash, hash_blocks
from mocker_protocol.engine_args import parse_engine_args
from mocker_protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvCacheEvent
from mocker_worker.engine import EngineCore, Request, StepOutput
from mocker_worker.engine.block_pool import Run

BLOCK_SIZE = 4


class CacheTree:
    """A consumer of KV events that accepts nothing out of order."""

    def __init__(self) -> None:
        self.parents: dict[int, int | None] = {}

    def apply(self, event: KvCacheEvent) -> None:
        match event:
            case BlockStored(parent, blocks):
                assert blocks
                for block in blocks:
                    assert parent is None or parent in self.parents, "stored before its parent"
                    assert block.sequence not in self.parents, "stored twice"
                    self.parents[block.sequence] = parent
                    parent = block.sequence
            case BlockRemoved(block_hashes):
                for sequence in block_hashes:
                    del self.parents[sequence]
                    assert sequence not in self.parents.values(), "removed before its child"
            case AllBlocksCleared():
                self.parents.clear()

    @classmethod
    def of(cls, chains: list[BlockStored]) -> "CacheTree":
        tree = cls()
        for chain in chains:
            tree.apply(chain)
        return tree


def families_of_prompts(random: Random, count: int) -> list[list[int]]:
    """Prompts that share prefixes of each other, many of them block-aligned."""
    prompts: list[list[int]] = []
    for _ in range(count):
        base = random.choice(prompts) if prompts and random.random() < 0.7 else []
        keep = base[: random.randrange(len(base) + 1)]
        prompts.append(keep + [random.randrange(3) for _ in range(random.randrange(1, 30))])
    return prompts


@pytest.mark.parametrize("mode", ["lifo", "fifo"])
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_event_stream_rebuilds_the_cache_under_pathological_load(
    make_engine, drain, mode: str, chunked: bool, seed: int
) -> None:
    engine = make_engine(
        num_gpu_blocks=64,
        preemption_mode=mode,
        enable_chunked_prefill=chunked,
        max_num_batched_tokens=24 if chunked else 200,
        max_num_seqs=12,
    )
    random = Random(seed)
    total = 0
    for i, prompt in enumerate(families_of_prompts(random, 150)):
        if len(prompt) > 190:
            continue
        max_tokens = random.randrange(1, 60)
        total += max_tokens
        engine.add_request(Request(str(i), prompt, max_tokens))
    run = drain(engine)
    tree = CacheTree()
    for step in run.steps:
        for event in step.kv_events:
            tree.apply(event)
    assert engine.num_preemptions > 0
    assert sum(map(len, run.tokens.values())) == total
    assert tree.parents == CacheTree.of(engine.cached_blocks()).parents
    assert any(isinstance(e, BlockRemoved) for step in run.steps for e in step.kv_events)


def test_stored_events_carry_dynamos_hashes_in_one_run(make_engine) -> None:
    engine = make_engine()
    engine.add_request(Request("a", range(1, 9), 1))
    assert engine.step().kv_events == [
        BlockStored(
            None,
            (
                BlockHash(14643705804678351452, 14643705804678351452),
                BlockHash(16777012769546811212, 4945711292740353085),
            ),
        )
    ]


def test_a_run_of_new_blocks_names_the_cached_block_before_it(make_engine, drain) -> None:
    engine = make_engine()
    engine.add_request(Request("a", range(5), 1))
    drain(engine)
    engine.add_request(Request("b", range(13), 1))
    blocks = list(hash_blocks(range(13), BLOCK_SIZE))
    assert engine.step().kv_events == [BlockStored(blocks[0].sequence, tuple(blocks[1:]))]


def test_generated_tokens_complete_blocks_that_are_published(make_engine, drain) -> None:
    engine = make_engine()
    engine.add_request(Request("a", range(3), 10))
    run = drain(engine)
    blocks = list(hash_blocks([*range(3), *run.tokens["a"]], BLOCK_SIZE))
    stored = [e for step in run.steps for e in step.kv_events]
    assert stored == [
        BlockStored(parent, (block,))
        for parent, block in zip(
            [None, *(block.sequence for block in blocks[:2])], blocks, strict=True
        )
    ]


def test_a_duplicate_block_is_stored_once_and_removed_once(make_engine, drain) -> None:
    engine = make_engine(num_gpu_blocks=6)
    for name in "ab":
        engine.add_request(Request(name, [1] * 8, 1))
    engine.add_request(Request("c", [2] * 23, 1))
    events = [event for step in drain(engine).steps for event in step.kv_events]
    first, second = hash_blocks([1] * 8, BLOCK_SIZE)
    assert events[0] == BlockStored(None, (first, second))
    removed = [h for e in events if isinstance(e, BlockRemoved) for h in e.block_hashes]
    assert removed == [second.sequence, first.sequence]


@pytest.mark.parametrize(
    "args",
    [{"publish_kv_events": False}, {"worker_type": "decode"}, {"enable_prefix_caching": False}],
)
def test_nothing_is_published_where_nothing_may_be(make_engine, drain, args: dict) -> None:
    engine = make_engine(**args)
    for name in "ab":
        engine.add_request(Request(name, range(9), 8))
    run = drain(engine)
    assert engine.reset_prefix_cache()
    assert not any(step.kv_events for step in run.steps)
    assert engine.take_events() == []
    assert engine.prefix_cache_hits == (8 if args.get("enable_prefix_caching", True) else 0)


def test_the_cache_is_reset_only_while_nobody_uses_it(make_engine, drain) -> None:
    engine = make_engine()
    engine.add_request(Request("a", range(9), 3))
    engine.step()
    assert not engine.reset_prefix_cache()
    drain(engine)
    assert engine.reset_prefix_cache()
    assert engine.take_events() == [AllBlocksCleared()]
    assert engine.cached_blocks() == []
    engine.add_request(Request("b", range(9), 1))
    assert engine.step().outputs[0].num_cached_tokens == 0


def test_cached_blocks_are_told_parents_first_in_long_runs(make_engine, drain) -> None:
    engine = make_engine()
    for name, tail in (("a", [1] * 8), ("b", [2] * 4)):
        engine.add_request(Request(name, [0] * 12 + tail, 1))
    drain(engine)
    lengths = [len(chain.blocks) for chain in engine.cached_blocks()]
    assert lengths[0] == 3
    assert sorted(lengths[1:]) == [1, 2]


def test_same_calls_give_the_same_results(make_engine, drain) -> None:
    def outcome() -> list[tuple[StepOutput, list[str]]]:
        engine = make_engine(num_gpu_blocks=24, max_num_batched_tokens=16)
        for i, prompt in enumerate(families_of_prompts(Random(3), 30)):
            engine.add_request(Request(str(i), prompt[:60], 20))
        steps = drain(engine).steps
        admitted = [[request.request_id for request in step.admitted] for step in steps]
        return [
            (replace(step, admitted=[]), names) for step, names in zip(steps, admitted, strict=True)
        ]

    assert outcome() == outcome()


def path(request: Request) -> list[Run]:
    """The runs of a request's full blocks, last one first."""
    runs, run = [], request.last_run
    while run is not None:
        runs.append(run)
        run = run.parent
    return runs


class EngineMachine(RuleBasedStateMachine):
    """Requests come, are cancelled and run in a cache that is too small for them."""

    @initialize(
        blocks=st.integers(3, 12),
        budget=st.integers(1, 24),
        chunked=st.booleans(),
        caching=st.booleans(),
        mode=st.sampled_from(["lifo", "fifo", "priority"]),
        worker_type=st.sampled_from(["aggregated", "prefill", "decode"]),
        algorithm=st.sampled_from(["xxh3", "sha256_cbor"]),
    )
    def start(
        self,
        blocks: int,
        budget: int,
        chunked: bool,
        caching: bool,
        mode: str,
        worker_type: str,
        algorithm: str,
    ) -> None:
        self.engine = EngineCore(
            parse_engine_args(
                {
                    "num_gpu_blocks": blocks,
                    "block_size": BLOCK_SIZE,
                    "max_num_batched_tokens": budget if chunked else 24,
                    "max_num_seqs": 4,
                    "enable_chunked_prefill": chunked,
                    "enable_prefix_caching": caching,
                    "preemption_mode": "fifo" if mode == "fifo" else "lifo",
                    "scheduling_policy": "priority" if mode == "priority" else "fcfs",
                    "prefix_caching_hash_algo": algorithm,
                    "worker_type": worker_type,
                }
            )
        )
        self.live: dict[str, Request] = {}
        self.expected: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.tree = CacheTree()
        self.counter = 0
        self.publishes = self.engine.args.publishes_kv_events

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=24),
        max_tokens=st.integers(1, 20),
        remote=st.booleans(),
        script=st.lists(st.integers(0, 1), max_size=9),
        stops=st.sets(st.integers(100, 200), max_size=40),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, "a"]),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        remote: bool,
        script: list[int],
        stops: set[int],
        priority: int,
        salt: str | None,
    ) -> None:
        remote = remote and self.engine.args.worker_type == "decode"
        longest = self.engine.args.kv_capacity_tokens
        prompt = prompt[:longest]
        max_tokens = min(max_tokens, longest - len(prompt) + 1)
        request = Request(
            str(self.counter),
            prompt,
            max_tokens,
            remote_prefill=remote,
            script=script,
            stop_token_ids=stops,
            priority=priority,
            cache_salt=salt,
        )
        self.counter += 1
        self.engine.add_request(request)
        self.live[request.request_id] = request
        self.expected[request.request_id] = min(request.max_tokens, len(script) or max_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        assert self.engine.abort_request(request_id)
        request = self.live.pop(request_id)
        assert (request.num_blocks, request.last_run) == (0, None)

    @rule(count=st.integers(1, 8))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> bool:
        before = {name: r.num_computed_tokens for name, r in self.live.items()}
        step = self.engine.step()
        assert (step is None) == (not self.live)
        if step is None:
            return False
        work = step.scheduled
        assert work.num_prefill_requests + work.num_decode_requests > 0, "an empty pass"
        assert step.duration_ms > 0
        tokens = work.sum_prefill_tokens + work.num_decode_requests
        assert tokens <= (self.engine.args.max_num_batched_tokens or tokens)
        assert len({output.request_id for output in step.outputs}) == len(step.outputs)
        for event in step.kv_events:
            self.tree.apply(event)
        for output in step.outputs:
            self.received[output.request_id] = self.received.get(output.request_id, 0) + 1
            if output.finish_reason is not None:
                request = self.live.pop(output.request_id)
                received, expected = (d[output.request_id] for d in (self.received, self.expected))
                if output.token_id not in request.stop_token_ids:
                    assert received == expected
                assert received <= expected
                assert (request.num_blocks, request.last_run) == (0, None)
        assert (
            step.preempted
            or any(r.num_computed_tokens > before[name] for name, r in self.live.items())
            or step.outputs
        ), "no progress"
        return True

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine, args = self.engine, self.engine.args
        assert engine.num_running + engine.num_waiting == len(self.live)
        assert engine.num_running <= (args.max_num_seqs or 0)
        shared = {run for request in self.live.values() for run in path(request)}
        blank = sum(r.num_blocks - r.num_registered_blocks for r in self.live.values())
        held = blank + sum(len(run.keys) * (1 + len(run.twins)) for run in shared)
        assert engine.kv_usage_ratio == held / args.num_gpu_blocks
        for request in self.live.values():
            assert request.num_blocks * args.block_size >= request.num_computed_tokens
            assert sum(len(run.keys) for run in path(request)) == request.num_registered_blocks
            assert request.num_cached_tokens < max(request.num_prompt_tokens, 1)
        if self.publishes:
            assert self.tree.parents == CacheTree.of(engine.cached_blocks()).parents

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(3000):
            if not self.step():
                break
        assert not self.live, "somebody starves"
        assert self.engine.kv_usage_ratio == 0.0


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
