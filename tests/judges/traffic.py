"""Requests to a worker whose prompts have beginnings in common, and the judging of its cache.

A judge has seen all events once it knows the blocks of the latest prompt, as events are in order.
What it then says about another prompt must be what the worker finds cached when it is sent that
prompt (`usage.prompt_tokens_details.cached_tokens`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeAlias

import aiohttp
from programs import Consumer, Worker
from waiting import until

Judge: TypeAlias = Callable[[list[int]], Awaitable[dict[str, int]]]
"""Gives {"worker/rank": matched blocks} of a prompt."""

FIRST_TOKEN, LAST_TOKEN = 300, 340
CONCURRENCY, BATCH = 8, 5
"""HTTP requests at a time, and prompts in each of them: the engine sees them as requests."""


class Traffic:
    """Random requests; a seed, one sequence of prompts."""

    def __init__(self, worker: Worker, *, block_size: int, seed: int, ranks: int = 1) -> None:
        self._worker = worker
        self._block_size = block_size
        self._random = Random(seed)
        self._ranks = ranks
        self._families: list[list[int]] = []
        self.last_prompt: list[int] = []
        """The latest one that was sent to be judged."""

    async def greet(self, judge: Judge) -> None:
        """Return when the judge hears of every rank: what came before it listened is lost to it."""
        async with self._session() as http:
            for rank in range(self._ranks):
                place = f"{self._worker.worker_id}/{rank}"

                async def hears(rank: int = rank, place: str = place) -> bool:
                    prompt = self._tokens(3 * self._block_size)
                    await self._complete(http, [prompt], 1, rank)
                    return (await judge(prompt)).get(place, 0) == 3

                await until(hears, saying=f"events of {place} reach the judge")

    async def send(self, num_prompts: int) -> None:
        """Send random prompts, many at a time, and wait for the ends of the answers."""
        batches = [
            [self._prompt() for _ in range(min(BATCH, num_prompts - start))]
            for start in range(0, num_prompts, BATCH)
        ]
        gate = asyncio.Semaphore(CONCURRENCY)
        async with self._session() as http, asyncio.TaskGroup() as tasks:

            async def one(prompts: list[list[int]], max_tokens: int, rank: int) -> None:
                async with gate:
                    await self._complete(http, prompts, max_tokens, rank)

            for prompts in batches:
                rank = self._random.randrange(self._ranks)
                tasks.create_task(one(prompts, self._random.randint(1, 24), rank))

    async def remember(self) -> None:
        """Send one more prompt, so that it is surely cached."""
        self.last_prompt = self._prompt()
        async with self._session() as http:
            await self._complete(http, [self.last_prompt], 1, 0)

    async def known(self, judge: Judge) -> None:
        """Wait until the judge knows all blocks of the prompt that was sent last."""
        await self._see(judge, self.last_prompt, 0)

    async def judge(self, judge: Judge, num_probes: int) -> int:
        """Hold what the judge says against what the worker says; returns how often it was > 0."""
        async with self._session() as http:
            hits, prompt = 0, self._prompt()
            for rank in range(self._ranks):
                await self._complete(http, [prompt], 1, rank)
                await self._see(judge, prompt, rank)
            for number in range(num_probes):
                rank = number % self._ranks
                prompt = self._probe()
                said = (await judge(prompt)).get(f"{self._worker.worker_id}/{rank}", 0)
                cached = await self._complete(http, [prompt], 1, rank)
                usable = (len(prompt) - 1) // self._block_size
                assert cached == min(said, usable) * self._block_size, f"{said} blocks: {prompt}"
                hits += said > 0
                await self._see(judge, prompt, rank)
        return hits

    async def _see(self, judge: Judge, prompt: list[int], rank: int) -> None:
        """Wait until the judge knows all full blocks of a prompt that was just computed."""
        self.last_prompt = prompt
        place = f"{self._worker.worker_id}/{rank}"
        blocks = len(prompt) // self._block_size

        async def sees() -> bool:
            return (await judge(prompt)).get(place, 0) == blocks

        await until(sees, saying=f"{blocks} blocks of {place}: {await judge(prompt)}")

    async def _complete(
        self, http: aiohttp.ClientSession, prompts: list[list[int]], max_tokens: int, rank: int
    ) -> int:
        """Send prompts in one request; returns how many of their tokens were cached."""
        body = {"model": "mock", "prompt": prompts, "max_tokens": max_tokens}
        headers = {"X-data-parallel-rank": str(rank)} if self._ranks > 1 else {}
        async with http.post("/v1/completions", json=body, headers=headers) as answer:
            said: dict[str, Any] = await answer.json()
            assert answer.status == 200, said
        assert len(said["choices"]) == len(prompts)
        assert said["usage"]["prompt_tokens"] == sum(map(len, prompts))
        return int(said["usage"]["prompt_tokens_details"]["cached_tokens"])

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(self._worker.url)

    def _prompt(self) -> list[int]:
        random, families = self._random, self._families
        base = random.choice(families) if families and random.random() < 0.8 else []
        keep = base[: random.randint(0, len(base))] if random.random() < 0.5 else base
        new = self._tokens(random.randint(1, 12 * self._block_size))
        families.append((keep + new)[: 40 * self._block_size])
        del families[:-40]
        return families[-1]

    def _probe(self) -> list[int]:
        """A prompt that was sent, or its beginning, or one that goes on from it."""
        prompt = self._random.choice(self._families)
        kind = self._random.randrange(3)
        if kind == 0:
            return prompt
        if kind == 1:
            return prompt[: self._random.randint(1, len(prompt))]
        return prompt + self._tokens(self._block_size)

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(count)]


async def judged_to_the_end(
    worker: Worker, consumer: Consumer, *, num_prompts: int, block_size: int, ranks: int = 1
) -> None:
    """Let a judge say that a worker's cache is as it hears, and that it is withdrawn at the end."""

    async def judge(tokens: list[int]) -> dict[str, int]:
        scores: dict[str, int] = await consumer.ask(tokens=tokens)
        return scores

    traffic = Traffic(worker, block_size=block_size, seed=5, ranks=ranks)
    await traffic.greet(judge)
    await traffic.send(num_prompts)
    assert await traffic.judge(judge, 60) > 10
    last = traffic.last_prompt
    assert await judge(last)
    assert await worker.stop() == 0

    async def forgotten() -> bool:
        return await judge(last) == {}

    await until(forgotten, saying="the worker's blocks are withdrawn")
