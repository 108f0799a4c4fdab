"""Who may use `/v1`: bearer tokens, as vLLM's `--api-key`."""

import hashlib
import secrets
from collections.abc import Sequence

from aiohttp import hdrs, web

_GUARDED = "/v1"


class Access:
    """Checks the keys of requests; without keys everybody may enter."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def allows(self, http: web.Request) -> bool:
        """Whether a request may go on; takes the same time for every wrong key."""
        if not self._digests or not http.path.startswith(_GUARDED):
            return True
        if http.method == hdrs.METH_OPTIONS:
            return True
        scheme, _, key = http.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        digest = _digest(key.strip())
        matches = [secrets.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
