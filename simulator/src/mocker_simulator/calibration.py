"""Fits the step-time model to measured requests.

First a linear regression: the time between a request's first and last token is the sum of its
passes, of which there are as many as tokens, and what they did follows from who else was running.
Then, as the regression knows nothing of queues, a descent that simulates the whole load and
compares when the requests of the fitted part get their first and last tokens.
"""

from collections.abc import Callable, Sequence
from math import isnan
from statistics import fmean

from mocker_protocol.engine_args import EngineArgs, StepTiming
from mocker_simulator.fleet import Fleet, FleetSpec, Outcome
from mocker_simulator.measured import Measured, replay_of
from mocker_simulator.routing import round_robin
from mocker_simulator.workload import Workload

Rates = tuple[float, float, float, float]
"""ms: base, per prompt token, per decoding request, per token of context."""


def step_timing(rates: Sequence[float]) -> StepTiming:
    """Return the timing model with these rates."""
    base, prefill, decode, kv = rates
    return StepTiming(
        type="step",
        base_ms=base,
        prefill_token_ms=prefill,
        decode_request_ms=decode,
        kv_token_ms=kv,
    )


def simulate(
    args: EngineArgs, timing: StepTiming, load: Workload, *, sampling: bool = False
) -> Outcome:
    """Run a load through one engine with this timing."""
    engine = args.model_copy(update={"timing_model": timing})
    return Fleet(FleetSpec(engine, 1), load, make_router=round_robin, sampling=sampling).run()


def calibrate(
    requests: list[Measured],
    args: EngineArgs,
    *,
    fitted: Callable[[int], bool] = lambda index: index % 2 == 0,
    rounds: int = 60,
) -> StepTiming:
    """Return the step-time model under which a simulation is closest to what was measured.

    Args:
        requests: In the order in which they were queued.
        args: The measured engine's arguments; the timing is replaced.
        fitted: By index, whose times may be looked at.
        rounds: Of the descent; each simulates the load at most nine times.
    """
    chosen = [index for index in range(len(requests)) if fitted(index)]
    rates = regress(requests, chosen)
    load = replay_of(requests)

    def loss(candidate: Sequence[float]) -> float:
        return distance(simulate(args, step_timing(candidate), load), requests, chosen)

    return step_timing(descend(loss, rates, rounds))


def distance(outcome: Outcome, requests: list[Measured], chosen: Sequence[int]) -> float:
    """Return how far the first tokens, the last ones, and their means are from the measured."""
    total = 0.0
    ours, theirs = [outcome.records[i] for i in chosen], [requests[i] for i in chosen]
    for record, request in zip(ours, theirs, strict=True):
        if record.first_token_ms is None or record.finish_ms is None:
            return float("inf")
        total += abs(record.first_token_ms - request.first_token_ms)
        total += abs(record.finish_ms - request.last_token_ms)
    scale = sum(request.last_token_ms for request in theirs) or 1.0
    means = relative(_mean([r.ttft_ms for r in ours]), _mean([r.ttft_ms for r in theirs]))
    means += relative(_mean([r.tpot_ms for r in ours]), _mean([r.tpot_ms for r in theirs]))
    return total / scale + means


def relative(ours: float, theirs: float) -> float:
    """Return the relative error; the absolute one if theirs is 0."""
    return abs(ours - theirs) / (theirs or 1.0)


def regress(requests: list[Measured], chosen: Sequence[int]) -> Rates:
    """Return the rates that explain the spans from first to last tokens best; none is negative."""
    rows, spans = [], []
    for index in chosen:
        request = requests[index]
        if request.output_tokens > 1:
            rows.append(_work_between(request.first_token_ms, request.last_token_ms, requests))
            rows[-1][0] = request.output_tokens - 1.0
            spans.append(request.last_token_ms - request.first_token_ms)
    active = [0, 1, 2, 3]
    while True:
        solution = least_squares([[row[i] for i in active] for row in rows], spans)
        if all(rate >= 0 for rate in solution) or len(active) == 1:
            break
        del active[solution.index(min(solution))]
    rates = dict(zip(active, solution, strict=True))
    base, prefill, decode, kv = (max(rates.get(i, 0.0), 0.0) for i in range(4))
    return base, prefill, decode, kv


def _work_between(start: float, end: float, requests: list[Measured]) -> list[float]:
    """Return [0, prompt tokens, tokens, contexts summed over tokens] of a stretch of time."""
    work = [0.0, 0.0, 0.0, 0.0]
    for other in requests:
        work[1] += other.prompt_tokens * _overlap(
            start, end, other.scheduled_ms, other.first_token_ms
        )
        share = _overlap(start, end, other.first_token_ms, other.last_token_ms)
        if share:
            span = other.last_token_ms - other.first_token_ms
            middle = (max(start, other.first_token_ms) + min(end, other.last_token_ms)) / 2
            tokens = share * (other.output_tokens - 1)
            done = (middle - other.first_token_ms) / span * other.output_tokens
            work[2] += tokens
            work[3] += tokens * (other.prompt_tokens + done)
    return work


def _overlap(start: float, end: float, other_start: float, other_end: float) -> float:
    """Return the share of the second stretch that lies in the first."""
    if other_end <= other_start:
        return 0.0
    return max(min(end, other_end) - max(start, other_start), 0.0) / (other_end - other_start)


def least_squares(rows: list[list[float]], values: list[float]) -> list[float]:
    """Solve the normal equations by elimination; columns are scaled, and slightly damped."""
    width = len(rows[0])
    scales = [max(abs(row[i]) for row in rows) or 1.0 for i in range(width)]
    scaled = [[row[i] / scales[i] for i in range(width)] for row in rows]
    matrix = [
        [sum(row[i] * row[j] for row in scaled) + (1e-9 if i == j else 0.0) for j in range(width)]
        + [sum(row[i] * value for row, value in zip(scaled, values, strict=True))]
        for i in range(width)
    ]
    for column in range(width):
        pivot = max(range(column, width), key=lambda i, c=column: abs(matrix[i][c]))  # type: ignore[misc]
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for i in range(width):
            if i != column:
                factor = matrix[i][column] / matrix[column][column]
                matrix[i] = [a - factor * b for a, b in zip(matrix[i], matrix[column], strict=True)]
    return [matrix[i][width] / matrix[i][i] / scales[i] for i in range(width)]


def descend(loss: Callable[[Sequence[float]], float], start: Rates, rounds: int) -> Sequence[float]:
    """Try each rate a little larger and smaller, keep what helps, and halve the steps."""
    best = [rate if rate > 0 else small for rate, small in zip(start, _SMALL, strict=True)]
    lowest, step = loss(best), 0.3
    for _ in range(rounds):
        improved = False
        for i in range(len(best)):
            for factor in (1 + step, 1 / (1 + step)):
                candidate = [*best[:i], best[i] * factor, *best[i + 1 :]]
                if (found := loss(candidate)) < lowest:
                    best, lowest, improved = candidate, found, True
                    break
        if not improved:
            step /= 2
            if step < 0.002:
                break
    return best


_SMALL: Rates = (0.1, 1e-3, 1e-3, 1e-6)
"""Where the descent starts for a rate that the regression finds to be nothing."""


def _mean(values: Sequence[float]) -> float:
    return fmean(value for value in values if not isnan(value))
