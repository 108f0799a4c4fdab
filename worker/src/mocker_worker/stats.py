"""What vLLM's metrics count, as plain numbers: per rank, per worker, and of the HTTP server.

Observing must cost next to nothing per token: tokens of one pass that waited equally long are
observed together, a request's histograms when it has ended, and text is made when somebody asks
for it (`server.metrics`). Times are seconds of the driver's clock; bounds are vLLM 0.33's.
"""

from bisect import bisect_left
from collections.abc import Sequence

from mocker_worker.engine import Request

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ITERATION_TOKENS_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N_BUCKETS = (1, 2, 5, 10, 20)
PREEMPTIONS_BUCKETS = (1, 2, 3, 4, 5, 10, 20)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
"""Values of the label `finished_reason` in vLLM."""
REJECTION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")
"""Values of the label `reason` of `vllm:admission_rejections`."""
HTTP_DURATION_BUCKETS_S = (0.1, 0.5, 1.0)
HTTP_FINE_DURATION_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0),
    *(4.5, 5.0, 7.5, 10.0, 30.0, 60.0),
)
UNCOUNTED_HANDLERS = frozenset(
    "/metrics /health /load /ping /version /server_info /live /ready".split()
)
"""Probes and scrapes, which vLLM leaves out of the HTTP metrics."""
HTTP_METHODS = frozenset("GET HEAD POST PUT PATCH DELETE OPTIONS".split())
DEFAULT_MAX_MODEL_LEN = 131_072


def request_tokens_buckets(max_model_len: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, ... up to the longest request."""
    bounds: list[int] = []
    scale = 1
    while scale <= max_model_len:
        bounds += [scale * digit for digit in (1, 2, 5) if scale * digit <= max_model_len]
        scale *= 10
    return tuple(bounds)


class Histogram:
    """Observations by bucket."""

    __slots__ = ("also", "bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        """Upper bounds, inclusive, ascending."""
        self.counts = [0] * (len(bounds) + 1)
        """Observations per bucket, not cumulative; the last bucket has no upper bound."""
        self.sum = 0.0
        self.also: Histogram | None = None
        """One that gets the same observations, with bounds of its own."""

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` observations of the same value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count
        if self.also is not None:
            self.also.observe(value, count)


class RequestGroup:
    """The answers that one API request asked for with `n`; counted when the last one ends."""

    __slots__ = ("_longest_answer_tokens", "_open_answers", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self._open_answers = n
        self._longest_answer_tokens: int | None = None

    def ended(self, answer_tokens: int | None) -> int | None:
        """Note the end of an answer, without its length if the client did not wait for it.

        Returns:
            The length of the longest answer after the last one; None before, or if all were
            given up.
        """
        self._open_answers -= 1
        if answer_tokens is not None:
            longest = self._longest_answer_tokens
            self._longest_answer_tokens = max(longest or 0, answer_tokens)
        return None if self._open_answers else self._longest_answer_tokens


class RequestTimes:
    """When a request came, left the queue, and got its first and latest token."""

    __slots__ = ("arrival_s", "first_token_s", "group", "last_token_s", "scheduled_s")

    def __init__(self, arrival_s: float, group: RequestGroup | None = None) -> None:
        self.arrival_s = arrival_s
        self.scheduled_s: float | None = None
        """Start of the first pass it took part in; None while it waits."""
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.group = group
        """Shared by the `n` answers to one prompt; None is a group of its own."""


class RankStats:
    """What vLLM's metrics count, for one rank.

    Args:
        max_model_len: Longest request in tokens; ends the buckets of token counts.
    """

    def __init__(self, max_model_len: int = DEFAULT_MAX_MODEL_LEN) -> None:
        tokens = request_tokens_buckets(max_model_len)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.local_cache_hit_tokens = 0
        """Prompt tokens found in this rank's prefix cache."""
        self.external_kv_tokens = 0
        """Prompt tokens whose KV came from a prefill worker."""
        self.external_cache_queries_tokens = 0
        """Prompt tokens that a prefill worker was asked for."""
        self.finished_requests = dict.fromkeys(FINISHED_REASONS, 0)
        """Requests by the reason why they ended."""
        self.iteration_tokens = Histogram(ITERATION_TOKENS_BUCKETS)
        self.request_prompt_tokens = Histogram(tokens)
        self.request_generation_tokens = Histogram(tokens)
        self.request_max_num_generation_tokens = Histogram(tokens)
        self.request_params_max_tokens = Histogram(tokens)
        self.request_prefill_kv_computed_tokens = Histogram(tokens)
        self.request_params_n = Histogram(PARAMS_N_BUCKETS)
        self.request_num_preemptions = Histogram(PREEMPTIONS_BUCKETS)
        self.ttft = Histogram(TTFT_BUCKETS_S)
        self.itl = Histogram(ITL_BUCKETS_S)
        self.time_per_output_token = Histogram(ITL_BUCKETS_S)
        self.e2e = Histogram(LATENCY_BUCKETS_S)
        self.queue = Histogram(LATENCY_BUCKETS_S)
        self.inference = Histogram(LATENCY_BUCKETS_S)
        self.prefill = Histogram(LATENCY_BUCKETS_S)
        self.decode = Histogram(LATENCY_BUCKETS_S)

    @property
    def computed_prompt_tokens(self) -> int:
        """Prompt tokens that this rank computed itself."""
        return self.prompt_tokens - self.local_cache_hit_tokens - self.external_kv_tokens

    def pass_started(self, num_tokens: int) -> None:
        """Count a pass that computes `num_tokens` tokens."""
        self.iteration_tokens.observe(num_tokens)

    def first_token(self, request: Request, times: RequestTimes) -> None:
        """Count a request's first token; `times.first_token_s` is when it was delivered."""
        if times.first_token_s is not None:
            self.ttft.observe(times.first_token_s - times.arrival_s)
        prompt, cached = request.num_prompt_tokens, request.num_cached_tokens
        self.generation_tokens += 1
        self.prompt_tokens += prompt
        self.local_cache_hit_tokens += cached
        if request.remote_prefill:
            # The engine computes the last token of a prompt itself, wherever the others are from.
            self.external_cache_queries_tokens += prompt - cached
            self.external_kv_tokens += max(prompt - 1 - cached, 0)

    def token_gaps(self, seconds: float, count: int) -> None:
        """Count `count` tokens that came so long after their requests' previous ones."""
        self.generation_tokens += count
        self.itl.observe(seconds, count)

    def finished(self, request: Request, reason: str, times: RequestTimes) -> None:
        """Count a request that has ended for a reason of `FINISHED_REASONS`.

        One that was aborted is counted, and not observed: nobody saw how long it takes.
        """
        self.finished_requests[reason] += 1
        aborted = reason == "abort"
        tokens = request.num_output_tokens
        group = times.group or RequestGroup(1)
        longest_tokens = group.ended(None if aborted else tokens)
        if longest_tokens is not None:
            self.request_params_n.observe(group.n)
            self.request_max_num_generation_tokens.observe(longest_tokens)
        if not aborted:
            self._observe_request(request, tokens)
            self._observe_phases(times, tokens)

    def _observe_request(self, request: Request, tokens: int) -> None:
        computed = request.num_prompt_tokens - request.num_cached_tokens
        if request.remote_prefill:
            computed = min(computed, 1)
        self.request_prefill_kv_computed_tokens.observe(computed)
        self.request_prompt_tokens.observe(request.num_prompt_tokens)
        self.request_generation_tokens.observe(tokens)
        self.request_params_max_tokens.observe(request.max_tokens)
        self.request_num_preemptions.observe(request.num_preemptions)

    def _observe_phases(self, times: RequestTimes, tokens: int) -> None:
        arrival_s, scheduled_s = times.arrival_s, times.scheduled_s
        first_s, last_s = times.first_token_s, times.last_token_s
        if scheduled_s is None or first_s is None or last_s is None:
            return
        decode_s = last_s - first_s
        self.e2e.observe(last_s - arrival_s)
        self.queue.observe(scheduled_s - arrival_s)
        self.prefill.observe(first_s - scheduled_s)
        self.decode.observe(decode_s)
        self.inference.observe(last_s - scheduled_s)
        self.time_per_output_token.observe(decode_s / (tokens - 1) if tokens > 1 else 0.0)


class HttpStats:
    """Requests answered by the HTTP server."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = {}
        """By handler, method and class of status such as `2xx`."""
        self.durations: dict[tuple[str, str], Histogram] = {}
        """By handler and method, in seconds until the whole answer was sent."""
        self.all_durations = Histogram(HTTP_FINE_DURATION_BUCKETS_S)
        """Of all handlers together, in finer steps."""

    def observe(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count an answer.

        Args:
            handler: The route's template, "none" where none matched.
            method: As in the request line; unusual ones are counted together.
            status: HTTP status.
            seconds: From the request's head to the end of the answer.
        """
        if handler in UNCOUNTED_HANDLERS:
            return
        if method not in HTTP_METHODS:
            method = "other"
        key = (handler, method, f"{status // 100}xx")
        self.requests[key] = self.requests.get(key, 0) + 1
        durations = self.durations.get((handler, method))
        if durations is None:
            durations = self.durations[handler, method] = Histogram(HTTP_DURATION_BUCKETS_S)
        durations.observe(seconds)
        self.all_durations.observe(seconds)


class WorkerStats:
    """What the API counts in front of all ranks."""

    def __init__(self) -> None:
        self.admission_rejections = dict.fromkeys(REJECTION_REASONS, 0)
        """Requests refused since the queue was full, by the limit they met."""

    def admission_rejected(self, reason: str) -> None:
        """Count a request refused because of a limit of `REJECTION_REASONS`."""
        self.admission_rejections[reason] += 1
