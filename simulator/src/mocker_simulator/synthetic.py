"""Synthetic load: requests of one size, evenly spaced, at random, or by a number of clients."""

from dataclasses import dataclass
from itertools import count, islice
from math import ceil
from random import Random

from mocker_simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class SyntheticLoad:
    """What to generate."""

    prompt_tokens: int
    output_tokens: int
    requests: int
    interval_ms: float = 0.0
    """Between two requests, or their mean if `poisson`."""
    poisson: bool = False
    shared_prefix_ratio: float = 0.0
    """Share of each prompt, in whole blocks rounded up, that it has in common with its group."""
    prefix_groups: int = 1
    seed: int = 0


def generate(load: SyntheticLoad, block_size: int) -> Workload:
    """Generate the requests; the same load gives the same requests."""
    random = Random(load.seed)
    num_blocks = -(-load.prompt_tokens // block_size)
    shared_blocks = min(ceil(round(num_blocks * load.shared_prefix_ratio, 9)), num_blocks)
    unique = count()
    groups = [list(islice(unique, shared_blocks)) for _ in range(max(load.prefix_groups, 1))]
    ids: list[list[int]] = []
    arrivals: list[float] = []
    now = 0.0
    for _ in range(load.requests):
        arrivals.append(now)
        now += random.expovariate(1 / load.interval_ms) if load.poisson else load.interval_ms
        own = islice(unique, num_blocks - shared_blocks)
        ids.append([*random.choice(groups), *own])
    return Workload(
        arrivals_ms=arrivals,
        prompt_tokens=[load.prompt_tokens] * load.requests,
        output_tokens=[load.output_tokens] * load.requests,
        block_ids=ids,
        trace_block_size=block_size,
    )
