"""Log probabilities as they are here: a random token is one of 101 alike, a scripted one certain.

Prompt tokens, which no model ever saw, count as one of 101, too. The formats are those of
OpenAI's API (completions and chat) and of vLLM's `prompt_logprobs`.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from mocker_worker.engine.sampling import FIRST_TOKEN_ID, LAST_TOKEN_ID

NUM_TOKENS = LAST_TOKEN_ID - FIRST_TOKEN_ID + 1
UNIFORM = -math.log(NUM_TOKENS)
CERTAIN = 0.0
IMPOSSIBLE = -9999.0
"""What vLLM sends in place of minus infinity, which is not JSON."""


class TokenLogprob(NamedTuple):
    """A token, how likely it was, and the most likely ones at its place, itself first."""

    token_id: int
    logprob: float
    top: Sequence[tuple[int, float]]


def of_random(token_id: int, num_top: int) -> TokenLogprob:
    """Describe a token drawn from 100..200, with `num_top` that were as likely."""
    others = (_after(token_id, step) for step in range(num_top))
    return TokenLogprob(token_id, UNIFORM, [(other, UNIFORM) for other in others])


def of_drawn(token_id: int, num_top: int, candidates: Sequence[int]) -> TokenLogprob:
    """Describe a token drawn from sorted candidates, with those that were as likely first."""
    logprob, at = math.log(1 / len(candidates)), bisect_left(candidates, token_id)
    steps = range(min(num_top, len(candidates)))
    top = [(candidates[(at + step) % len(candidates)], logprob) for step in steps]
    others = (
        other for other in range(FIRST_TOKEN_ID, LAST_TOKEN_ID + 1) if other not in candidates
    )
    top += [(other, IMPOSSIBLE) for other in islice(others, num_top - len(top))]
    return TokenLogprob(token_id, logprob, top)


def of_scripted(token_id: int, num_top: int) -> TokenLogprob:
    """Describe a token that had to come, with `num_top` - 1 that could not."""
    others = (_after(token_id, step) for step in range(1, num_top))
    top = [(token_id, CERTAIN), *((other, IMPOSSIBLE) for other in others)]
    return TokenLogprob(token_id, CERTAIN, top[:num_top])


def _after(token_id: int, step: int) -> int:
    if not step:
        return token_id
    return FIRST_TOKEN_ID + (token_id - FIRST_TOKEN_ID + step) % NUM_TOKENS


class LogprobsFormat:
    """Writes log probabilities with the tokens' texts."""

    def __init__(self, text_of: Callable[[int], str], *, as_token_ids: bool) -> None:
        """Say how tokens are shown.

        Args:
            text_of: Text of a single token.
            as_token_ids: Show `token_id:N` in place of texts (`return_tokens_as_token_ids`).
        """
        self._text_of = text_of
        self._as_token_ids = as_token_ids

    def chat(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the `logprobs` of a chat's choice."""
        return {
            "content": [
                self._entry(token.token_id, token.logprob)
                | {"top_logprobs": [self._entry(*other) for other in token.top]}
                for token in tokens
            ]
        }

    def completion(
        self, tokens: Sequence[TokenLogprob | None], first: int | None, offset: int
    ) -> dict[str, Any]:
        """Return the `logprobs` of a completion's choice.

        Args:
            tokens: One per token; None for the very first of an echoed prompt.
            first: Its token id.
            offset: Characters of the answer before these tokens.
        """
        names, logprobs, tops, offsets = [], [], [], []
        for token in tokens:
            token_id = first if token is None else token.token_id
            assert token_id is not None, "only the first token has no log probability"
            names.append(self._name(token_id))
            logprobs.append(None if token is None else token.logprob)
            tops.append(None if token is None else self._top(token))
            offsets.append(offset)
            offset += len(self._text_of(token_id))
        return {
            "text_offset": offsets,
            "token_logprobs": logprobs,
            "tokens": names,
            "top_logprobs": tops,
        }

    def prompt(self, token_ids: Sequence[int], num_top: int) -> list[dict[str, Any] | None]:
        """Return vLLM's `prompt_logprobs`: by token id, nothing for the first token."""
        shown: list[dict[str, Any] | None] = [None] if token_ids else []
        for token_id in token_ids[1:]:
            token = of_random(token_id, num_top)
            top = dict([(token_id, token.logprob), *token.top])
            shown.append(
                {
                    str(other): {
                        "logprob": value,
                        "rank": rank,
                        "decoded_token": self._text_of(other),
                    }
                    for rank, (other, value) in enumerate(top.items(), start=1)
                }
            )
        return shown

    def _top(self, token: TokenLogprob) -> dict[str, float]:
        """Return a completion's alternatives; the token itself is always one of them."""
        most_likely = [(token.token_id, token.logprob), *token.top]
        return {self._name(other): value for other, value in most_likely}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        name = self._name(token_id)
        return {"token": name, "logprob": logprob, "bytes": list(name.encode())}

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_token_ids else self._text_of(token_id)
