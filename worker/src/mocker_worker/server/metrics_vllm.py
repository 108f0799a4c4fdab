"""vLLM 0.33's metric families: names, types, labels and buckets as there, fed by the engine.

Labels are `model_name` and `engine`, the data-parallel rank, unless a table says otherwise;
`vllm:cache_config_info` has no `model_name`. All series exist from the start with 0. Families of
features that this engine does not have are left out, as vLLM leaves them out with the feature off.
"""

from collections.abc import Callable, Sequence

from mocker_protocol.engine_args import EngineArgs
from mocker_protocol.names import WorkerType
from mocker_worker.driver import EngineDriver
from mocker_worker.server.exposition import Families, Family
from mocker_worker.server.rank_families import HistogramRow, RankFamilies, Read, Row, SplitRow
from mocker_worker.stats import FINISHED_REASONS, WorkerStats


def num_waiting(rank: EngineDriver) -> int:
    """Return what vLLM counts as waiting: new requests first meet the scheduler."""
    return max(rank.num_queued, 0)


def num_kv_fetches(rank: EngineDriver) -> int:
    """Return the requests whose prompt's KV the pass under way brings from a prefill worker."""
    if not rank.num_running:
        return 0
    return sum(r.has_remote_kv and r.num_output_tokens <= 1 for r in rank.engine.running)


def _finished(reason: str) -> Read:
    return lambda rank: rank.stats.finished_requests[reason]


_STATE: Sequence[Row] = (
    Row(
        "gauge",
        "vllm:num_requests_running",
        "Requests in the forward pass under way.",
        lambda rank: rank.num_running,
    ),
    Row(
        "gauge",
        "vllm:num_requests_waiting",
        "Requests that wait for room in a forward pass.",
        num_waiting,
    ),
    Row(
        "gauge",
        "vllm:kv_cache_usage_perc",
        "Share of the KV cache that requests hold, 0 to 1.",
        lambda rank: rank.kv_usage_ratio,
    ),
    Row(
        "counter",
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda rank: rank.engine.prefix_cache_queries,
    ),
    Row(
        "counter",
        "vllm:prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda rank: rank.engine.prefix_cache_hits,
    ),
    Row(
        "counter",
        "vllm:external_prefix_cache_queries",
        "Prompt tokens that a prefill worker was asked for.",
        lambda rank: rank.stats.external_cache_queries_tokens,
    ),
    Row(
        "counter",
        "vllm:external_prefix_cache_hits",
        "Prompt tokens whose KV came from a prefill worker.",
        lambda rank: rank.stats.external_kv_tokens,
    ),
    Row(
        "counter",
        "vllm:mm_cache_queries",
        "Items looked up in the multi-modal cache; there are none.",
        lambda rank: 0,
    ),
    Row(
        "counter",
        "vllm:mm_cache_hits",
        "Items found in the multi-modal cache; there are none.",
        lambda rank: 0,
    ),
    Row(
        "counter",
        "vllm:num_preemptions",
        "Requests that lost their KV to others.",
        lambda rank: rank.engine.num_preemptions,
    ),
    Row(
        "counter",
        "vllm:prompt_tokens",
        "Prompt tokens of requests that got a first token.",
        lambda rank: rank.stats.prompt_tokens,
    ),
    Row(
        "counter",
        "vllm:prompt_tokens_cached",
        "Prompt tokens that were not computed here.",
        lambda rank: rank.stats.local_cache_hit_tokens + rank.stats.external_kv_tokens,
    ),
    Row(
        "counter",
        "vllm:generation_tokens",
        "Tokens generated.",
        lambda rank: rank.stats.generation_tokens,
    ),
)

_SPLIT: Sequence[SplitRow] = (
    SplitRow(
        "gauge",
        "vllm:num_requests_waiting_by_reason",
        "Waiting requests by what they wait for; the sum is num_requests_waiting.",
        "reason",
        {"capacity": num_waiting, "deferred": lambda rank: 0},
    ),
    SplitRow(
        "gauge",
        "vllm:engine_sleep_state",
        "1 for the state the engine is in; it never sleeps.",
        "sleep_state",
        {
            "awake": lambda rank: 1,
            "weights_offloaded": lambda rank: 0,
            "discard_all": lambda rank: 0,
        },
    ),
    SplitRow(
        "counter",
        "vllm:prompt_tokens_by_source",
        "Prompt tokens by where their KV came from; the sum is prompt_tokens.",
        "source",
        {
            "local_compute": lambda rank: rank.stats.computed_prompt_tokens,
            "local_cache_hit": lambda rank: rank.stats.local_cache_hit_tokens,
            "external_kv_transfer": lambda rank: rank.stats.external_kv_tokens,
        },
    ),
    SplitRow(
        "counter",
        "vllm:prompt_tokens_cached_by_source",
        "Cached prompt tokens by where they were; the sum is prompt_tokens_cached.",
        "source",
        {
            "device": lambda rank: rank.stats.local_cache_hit_tokens,
            "host": lambda rank: 0,
            "disk": lambda rank: 0,
            "p2p": lambda rank: rank.stats.external_kv_tokens,
            "external_unspecified": lambda rank: 0,
        },
    ),
    SplitRow(
        "counter",
        "vllm:request_success",
        "Requests ended, by the reason why.",
        "finished_reason",
        {reason: _finished(reason) for reason in FINISHED_REASONS},
    ),
)

_KV_FETCHES = SplitRow(
    "gauge",
    "vllm:num_requests_kv_fetch_by_stage",
    "Requests whose prompt's KV comes from a prefill worker, by how far it has come.",
    "stage",
    {
        "waiting_to_start": num_waiting,
        "in_progress": num_kv_fetches,
        "completed_waiting": lambda rank: 0,
    },
)

_HISTOGRAMS: Sequence[HistogramRow] = (
    HistogramRow(
        "vllm:iteration_tokens_total",
        "Tokens per forward pass.",
        lambda rank: rank.stats.iteration_tokens,
    ),
    HistogramRow(
        "vllm:request_prompt_tokens",
        "Prompt tokens per request.",
        lambda rank: rank.stats.request_prompt_tokens,
    ),
    HistogramRow(
        "vllm:request_generation_tokens",
        "Generated tokens per request.",
        lambda rank: rank.stats.request_generation_tokens,
    ),
    HistogramRow(
        "vllm:request_max_num_generation_tokens",
        "Generated tokens of the longest answer per API request.",
        lambda rank: rank.stats.request_max_num_generation_tokens,
    ),
    HistogramRow(
        "vllm:request_params_max_tokens",
        "The parameter max_tokens.",
        lambda rank: rank.stats.request_params_max_tokens,
    ),
    HistogramRow(
        "vllm:request_params_n",
        "The parameter n, per API request.",
        lambda rank: rank.stats.request_params_n,
    ),
    HistogramRow(
        "vllm:request_prefill_kv_computed_tokens",
        "Prompt tokens computed here per request.",
        lambda rank: rank.stats.request_prefill_kv_computed_tokens,
    ),
    HistogramRow(
        "vllm:request_num_preemptions",
        "How often a request lost its KV.",
        lambda rank: rank.stats.request_num_preemptions,
    ),
    HistogramRow(
        "vllm:time_to_first_token_seconds",
        "From a request's arrival to its first token.",
        lambda rank: rank.stats.ttft,
    ),
    HistogramRow(
        "vllm:inter_token_latency_seconds",
        "Between two tokens of a request.",
        lambda rank: rank.stats.itl,
    ),
    HistogramRow(
        "vllm:request_time_per_output_token_seconds",
        "Mean time between two tokens per request.",
        lambda rank: rank.stats.time_per_output_token,
    ),
    HistogramRow(
        "vllm:e2e_request_latency_seconds",
        "From a request's arrival to its last token.",
        lambda rank: rank.stats.e2e,
    ),
    HistogramRow(
        "vllm:request_queue_time_seconds",
        "From a request's arrival to its first pass.",
        lambda rank: rank.stats.queue,
    ),
    HistogramRow(
        "vllm:request_inference_time_seconds",
        "From a request's first pass to its last token.",
        lambda rank: rank.stats.inference,
    ),
    HistogramRow(
        "vllm:request_prefill_time_seconds",
        "From a request's first pass to its first token.",
        lambda rank: rank.stats.prefill,
    ),
    HistogramRow(
        "vllm:request_decode_time_seconds",
        "From a request's first token to its last.",
        lambda rank: rank.stats.decode,
    ),
)


def vllm_families(model_name: str, ranks: Sequence[EngineDriver], api: WorkerStats) -> Families:
    """Return the families of vLLM 0.33."""
    args = ranks[0].engine.args
    families = vllm_ranks(model_name, ranks)
    split = (*_SPLIT, _KV_FETCHES) if args.worker_type is WorkerType.DECODE else _SPLIT
    config = cache_config(args)
    return [
        *(families.values(row) for row in _STATE),
        *(families.split(row) for row in split),
        _admission_rejections(model_name, api),
        *(families.histograms(row) for row in _HISTOGRAMS),
        Family(
            "gauge",
            "vllm:cache_config_info",
            "Configuration of the KV cache.",
            [(config | {"engine": str(rank.dp_rank)}, lambda: 1) for rank in ranks],
        ),
    ]


def vllm_ranks(model_name: str, ranks: Sequence[EngineDriver]) -> RankFamilies:
    """Return the ranks with vLLM's labels."""
    return RankFamilies(
        [({"model_name": model_name, "engine": str(rank.dp_rank)}, rank) for rank in ranks]
    )


def cache_config(args: EngineArgs) -> dict[str, str]:
    """Return those fields of vLLM's CacheConfig that mean something here, printed as there."""
    capacity, size = args.kv_capacity_tokens, args.kv_bytes_per_token
    concurrency = capacity / args.max_model_len if args.max_model_len else None
    fields = {
        "block_size": args.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": args.enable_prefix_caching,
        "is_attention_free": False,
        "kv_cache_max_concurrency": concurrency,
        "kv_cache_memory_bytes": capacity * size if size else None,
        "kv_cache_size_tokens": capacity,
        "num_cpu_blocks": None,
        "num_gpu_blocks": args.num_gpu_blocks,
        "num_gpu_blocks_override": args.num_gpu_blocks,
        "prefix_caching_hash_algo": args.prefix_caching_hash_algo,
        "sliding_window": None,
    }
    return {name: str(value) for name, value in fields.items()}


def _admission_rejections(model_name: str, api: WorkerStats) -> Family:
    def read(reason: str) -> Callable[[], float]:
        return lambda: api.admission_rejections[reason]

    return Family(
        "counter",
        "vllm:admission_rejections",
        "Requests refused since a limit of the queue was reached.",
        [
            ({"model_name": model_name, "reason": reason}, read(reason))
            for reason in api.admission_rejections
        ],
    )
