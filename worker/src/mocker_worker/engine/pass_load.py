"""What one forward pass has to do: the sums that its time and its metrics are made of."""

from dataclasses import dataclass, field

from mocker_protocol.forward_pass import ScheduledRequests
from mocker_worker.engine.moments import Moments


@dataclass(slots=True)
class PassLoad:
    """Prefill and decode work of a pass; a request is one or the other."""

    prefill_tokens: int = 0
    """Newly computed, recomputation included."""
    prefill_kv_tokens: int = 0
    """Read from the cache by prefills: cached prefixes and earlier chunks."""
    prefill_prompts: Moments = field(default_factory=Moments)
    """Whole prompt lengths of the requests that prefill."""
    decode_contexts: Moments = field(default_factory=Moments)
    """Context lengths of the requests that decode."""

    def add_prefill(self, num_tokens: int, *, computed: int, prompt_tokens: int) -> None:
        """Count a request that computes prompt tokens."""
        self.prefill_tokens += num_tokens
        self.prefill_kv_tokens += computed
        self.prefill_prompts.add(prompt_tokens)

    def metrics(self) -> ScheduledRequests:
        """Describe the pass as forward-pass metrics do."""
        return ScheduledRequests(
            num_prefill_requests=self.prefill_prompts.count,
            sum_prefill_tokens=self.prefill_tokens,
            var_prefill_length=self.prefill_prompts.variance,
            sum_prefill_kv_tokens=self.prefill_kv_tokens,
            num_decode_requests=self.decode_contexts.count,
            sum_decode_kv_tokens=self.decode_contexts.total,
            var_decode_kv_tokens=self.decode_contexts.variance,
        )
