"""What a worker's metrics must say of themselves, and of what clients were given.

All that is added up twice must agree, rank by rank, and a worker that has nothing to do must look
as it did before it had.
"""

import math
import re
from collections.abc import Sequence

from rude_clients import Given

_SERIES = re.compile(r"^(\w[\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_GAUGE = re.compile(r"^# TYPE (\S+) gauge$", re.MULTILINE)
_REMEMBERING = ("process_", "python_", "hit_rate", "throughput", "_created")
"""Gauges that tell of the past."""
_PER_ANSWER = (
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prompt_tokens"),
    *("request_inference_time_seconds", "request_prefill_time_seconds"),
    *("request_decode_time_seconds", "request_time_per_output_token_seconds"),
    *("request_generation_tokens", "request_params_max_tokens", "request_num_preemptions"),
    *("request_prefill_kv_computed_tokens",),
)


class Accounts:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for name, labels, value in _SERIES.findall(text):
            sample = dict(_LABEL.findall(labels)), float(value)
            self._samples.setdefault(name, []).append(sample)
        self._gauges = _GAUGE.findall(text)

    def total(self, name: str, /, **labels: str) -> float:
        """Return the sum of all series of a name that have these labels."""
        return sum(value for found, value in self._samples[name] if labels.items() <= found.items())

    @property
    def gauges(self) -> dict[str, float]:
        """Every gauge of the present by its series."""
        return {
            f"{name}{sorted(labels.items())}": value
            for name in self._gauges
            if not any(part in name for part in _REMEMBERING)
            for labels, value in self._samples[name]
        }

    @property
    def engines(self) -> Sequence[str]:
        """Labels of the ranks."""
        return [labels["engine"] for labels, _ in self._samples["vllm:num_requests_running"]]

    def assert_at_rest(self, start: "Accounts") -> None:
        """Compare all gauges with a scrape from before the first request."""
        differing = {
            series: (start.gauges[series], value)
            for series, value in self.gauges.items()
            if value != start.gauges[series]
        }
        assert not differing, differing
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert self.total(f"vllm:{name}") == 0

    def assert_sums_agree(self) -> None:
        """Compare what the metrics of each rank, at rest, say about the same things."""
        for engine in self.engines:
            self._assert_rank_agrees(engine)
        if "sglang:num_requests_total" in self._samples:
            for ours, theirs in (
                ("generation_tokens_total", "generation_tokens_total"),
                ("prompt_tokens_total", "prompt_tokens_total"),
                ("request_success_total", "num_requests_total"),
                ("time_to_first_token_seconds_count", "time_to_first_token_seconds_count"),
                ("inter_token_latency_seconds_count", "inter_token_latency_seconds_count"),
                ("e2e_request_latency_seconds_count", "e2e_request_latency_seconds_count"),
            ):
                assert self.total(f"vllm:{ours}") == self.total(f"sglang:{theirs}"), theirs

    def _assert_rank_agrees(self, engine: str) -> None:
        def total(name: str, **labels: str) -> float:
            return self.total(f"vllm:{name}", engine=engine, **labels)

        ended = total("request_success_total")
        aborted = total("request_success_total", finished_reason="abort")
        for name in _PER_ANSWER:
            assert total(f"{name}_count") == ended - aborted, name
        firsts = total("time_to_first_token_seconds_count")
        gaps = total("inter_token_latency_seconds_count")
        assert firsts + gaps == total("generation_tokens_total")
        assert ended - aborted <= firsts <= ended
        assert total("request_params_n_count") == total("request_max_num_generation_tokens_count")
        for name, parts in (
            ("prompt_tokens_total", "prompt_tokens_by_source_total"),
            ("prompt_tokens_cached_total", "prompt_tokens_cached_by_source_total"),
        ):
            assert total(name) == total(parts), parts
        for part, whole in (
            ("request_generation_tokens_sum", "generation_tokens_total"),
            ("request_prompt_tokens_sum", "prompt_tokens_total"),
            ("request_max_num_generation_tokens_sum", "generation_tokens_total"),
            ("request_num_preemptions_sum", "num_preemptions_total"),
            ("prompt_tokens_cached_total", "prompt_tokens_total"),
            ("prefix_cache_hits_total", "prefix_cache_queries_total"),
            ("external_prefix_cache_hits_total", "external_prefix_cache_queries_total"),
        ):
            assert total(part) <= total(whole), part
        for whole, parts in (
            ("e2e_request_latency", ("request_queue_time", "request_inference_time")),
            ("request_inference_time", ("request_prefill_time", "request_decode_time")),
        ):
            added = sum(total(f"{part}_seconds_sum") for part in parts)
            assert math.isclose(total(f"{whole}_seconds_sum"), added, abs_tol=1e-6), whole

    def assert_served(self, before: "Accounts", given: Given) -> None:
        """Compare what came after another scrape with what clients were given since then."""

        def grown(name: str, **labels: str) -> float:
            name = f"vllm:{name}"
            return self.total(name, **labels) - before.total(name, **labels)

        answers = given.reasons.total()
        for reason in ("stop", "length", "abort", "error", "repetition"):
            counted = grown("request_success_total", finished_reason=reason)
            assert counted == given.reasons[reason], (reason, counted, given.reasons)
        assert grown("prompt_tokens_total") == given.prompt_tokens
        assert grown("generation_tokens_total") == given.generation_tokens
        for name, expected in (
            ("request_prompt_tokens_sum", given.prompt_tokens),
            ("request_generation_tokens_sum", given.generation_tokens),
            ("time_to_first_token_seconds_count", answers),
            ("request_params_n_count", given.prompts),
            ("request_max_num_generation_tokens_count", given.prompts),
        ):
            assert grown(name) == expected, name
        assert grown("request_num_preemptions_sum") == grown("num_preemptions_total")
