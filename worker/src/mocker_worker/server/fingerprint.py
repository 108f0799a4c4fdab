"""`system_fingerprint` of answers: tells clients when the backend has changed (vLLM 0.33).

Workers with the same engine arguments, model and version have the same one.
"""

import hashlib

from mocker_protocol import __version__
from mocker_protocol.engine_args import EngineArgs
from mocker_worker.config import FingerprintMode, ServerOptions

_HASH_DIGITS = 8


def system_fingerprint(options: ServerOptions, args: EngineArgs, model_name: str) -> str | None:
    """Return what answers carry; None for nothing."""
    mode = options.fingerprint_mode
    if mode is FingerprintMode.NONE:
        return None
    if mode is FingerprintMode.CUSTOM:
        return options.fingerprint_value
    backend = f"{__version__}\n{model_name}\n{args.model_dump_json()}"
    parts = [f"vllm-{__version__}"]
    if mode is FingerprintMode.FULL and args.dp_size > 1:
        parts.append(f"dp{args.dp_size}")
    parts.append(hashlib.sha256(backend.encode()).hexdigest()[:_HASH_DIGITS])
    return "-".join(parts)
