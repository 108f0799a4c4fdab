"""What the frontend measures, under the names that Dynamo's planner reads.

Plain counters in memory: the hot path pays one bisection per chunk. Time is an argument (monotonic
seconds). Every series exists from the start with 0, because a planner takes an absent series for
"unknown" and skips its tick.
"""

from bisect import bisect_left
from collections import Counter
from enum import StrEnum
from itertools import accumulate

from mocker_frontend.sse import Usage

_DURATION_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ITL_BUCKETS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_SHARE_BUCKETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_LENGTH_BUCKETS_TOKENS = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


class Endpoint(StrEnum):
    """Values of the `endpoint` label (Dynamo's words)."""

    COMPLETIONS = "completions"
    CHAT_COMPLETIONS = "chat_completions"


class RequestType(StrEnum):
    """Values of the `request_type` label (Dynamo's words)."""

    STREAM = "stream"
    UNARY = "unary"


class Outcome(StrEnum):
    """Values of the `status` label."""

    SUCCESS = "success"
    ERROR = "error"
    CANCELLED = "cancelled"
    """The client went away."""


class Histogram:
    """A Prometheus histogram that can take many equal observations at once."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Record `count` observations of `value`."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self._counts)

    @property
    def buckets(self) -> list[tuple[str, int]]:
        """Upper bounds with cumulative counts, `+Inf` last."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))


class Telemetry:
    """Everything that is counted since the start of the process."""

    def __init__(self) -> None:
        self.requests: dict[tuple[Endpoint, RequestType, Outcome], int] = {
            (endpoint, kind, outcome): 0
            for endpoint in Endpoint
            for kind in RequestType
            for outcome in Outcome
        }
        self.requests_started = 0
        self.inflight = 0
        self.queued = 0
        """Requests without a first token yet."""
        self.local_prefills = 0
        """Requests that were meant to be split and were not."""
        self.retries: Counter[str] = Counter(prefill=0, decode=0, aggregated=0)
        """Attempts that failed before the first byte, by role of the worker."""
        self.time_to_first_token_s = Histogram(_DURATION_BUCKETS_S)
        self.inter_token_latency_s = Histogram(_ITL_BUCKETS_S)
        self.request_duration_s = Histogram(_DURATION_BUCKETS_S)
        self.input_sequence_tokens = Histogram(_LENGTH_BUCKETS_TOKENS)
        self.output_sequence_tokens = Histogram(_LENGTH_BUCKETS_TOKENS)
        self.kv_hit_rate = Histogram(_SHARE_BUCKETS)
        """Share of each prompt that was in the cache of the worker that computed it."""

    def prompt_computed(self, usage: Usage | None) -> None:
        """Record what the worker that computed a prompt says about it."""
        if usage is not None and usage.prompt_tokens > 0 and usage.cached_tokens is not None:
            self.kv_hit_rate.observe(usage.cached_tokens / usage.prompt_tokens)


class RequestRecord:
    """Measures one request from its start to its end."""

    def __init__(
        self,
        telemetry: Telemetry,
        endpoint: Endpoint,
        kind: RequestType,
        *,
        now: float,
        num_choices: int = 1,
    ) -> None:
        """Open the record; tokens of several choices come at once, each choice at its own pace."""
        self._telemetry = telemetry
        self._labels = (endpoint, kind)
        self._started_s = self._last_token_s = now
        self._tokens = 0
        self._num_choices = self._firsts_to_come = num_choices
        telemetry.requests_started += 1
        telemetry.inflight += 1
        telemetry.queued += 1

    def tokens(self, count: int, *, now: float) -> None:
        """Record that `count` more tokens have arrived."""
        if count <= 0:
            return
        telemetry, gap_s = self._telemetry, now - self._last_token_s
        firsts = min(count, self._firsts_to_come)
        self._firsts_to_come -= firsts
        if not self._tokens:
            telemetry.queued -= 1
            telemetry.time_to_first_token_s.observe(gap_s)
            gap_s = 0.0
        if followers := count - firsts:
            latency_s = gap_s * self._num_choices / count
            telemetry.inter_token_latency_s.observe(latency_s, followers)
        self._tokens += count
        self._last_token_s = now

    def prompt_computed(self, usage: Usage | None) -> None:
        """Record what the worker says about the prompt, which it has computed itself."""
        self._telemetry.prompt_computed(usage)

    def finish(self, outcome: Outcome, usage: Usage | None, *, now: float) -> None:
        """Close the record; lengths and duration count only for requests that succeeded."""
        telemetry = self._telemetry
        telemetry.inflight -= 1
        if not self._tokens:
            telemetry.queued -= 1
        telemetry.requests[(*self._labels, outcome)] += 1
        if outcome is not Outcome.SUCCESS:
            return
        telemetry.request_duration_s.observe(now - self._started_s)
        if usage is not None:
            telemetry.input_sequence_tokens.observe(usage.prompt_tokens)
            telemetry.output_sequence_tokens.observe(usage.completion_tokens)
        elif self._tokens:
            telemetry.output_sequence_tokens.observe(self._tokens)
