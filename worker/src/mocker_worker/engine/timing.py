"""How long a forward pass takes.

The polynomials are fits of H200 sweeps of Dynamo's planner (its mocker, 0.7 to 1.6). Times are
simulated milliseconds before any speedup. Every model's decode time is a quadratic in the number
of the pass, as long as the same requests decode; `DecodeCost` says for how many passes.
"""

from typing import Protocol

from mocker_protocol.engine_args import (
    EngineArgs,
    FixedTiming,
    PolynomialTiming,
    ProfileTiming,
    StepTiming,
)
from mocker_protocol.names import WorkerType
from mocker_worker.engine.decode_run import FOREVER, DecodeCost
from mocker_worker.engine.pass_load import BilledLoad, PassLoad
from mocker_worker.engine.profile_timing import Profile

MIN_DECODE_MS = 1.0


class PassTiming(Protocol):
    """Price of a pass. Work that is not there costs nothing."""

    def prefill_ms(self, load: BilledLoad) -> float:
        """Return the time for the prompt tokens of a pass that has some."""

    def decode_ms(self, load: BilledLoad) -> float:
        """Return the time for the decoding requests of a pass that has some."""

    def decode_cost(self, num_requests: int, context_tokens: int) -> DecodeCost:
        """Return the time of passes that only decode, one token more per request in each."""


class Polynomial:
    """Quadratic in the new tokens, and in the share of the KV capacity that is decoded from."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens

    def prefill_ms(self, load: BilledLoad) -> float:
        """Return the time of all prompts together; 0 if their tokens round to none."""
        tokens = load.new_tokens
        if tokens <= 0:
            return 0.0
        return 4.209989e-07 * tokens**2 + 1.518344e-02 * tokens + 16.50142

    def decode_ms(self, load: BilledLoad) -> float:
        """Return the time of one decode step, at least 1 ms; contexts above capacity count as 1."""
        return self._step_ms(load.decode_kv_tokens)

    def decode_cost(self, num_requests: int, context_tokens: int) -> DecodeCost:
        """Return the polynomial in the pass's number, until the contexts exceed the capacity."""
        room = self._capacity_tokens - context_tokens
        first_ms = self._step_ms(context_tokens)
        if room < 0:
            return DecodeCost(first_ms, 0.0, 0.0, FOREVER)
        share, growth = context_tokens / self._capacity_tokens, num_requests / self._capacity_tokens
        return DecodeCost(
            first_ms,
            (54.01 - 2 * 25.74 * share) * growth,
            -25.74 * growth**2,
            room // num_requests + 1,
        )

    def _step_ms(self, context_tokens: int) -> float:
        share = min(context_tokens / self._capacity_tokens, 1.0)
        return max(-25.74 * share**2 + 54.01 * share + 5.74, MIN_DECODE_MS)


class Fixed:
    """The same time for every pass that does such work."""

    def __init__(self, prefill_ms: float, decode_ms: float) -> None:
        self._prefill_ms = prefill_ms
        self._decode_ms = decode_ms

    def prefill_ms(self, load: BilledLoad) -> float:
        """Return the fixed prefill time; 0 if the tokens round to none."""
        return self._prefill_ms if load.new_tokens > 0 else 0.0

    def decode_ms(self, load: BilledLoad) -> float:
        """Return the fixed decode time."""
        return self._decode_ms

    def decode_cost(self, num_requests: int, context_tokens: int) -> DecodeCost:
        """Return the fixed decode time for ever."""
        return DecodeCost(self._decode_ms, 0.0, 0.0, FOREVER)


class Step:
    """Linear in all that a pass does; what `mocker-simulator calibrate` fits."""

    def __init__(self, model: StepTiming) -> None:
        self._model = model

    def prefill_ms(self, load: BilledLoad) -> float:
        """Return the base and the time of the prompt tokens, computed and read."""
        model = self._model
        return (
            model.base_ms
            + model.prefill_token_ms * load.prefill_tokens
            + model.kv_token_ms * load.prefill_kv_tokens
        )

    def decode_ms(self, load: BilledLoad) -> float:
        """Return the time of the decoding requests, with the base if nobody else pays it."""
        base_ms = 0.0 if load.num_prefills else self._model.base_ms
        return base_ms + self._work_ms(load.num_decodes, load.decode_kv_tokens)

    def decode_cost(self, num_requests: int, context_tokens: int) -> DecodeCost:
        """Return the line along which contexts grow."""
        first_ms = self._model.base_ms + self._work_ms(num_requests, context_tokens)
        return DecodeCost(first_ms, self._model.kv_token_ms * num_requests, 0.0, FOREVER)

    def _work_ms(self, num_requests: int, context_tokens: int) -> float:
        model = self._model
        return model.decode_request_ms * num_requests + model.kv_token_ms * context_tokens


class PassTimer:
    """Prices whole passes for one set of engine arguments."""

    def __init__(self, args: EngineArgs) -> None:
        self._timing = _pass_timing(args)
        self._speedup = args.speedup_ratio
        self._decode_speedup = args.speedup_ratio * args.decode_speedup_ratio
        self._decodes = args.worker_type is not WorkerType.PREFILL

    def duration_ms(self, load: PassLoad) -> float:
        """Return the pass's simulated length after the speedup ratios."""
        if self._speedup == 0:
            return 0.0
        total_ms, billed = 0.0, load.charge()
        if billed.num_prefills:
            total_ms = self._timing.prefill_ms(billed) / self._speedup
        if billed.num_decodes and self._decodes:
            total_ms += self._timing.decode_ms(billed) / self._decode_speedup
        return total_ms

    def decode_cost(self, num_requests: int, context_tokens: int) -> DecodeCost:
        """Return the simulated length of passes that only decode, after the speedup ratios."""
        if self._speedup == 0 or not self._decodes:
            return DecodeCost(0.0, 0.0, 0.0, FOREVER)
        cost = self._timing.decode_cost(num_requests, context_tokens)
        return cost if self._decode_speedup == 1 else cost.scaled(1 / self._decode_speedup)


def _pass_timing(args: EngineArgs) -> PassTiming:
    match args.timing_model:
        case FixedTiming(prefill_ms=prefill_ms, decode_ms=decode_ms):
            return Fixed(prefill_ms, decode_ms)
        case StepTiming() as model:
            return Step(model)
        case ProfileTiming() as model:
            return Profile(model)
        case PolynomialTiming():
            return Polynomial(args.kv_capacity_tokens)
