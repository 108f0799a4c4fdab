"""A request without tokens, for the simulator: what the scheduler needs, and nothing per token."""

from mocker_worker.engine.block_pool import BlockKey
from mocker_worker.engine.request import ChainFactory, Request


class OutlineRequest(Request):
    """A request known by its lengths and by which blocks of its prompt equal those of others.

    It costs no memory or time per token, and cannot be where KV events are published.
    """

    __slots__ = ("_answer_key",)

    has_private_answer = True

    def __init__(
        self,
        request_id: str,
        num_prompt_tokens: int,
        max_tokens: int,
        *,
        prompt_keys: list[BlockKey],
        answer_key: int,
        remote_prefill: bool = False,
    ) -> None:
        """Make a request that no engine knows yet.

        Args:
            request_id: Unique among the engine's unfinished requests.
            num_prompt_tokens: Length of the prompt.
            max_tokens: Tokens to generate.
            prompt_keys: One per full block of the prompt; equal keys after equal blocks are hits.
            answer_key: Of every block with generated tokens: no other request may use it.
            remote_prefill: The prompt's KV comes from a prefill worker and costs no compute here.
        """
        super().__init__(request_id, (), max_tokens, remote_prefill=remote_prefill)
        self.num_prompt_tokens = self.num_tokens = num_prompt_tokens
        self._keys = prompt_keys
        self._answer_key = answer_key

    def keys_of(self, num_blocks: int, new_chain: ChainFactory) -> list[BlockKey]:
        """Return the keys of at least the first `num_blocks` full blocks."""
        keys = self._keys
        if len(keys) < num_blocks:
            self._keys = keys = keys + [self._answer_key] * (num_blocks - len(keys))
        return keys

    def generate(self, count: int) -> int:
        """Count `count` more tokens; their ids are all 0."""
        self.num_tokens += count
        return 0
