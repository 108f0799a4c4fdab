"""Which tokens an answer may have: `allowed_token_ids`, and both ends of the scale of `logit_bias`.

There is no model whose preference a bias could shift: -100 bans a token, 100 leaves no other, and
what is between has no effect. The order is vLLM's: a bias cannot bring back what is not allowed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import xxhash

from mocker_worker.engine.sampling import FIRST_TOKEN_ID, LAST_TOKEN_ID
from mocker_worker.server.errors import InvalidRequest, NotSupported
from mocker_worker.server.requests import MAX_TOKEN_ID, GenerationRequest
from mocker_worker.tokenizer import Tokenizer

_BAN = -100
_FORCE = 100
_MOST_DRAWN = 1024
"""Longer answers repeat what was drawn: an answer is drawn before it begins."""
_MOST_NAMED = 2**18
"""Ids in one field, each of which is looked at: as many as large vocabularies have."""
_pack_position = Struct("<Q").pack


@dataclass(frozen=True, slots=True)
class PermittedTokens:
    """What a request permits its answers."""

    field: str
    """The field that says so."""
    candidates: Sequence[int]
    """Ids to draw from; empty for the engine's own."""
    permitted: Collection[int] | None
    """The only ids that an answer may have; None for all but the banned ones."""
    banned: Collection[int]

    @classmethod
    def of(cls, request: GenerationRequest, tokenizer: Tokenizer) -> "PermittedTokens | None":
        """Take them from a request; None if it permits all.

        Raises:
            ApiError: with status 400 for too many ids and those that the tokenizer does not have,
                501 if all that the engine could draw is banned.
        """
        allowed, bias = request.allowed_token_ids, request.logit_bias
        if allowed is None and not bias:
            return None
        if allowed is not None and not allowed:
            reason = "is empty; name a token, or leave it out"
            raise InvalidRequest("allowed_token_ids", f"allowed_token_ids: {reason}")
        _check_number("allowed_token_ids", allowed or ())
        _check_number("logit_bias", bias or ())
        biases = {_token_id(name): value for name, value in (bias or {}).items()}
        _check_known("allowed_token_ids", allowed or (), tokenizer)
        _check_known("logit_bias", biases, tokenizer)
        banned = {token_id for token_id, value in biases.items() if value <= _BAN}
        forced = {token_id for token_id, value in biases.items() if value >= _FORCE}
        if allowed is None:
            return _biased(banned, forced)
        among = set(allowed)
        left = (forced & among) or (among - banned) or among  # all alike: a ban makes no difference
        return cls("allowed_token_ids", sorted(left), left, ())

    def check(self, script: Sequence[int]) -> None:
        """Refuse an answer that is known by now and has other tokens.

        Raises:
            ApiError: with status 501.
        """
        permitted, banned = self.permitted, self.banned
        if all((permitted is None or item in permitted) and item not in banned for item in script):
            return
        raise NotSupported(self.field, "leave it out where the answer's form is given")

    def draw(self, seed: int, num_tokens: int) -> list[int]:
        """Return tokens of an answer, the same for the same seed."""
        candidates = self.candidates
        return [
            candidates[xxhash.xxh3_64_intdigest(_pack_position(position), seed) % len(candidates)]
            for position in range(min(num_tokens, _MOST_DRAWN))
        ]


def _biased(banned: set[int], forced: set[int]) -> PermittedTokens | None:
    if forced:
        return PermittedTokens("logit_bias", sorted(forced), forced, ())
    every = range(FIRST_TOKEN_ID, LAST_TOKEN_ID + 1)
    left = [token_id for token_id in every if token_id not in banned]
    if not left:
        raise NotSupported("logit_bias", f"permit one of the tokens {every[0]} to {every[-1]}")
    candidates = left if len(left) < len(every) else ()
    return PermittedTokens("logit_bias", candidates, None, banned) if banned else None


def _token_id(name: str) -> int:
    digits = len(str(MAX_TOKEN_ID))
    if name.isascii() and name.isdigit() and len(name) <= digits and int(name) <= MAX_TOKEN_ID:
        return int(name)
    message = f"logit_bias: {name[:40]!r} is no token id; use integers in 0..{MAX_TOKEN_ID}"
    raise InvalidRequest("logit_bias", message)


def _check_number(field: str, named: Collection[Any]) -> None:
    if len(named) > _MOST_NAMED:
        message = f"{field}: has {len(named)} tokens; name at most {_MOST_NAMED}"
        raise InvalidRequest(field, message)


def _check_known(field: str, token_ids: Collection[int], tokenizer: Tokenizer) -> None:
    unknown = [token_id for token_id in token_ids if not tokenizer.has_token(token_id)]
    if unknown:
        raise InvalidRequest(
            field,
            f"{field}: the vocabulary has no token {unknown[0]}; use ids that /tokenize gives",
        )
