"""A random run of engines, with its KV events as a worker numbers them, and probes in between."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.kv_events import BlockRemoved, encode_router_event
from mocker_worker.engine import EngineCore, Request
from mocker_worker.engine.hashing import chain_factory
from mocker_worker.events.hub import KvEventHub, NumberedEvent

MAX_WAITING = 24
TOKENS = 50
"""Different token ids; few, so that prompts have blocks in common by chance too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the requests look like."""

    num_requests: int
    max_new_prompt_tokens: int
    max_output_tokens: int
    salts: Sequence[str | None] = (None,)
    abort_ratio: float = 0.02
    probe_every: int = 100
    """Requests between two looks at the cache."""


@dataclass(slots=True)
class Probe:
    """A prompt that a judge is asked about, and the blocks that the engines say they have."""

    line: bytes
    expected: dict[str, int]


@dataclass(slots=True)
class Transcript:
    """What a judge reads, in order, and what it should answer."""

    worker_id: int
    lines: list[bytes] = field(default_factory=list)
    expected: list[dict[str, int]] = field(default_factory=list)
    num_events: int = 0
    num_removed_blocks: int = 0

    name = "transcript"
    published_events = dropped_events = 0

    def publish(self, events: Sequence[NumberedEvent]) -> None:
        for dp_rank, event_id, event in events:
            self.num_events += 1
            if isinstance(event, BlockRemoved):
                self.num_removed_blocks += len(event.block_hashes)
            self.lines.append(encode_router_event(self.worker_id, event_id, event, dp_rank=dp_rank))

    async def run(self) -> None: ...

    async def flush(self, timeout_s: float) -> None: ...


class RandomLoad:
    """Runs the ranks of one worker under requests that share prefixes; a seed, one run."""

    def __init__(
        self,
        args: EngineArgs,
        shape: Shape,
        *,
        seed: int,
        worker_id: int,
        cleared_takes_all_ranks: bool = False,
    ) -> None:
        self.engines = [EngineCore(args, dp_rank=rank) for rank in range(args.dp_size)]
        self.transcript = Transcript(worker_id)
        self._args = args
        self._shape = shape
        self._random = Random(seed)
        self._hub = KvEventHub(self._snapshot, args.dp_size)
        self._hub.attach(self.transcript, cleared_takes_all_ranks=cleared_takes_all_ranks)
        self._families: list[list[int]] = []
        self._salts = list(shape.salts)
        self._new_chain = chain_factory(args)

    @property
    def num_preemptions(self) -> int:
        return sum(engine.num_preemptions for engine in self.engines)

    def run(self) -> Transcript:
        self._hub.start()
        for number in range(self._shape.num_requests):
            self._submit(number)
            if number % self._shape.probe_every == 0:
                self._probe()
        self._drain()
        self._probe()
        return self.transcript

    def resynchronize(self) -> None:
        for rank in range(len(self.engines)):
            self._hub.resynchronize(rank)

    def reset(self) -> None:
        for rank, engine in enumerate(self.engines):
            assert engine.reset_prefix_cache()
            self._hub.publish(rank, engine.take_events())

    def withdraw(self) -> None:
        self._hub.withdraw()

    def cached_blocks(self) -> list[list[int | None]]:
        """[worker, rank, parent, block hash, local hash] of every block in the caches."""
        blocks: list[list[int | None]] = []
        for rank, engine in enumerate(self.engines):
            for chain in engine.cached_blocks():
                parent = chain.parent_hash
                for block in chain.blocks:
                    place = self.transcript.worker_id, rank
                    blocks.append([*place, parent, block.sequence, block.local])
                    parent = block.sequence
        return blocks

    def _submit(self, number: int) -> None:
        random, shape = self._random, self._shape
        engine = random.choice(self.engines)
        while engine.num_waiting >= MAX_WAITING:
            self._step(engine)
        engine.add_request(
            Request(
                str(number),
                self._prompt(),
                random.randint(1, shape.max_output_tokens),
                cache_salt=random.choice(self._salts),
                priority=random.randrange(3),
                remote_prefill=random.random() < 0.1,
            )
        )
        if random.random() < shape.abort_ratio and engine.running:
            engine.abort_request(random.choice(engine.running).request_id)
        for _ in range(random.randrange(4)):
            self._step(engine)

    def _prompt(self) -> list[int]:
        """A new prompt, most often with the beginning of an earlier one."""
        random, families = self._random, self._families
        base = random.choice(families) if families and random.random() < 0.8 else []
        if random.random() < 0.5:
            base = base[: random.randint(0, len(base))]
        length = random.randint(1, self._shape.max_new_prompt_tokens)
        prompt = base + [random.randrange(TOKENS) for _ in range(length)]
        if len(prompt) > self._args.kv_capacity_tokens // 3:
            prompt = prompt[-length:]
        families.append(prompt)
        if len(families) > 40:
            families.pop(random.randrange(20))
        return prompt

    def _step(self, engine: EngineCore) -> None:
        if (output := engine.step()) is not None:
            self._hub.publish(engine.dp_rank, output.kv_events)

    def _drain(self) -> None:
        for engine in self.engines:
            while engine.has_unfinished_requests:
                self._step(engine)

    def _probe(self) -> None:
        for engine in self.engines:
            self._hub.publish(engine.dp_rank, engine.take_events())
        for tokens in self._probed_prompts():
            salt = self._random.choice(self._salts)
            self._ask(tokens, salt)

    def _probed_prompts(self) -> Iterator[list[int]]:
        """Prompts that were seen, beginnings of them, continuations, and one that never was."""
        random = self._random
        for prompt in random.sample(self._families, min(8, len(self._families))):
            yield prompt
            yield prompt[: random.randrange(len(prompt))]
            yield prompt + [random.randrange(TOKENS) for _ in range(2 * self._args.block_size)]
        yield [TOKENS + 1] * 4 * self._args.block_size

    def _ask(self, tokens: list[int], salt: str | None) -> None:
        keys = self._new_chain(salt).extend(tokens)
        question = {"tokens": tokens, "block_size": self._args.block_size, "salt": salt}
        self.transcript.lines.append(json.dumps(question).encode())
        counts = ((engine.dp_rank, engine.count_cached(keys)) for engine in self.engines)
        worker_id = self.transcript.worker_id
        expected = {f"{worker_id}/{rank}": count for rank, count in counts if count}
        self.transcript.expected.append(expected)

    def _snapshot(self, dp_rank: int):
        engine = self.engines[dp_rank]
        engine.take_events()
        return engine.cached_blocks()
