"""The list of models of OpenAI's API, as vLLM answers it: workers and frontends say the same.

Pure: the id of the permission, random in vLLM, follows from the model's name.
"""

import hashlib
from typing import Any


def model_list(name: str, *, created_s: int, max_model_len: int | None) -> dict[str, Any]:
    """Return the answer of `/v1/models` that lists one model.

    Args:
        name: Served name.
        created_s: Unix time.
        max_model_len: Longest prompt plus answer in tokens; None if it is not known.
    """
    model = {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "vllm",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [_permission(name, created_s)],
    }
    return {"object": "list", "data": [model]}


def _permission(name: str, created_s: int) -> dict[str, Any]:
    """Return what everybody may do with a model."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return {
        "id": f"modelperm-{digest[:16]}",
        "object": "model_permission",
        "created": created_s,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
