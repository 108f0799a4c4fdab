"""What one forward pass has to do: the sums that its time and its metrics are made of."""

from operator import mul

import msgspec

from mocker_protocol.forward_pass import ScheduledRequests
from mocker_worker.engine.moments import Moments


class BilledLoad(msgspec.Struct):
    """What Dynamo's engine charges time for.

    Only prompt tokens are prefill. A request that comes back after a preemption pays for a decode
    step when it resumes its answer, in the pass that computes the rest of it.
    """

    num_prefills: int = 0
    prefill_tokens: int = 0
    prefill_kv_tokens: int = 0
    num_decodes: int = 0
    decode_kv_tokens: int = 0

    @property
    def new_tokens(self) -> int:
        """Prompt tokens as Dynamo counts them: requests times integer means.

        At most one token per request off the exact sum; with it, pass times agree to the digit.
        """
        count, cached = self.num_prefills, self.prefill_kv_tokens
        if count == 0:
            return 0
        return count * ((cached + self.prefill_tokens) // count - cached // count)

    def add_resumed(self, context_tokens: int) -> None:
        """Count a request that gets the next token of its answer from a recomputation."""
        self.num_decodes += 1
        self.decode_kv_tokens += context_tokens


class PassLoad(msgspec.Struct):
    """Prefill and decode work of a pass. For the metrics a request is one or the other."""

    prefill_tokens: int = 0
    """Newly computed, recomputation included."""
    prefill_kv_tokens: int = 0
    """Read from the cache by prefills: cached prefixes and earlier chunks."""
    prefill_prompts: Moments = msgspec.field(default_factory=Moments)
    """Whole prompt lengths of the requests that prefill."""
    decode_contexts: Moments = msgspec.field(default_factory=Moments)
    """Context lengths of the requests that decode."""
    billed: BilledLoad = msgspec.field(default_factory=BilledLoad)

    def add_prefill(self, num_tokens: int, *, computed: int, prompt_tokens: int) -> None:
        """Count a request that computes prompt tokens, or answer tokens again."""
        self.prefill_tokens += num_tokens
        self.prefill_kv_tokens += computed
        self.prefill_prompts.add(prompt_tokens)
        if computed < prompt_tokens:
            self.billed.num_prefills += 1
            self.billed.prefill_tokens += min(num_tokens, prompt_tokens - computed)
            self.billed.prefill_kv_tokens += computed

    def charge(self) -> BilledLoad:
        """Return what the pass is charged for; a pass that only recomputes answers is not free."""
        if self.billed.num_prefills or self.billed.num_decodes:
            return self.billed
        return BilledLoad(self.prefill_prompts.count, self.prefill_tokens, self.prefill_kv_tokens)

    def add_decodes(self, contexts: list[int]) -> None:
        """Count the requests that compute nothing but the latest token of their contexts."""
        total = sum(contexts)
        squares = sum(map(mul, contexts, contexts))
        self.decode_contexts = Moments(len(contexts), total, squares)
        self.billed.num_decodes += len(contexts)
        self.billed.decode_kv_tokens += total

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
