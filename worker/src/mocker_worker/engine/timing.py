"""How long a forward pass takes (NVIDIA Dynamo's mocker, 0.7 to 1.6).

The polynomials are fits of H200 sweeps of Dynamo's planner. Times are simulated milliseconds
before any speedup. Every model's decode time is a quadratic in the number of the pass, as long
as the same requests decode; `DecodeCost` says for how many passes.
"""

import sys
from typing import Protocol

from mocker_protocol.engine_args import EngineArgs, FixedTiming
from mocker_protocol.names import WorkerType
from mocker_worker.engine.decode_run import DecodeCost
from mocker_worker.engine.pass_load import PassLoad

MIN_DECODE_MS = 1.0
FOREVER = sys.maxsize


class StepTiming(Protocol):
    """Price of a pass's two kinds of work. Work that is not there costs nothing."""

    def prefill_ms(self, new_tokens: int) -> float:
        """Return the time to compute `new_tokens` prompt tokens, of all requests together."""

    def decode_ms(self, num_requests: int, context_tokens: int) -> float:
        """Return the time of one decode step of requests whose contexts add up to this."""

    def decode_cost(self, num_requests: int, context_tokens: int) -> DecodeCost:
        """Return the time of decode steps from here on, one token more per request in each."""


class Polynomial:
    """Quadratic in the new tokens, and in the share of the KV capacity that is decoded from."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens

    def prefill_ms(self, new_tokens: int) -> float:
        """Return the time to compute `new_tokens` prompt tokens; 0 for none."""
        if new_tokens <= 0:
            return 0.0
        return 4.209989e-07 * new_tokens**2 + 1.518344e-02 * new_tokens + 16.50142

    def decode_ms(self, num_requests: int, context_tokens: int) -> float:
        """Return the time of one decode step, at least 1 ms; contexts above capacity count as 1."""
        share = min(context_tokens / self._capacity_tokens, 1.0)
        return max(-25.74 * share**2 + 54.01 * share + 5.74, MIN_DECODE_MS)

    def decode_cost(self, num_requests: int, context_tokens: int) -> DecodeCost:
        """Return the polynomial in the pass's number, until the contexts exceed the capacity."""
        room = self._capacity_tokens - context_tokens
        first_ms = self.decode_ms(num_requests, context_tokens)
        if room < 0:
            return DecodeCost(first_ms, 0.0, 0.0, FOREVER)
        share, growth = context_tokens / self._capacity_tokens, num_requests / self._capacity_tokens
        return DecodeCost(
            first_ms,
            (54.01 - 2 * 25.74 * share) * growth,
            -25.74 * growth**2,
            room // num_requests + 1,
        )


class Fixed:
    """The same time for every pass that does such work."""

    def __init__(self, prefill_ms: float, decode_ms: float) -> None:
        self._prefill_ms = prefill_ms
        self._decode_ms = decode_ms

    def prefill_ms(self, new_tokens: int) -> float:
        """Return the fixed prefill time; 0 for no tokens."""
        return self._prefill_ms if new_tokens > 0 else 0.0

    def decode_ms(self, num_requests: int, context_tokens: int) -> float:
        """Return the fixed decode time."""
        return self._decode_ms

    def decode_cost(self, num_requests: int, context_tokens: int) -> DecodeCost:
        """Return the fixed decode time for ever."""
        return DecodeCost(self._decode_ms, 0.0, 0.0, FOREVER)


class PassTimer:
    """Prices whole passes for one set of engine arguments."""

    def __init__(self, args: EngineArgs) -> None:
        self._timing = _step_timing(args)
        self._speedup = args.speedup_ratio
        self._decode_speedup = args.speedup_ratio * args.decode_speedup_ratio
        self._decodes = args.worker_type is not WorkerType.PREFILL

    def duration_ms(self, load: PassLoad) -> float:
        """Return the pass's simulated length after the speedup ratios."""
        if self._speedup == 0:
            return 0.0
        total_ms, billed = 0.0, load.billed
        if billed.num_prefills:
            total_ms = self._timing.prefill_ms(billed.new_tokens) / self._speedup
        if billed.num_decodes and self._decodes:
            decode_ms = self._timing.decode_ms(billed.num_decodes, billed.decode_kv_tokens)
            total_ms += decode_ms / self._decode_speedup
        return total_ms

    def decode_cost(self, num_requests: int, context_tokens: int) -> DecodeCost:
        """Return the simulated length of passes that only decode, after the speedup ratios."""
        if self._speedup == 0 or not self._decodes:
            return DecodeCost(0.0, 0.0, 0.0, FOREVER)
        cost = self._timing.decode_cost(num_requests, context_tokens)
        return cost if self._decode_speedup == 1 else cost.scaled(1 / self._decode_speedup)


def _step_timing(args: EngineArgs) -> StepTiming:
    if isinstance(args.timing_model, FixedTiming):
        return Fixed(args.timing_model.prefill_ms, args.timing_model.decode_ms)
    return Polynomial(args.kv_capacity_tokens)
