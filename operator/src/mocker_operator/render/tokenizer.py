"""How the workers find a model's own tokenizer: one volume, and the variable that names the file.

A volume is mounted as a whole rather than by sub-path: caches of models hold links into it.
"""

from typing import Any, Final

from mocker_operator.api.tokenizer import TOKENIZER_ENV, ClaimTokenizer, TokenizerSpec
from mocker_operator.render.pod import Mount

_PATH: Final = "/etc/mocker-tokenizer"
_FILE_OF_KEY: Final = "tokenizer.json"


def tokenizer_env(tokenizer: TokenizerSpec | None) -> list[dict[str, Any]]:
    """Return the variable with the path of the file; none for the built-in tokenizer."""
    if tokenizer is None:
        return []
    source = tokenizer.source
    file = source.path if isinstance(source, ClaimTokenizer) else _FILE_OF_KEY
    return [{"name": TOKENIZER_ENV, "value": f"{_PATH}/{file}"}]


def tokenizer_mounts(tokenizer: TokenizerSpec | None) -> list[Mount]:
    """Return the volume with the file; none for the built-in tokenizer."""
    if tokenizer is None:
        return []
    source = tokenizer.source
    if isinstance(source, ClaimTokenizer):
        claim = {"claimName": source.claim_name, "readOnly": True}
        return [Mount("tokenizer", _PATH, {"persistentVolumeClaim": claim})]
    items = [{"key": source.key, "path": _FILE_OF_KEY}]
    return [Mount("tokenizer", _PATH, {"configMap": {"name": source.name, "items": items}})]
