"""Which requests an engine can never finish, so that they are refused instead of queued."""

from mocker_protocol.engine_args import EngineArgs
from mocker_worker.engine.request import Request, RequestRefused


def check_admissible(request: Request, args: EngineArgs) -> None:
    """Let a request pass that some pass can run to its end, alone if need be.

    Raises:
        RequestRefused: naming the limit and the remedy.
    """
    prompt, max_tokens = request.num_prompt_tokens, request.max_tokens
    if prompt == 0:
        raise RequestRefused(request.request_id, "prompt", "is empty; send at least one token")
    if max_tokens < 1:
        raise RequestRefused(
            request.request_id, "max_tokens", f"must be at least 1, not {max_tokens}"
        )
    longest = prompt + max_tokens
    if args.max_model_len is not None:
        longest = min(longest, args.max_model_len)
        if prompt >= args.max_model_len:
            raise RequestRefused(
                request.request_id,
                "prompt",
                f"has {prompt} tokens and leaves no room for an answer below the limit of "
                f"{args.max_model_len} tokens; shorten it or raise max_model_len",
            )
    _check_cache(request, args, longest)
    _check_budget(request, args)


def _check_cache(request: Request, args: EngineArgs, longest: int) -> None:
    """Refuse what outgrows an empty cache; the last token is never computed, so needs no room."""
    if longest - 1 > args.kv_capacity_tokens:
        field = "prompt" if request.num_prompt_tokens > args.kv_capacity_tokens else "max_tokens"
        raise RequestRefused(
            request.request_id,
            field,
            f"{request.num_prompt_tokens} prompt tokens and max_tokens {request.max_tokens} need "
            f"more than the {args.kv_capacity_tokens} tokens of the KV cache; shorten the request "
            "or raise num_gpu_blocks",
        )


def _check_budget(request: Request, args: EngineArgs) -> None:
    """Refuse a prompt that must be computed in one pass and is longer than any pass."""
    budget = args.max_num_batched_tokens
    if args.enable_chunked_prefill or budget is None or request.remote_prefill:
        return
    if request.num_prompt_tokens > budget:
        raise RequestRefused(
            request.request_id,
            "prompt",
            f"has {request.num_prompt_tokens} tokens, more than the {budget} of one pass, and "
            "chunked prefill is off; shorten it or raise max_num_batched_tokens",
        )
