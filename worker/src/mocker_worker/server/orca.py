"""Load of the worker in a response header (Open Request Cost Aggregation, in vLLM's form).

A request asks for it with `endpoint-load-metrics-format: TEXT` or `JSON`.
"""

import json

REQUEST_HEADER = "endpoint-load-metrics-format"
RESPONSE_HEADER = "endpoint-load-metrics"


def orca_header(form: str, *, kv_cache_usage_ratio: float, num_requests_waiting: int) -> str | None:
    """Return the value of `endpoint-load-metrics`, or None for a form that nobody defined.

    Args:
        form: What the request's header says, in any case.
        kv_cache_usage_ratio: Share of the KV cache in use, 0..1, of the fullest rank.
        num_requests_waiting: Requests that wait, of all ranks.
    """
    metrics = {
        "kv_cache_usage_perc": float(kv_cache_usage_ratio),
        "num_requests_waiting": float(num_requests_waiting),
    }
    match form.strip().upper():
        case "TEXT":
            pairs = (f"named_metrics.{name}={value}" for name, value in metrics.items())
            return f"TEXT {', '.join(pairs)}"
        case "JSON":
            return f"JSON {json.dumps({'named_metrics': metrics})}"
        case _:
            return None
