"""How long a forward pass takes (NVIDIA Dynamo's mocker, 0.7 to 1.6).

The polynomials are fits of H200 sweeps of Dynamo's planner. Times are simulated milliseconds
before any speedup.
"""

from typing import Protocol

from mocker_protocol.engine_args import EngineArgs, FixedTiming
from mocker_protocol.names import WorkerType
from mocker_worker.engine.pass_load import PassLoad

MIN_DECODE_MS = 1.0


class StepTiming(Protocol):
    """Price of a pass's two kinds of work. Work that is not there costs nothing."""

    def prefill_ms(self, new_tokens: int) -> float:
        """Return the time to compute `new_tokens` prompt tokens, of all requests together."""

    def decode_ms(self, context_tokens: int, capacity_tokens: int) -> float:
        """Return the time of one decode step of requests whose contexts add up to this."""


class Polynomial:
    """Quadratic in the new tokens, and in the share of the KV capacity that is decoded from."""

    def prefill_ms(self, new_tokens: int) -> float:
        """Return the time to compute `new_tokens` prompt tokens; 0 for none."""
        if new_tokens <= 0:
            return 0.0
        return 4.209989e-07 * new_tokens**2 + 1.518344e-02 * new_tokens + 16.50142

    def decode_ms(self, context_tokens: int, capacity_tokens: int) -> float:
        """Return the time of one decode step, at least 1 ms; contexts above capacity count as 1."""
        share = min(context_tokens / capacity_tokens, 1.0)
        return max(-25.74 * share**2 + 54.01 * share + 5.74, MIN_DECODE_MS)


class Fixed:
    """The same time for every pass that does such work."""

    def __init__(self, prefill_ms: float, decode_ms: float) -> None:
        self._prefill_ms = prefill_ms
        self._decode_ms = decode_ms

    def prefill_ms(self, new_tokens: int) -> float:
        """Return the fixed prefill time; 0 for no tokens."""
        return self._prefill_ms if new_tokens > 0 else 0.0

    def decode_ms(self, context_tokens: int, capacity_tokens: int) -> float:
        """Return the fixed decode time."""
        return self._decode_ms


class PassTimer:
    """Prices whole passes for one set of engine arguments."""

    def __init__(self, args: EngineArgs) -> None:
        self._timing = _step_timing(args)
        self._capacity_tokens = args.kv_capacity_tokens
        self._speedup = args.speedup_ratio
        self._decode_speedup = args.speedup_ratio * args.decode_speedup_ratio
        self._decodes = args.worker_type is not WorkerType.PREFILL

    def duration_ms(self, load: PassLoad) -> float:
        """Return the pass's simulated length after the speedup ratios."""
        if self._speedup == 0:
            return 0.0
        total_ms = 0.0
        if load.prefill_prompts.count:
            total_ms = self._timing.prefill_ms(_billed_tokens(load)) / self._speedup
        if load.decode_contexts.count and self._decodes:
            contexts = load.decode_contexts.total
            decode_ms = self._timing.decode_ms(contexts, self._capacity_tokens)
            total_ms += decode_ms / self._decode_speedup
        return total_ms


def _billed_tokens(load: PassLoad) -> int:
    """Return the new prompt tokens as Dynamo counts them: requests times integer means.

    At most one token per request off the exact sum; with it, pass times agree to the nanosecond.
    """
    count, cached = load.prefill_prompts.count, load.prefill_kv_tokens
    mean_length = (cached + load.prefill_tokens) // count
    return count * (mean_length - cached // count)


def _step_timing(args: EngineArgs) -> StepTiming:
    if isinstance(args.timing_model, FixedTiming):
        return Fixed(args.timing_model.prefill_ms, args.timing_model.decode_ms)
    return Polynomial()
