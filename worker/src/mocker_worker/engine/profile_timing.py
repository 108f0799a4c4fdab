"""Pass times from measured points (Dynamo's profile data): linear and bilinear, extrapolated.

Between two grid lines a decode step's time is bilinear in the sum of the contexts and their mean.
Both grow by the same steps while the same requests decode, so it is a quadratic in the number of
the pass until a grid line is crossed.
"""

from bisect import bisect_right
from math import floor, inf

from mocker_protocol.engine_args import ProfileTiming
from mocker_worker.engine.decode_run import FOREVER, DecodeCost
from mocker_worker.engine.pass_load import BilledLoad

MIN_DECODE_MS = 1.0


class Profile:
    """Interpolates a profile. Mean contexts are whole tokens, rounded down, as in Dynamo."""

    def __init__(self, model: ProfileTiming) -> None:
        self._model = model

    def prefill_ms(self, load: BilledLoad) -> float:
        """Return the time of the new tokens, at least 0; 0 if they round to none."""
        if load.new_tokens <= 0:
            return 0.0
        axis, times = self._model.prefill_isl, self._model.prefill_ttft_ms
        at = _cell(axis, load.new_tokens)
        slope = (times[at + 1] - times[at]) / (axis[at + 1] - axis[at])
        return max(times[at] + slope * (load.new_tokens - axis[at]), 0.0)

    def decode_ms(self, load: BilledLoad) -> float:
        """Return the time of one decode step, at least 1 ms."""
        return self.decode_cost(load.num_decodes, load.decode_kv_tokens).constant

    def decode_cost(self, num_requests: int, context_tokens: int) -> DecodeCost:
        """Return the quadratic that holds up to the next grid line."""
        kv, mean = context_tokens, context_tokens // num_requests
        row = _cell(self._model.decode_active_kv_tokens, kv)
        column = _cell(self._model.decode_context_length, mean)
        corner, by_kv, by_mean, by_both = self._plane(row, column)
        x = kv - self._model.decode_active_kv_tokens[row]
        y = mean - self._model.decode_context_length[column]
        k = num_requests
        cost = DecodeCost(
            corner + by_kv * x + by_mean * y + by_both * x * y,
            by_kv * k + by_mean + by_both * (x + k * y),
            by_both * k,
            min(
                _steps(self._model.decode_active_kv_tokens, row, kv, k),
                _steps(self._model.decode_context_length, column, mean, 1),
            ),
        )
        return cost if _stays_above(cost, MIN_DECODE_MS) else _single(cost)

    def _plane(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Return a cell's value at its first corner, its two slopes, and that of their product."""
        model = self._model
        height = model.decode_active_kv_tokens[row + 1] - model.decode_active_kv_tokens[row]
        width = model.decode_context_length[column + 1] - model.decode_context_length[column]
        (a, b), (c, d) = (r[column : column + 2] for r in model.decode_itl_ms[row : row + 2])
        return a, (c - a) / height, (b - a) / width, (a - b - c + d) / (height * width)


def _cell(axis: tuple[float, ...], value: float) -> int:
    """Return the index of the interval that holds a value, or the nearest one."""
    return min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)


def _steps(axis: tuple[float, ...], cell: int, value: int, step: int) -> int:
    """Return how many passes a growing value stays in its interval, the present one included."""
    end = axis[cell + 1] if cell + 2 < len(axis) else inf
    return FOREVER if end == inf else max(floor((end - value) / step), 0) + 1


def _stays_above(cost: DecodeCost, floor_ms: float) -> bool:
    """Whether every pass takes longer than the least that is allowed."""
    grows = cost.linear >= 0 and cost.quadratic >= 0
    last = cost.num_passes - 1
    last_ms = cost.constant + last * (cost.linear + last * cost.quadratic)
    falls_evenly = cost.quadratic <= 0 and last_ms >= floor_ms
    return cost.constant >= floor_ms and (grows or falls_evenly)


def _single(cost: DecodeCost) -> DecodeCost:
    return DecodeCost(max(cost.constant, MIN_DECODE_MS), 0.0, 0.0, 1)
