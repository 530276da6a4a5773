"""The dialect table: every family that we read, how each era of vLLM spells it, and how its series fold.

Sources: vllm/v1/metrics/loggers.py and vllm/engine/metrics.py of the releases 0.3 to 0.33. Invariant: spellings of a
family stand in order of preference and are never added together; two of them may be on the wire at once.
"""

from dataclasses import dataclass

from vllm_vitals.core.fold import (
    ANSWERS,
    ASLEEP,
    CONCURRENT,
    DISTINCT,
    EARLIEST,
    HISTOGRAM,
    PEAK,
    RATIO,
    TOTAL,
    Fold,
    split_by,
)
from vllm_vitals.vllm.routes import HTTP_REQUESTS

# Ray adds ray_, KServe kserve_; Ray and one OpenMetrics writer turn the colon into an underscore.
PREFIXES = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_", "kserve_vllm:", "kserve_vllm_")
CACHE_CONFIG = "cache_config_info"


@dataclass(frozen=True, slots=True)
class Family:
    """One quantity of an engine.

    ``name`` is the catalogue's (by which impossible samples are counted), ``field`` the one in `EngineSample`; a
    histogram is filed under its name. ``spellings`` have no prefix. ``only`` keeps the series with that label.
    ``in_blocks`` is the spelling that counts KV blocks, not tokens, up to vLLM 0.8.5. ``shared``: one number a server.
    ``labels`` are those that vLLM itself splits the family by.
    """

    name: str
    field: str
    fold: Fold
    spellings: tuple[str, ...]
    only: tuple[str, str] | None = None
    in_blocks: str = ""
    shared: bool = False
    labels: tuple[str, ...] = ()


def _histogram(name: str, *spellings: str) -> Family:
    return Family(name, name, HISTOGRAM, spellings)


def _counter(name: str, field: str, *stems: str, fold: Fold = TOTAL, only: tuple[str, str] | None = None,
             in_blocks: str = "", shared: bool = False, labels: tuple[str, ...] = ()) -> Family:  # fmt: skip
    """Counters end in ``_total``; Ray also exports a gauge without it, and some writers only that."""
    spellings = tuple(stem + end for stem in stems for end in ("_total", ""))
    return Family(name, field, fold, spellings, only, in_blocks and in_blocks + "_total", shared, labels)


FAMILIES: tuple[Family, ...] = (
    Family("requests_running", "running", CONCURRENT, ("num_requests_running",)),
    Family("requests_waiting", "waiting", CONCURRENT, ("num_requests_waiting",)),
    Family("requests_waiting", "swapped", CONCURRENT, ("num_requests_swapped",)),
    Family("requests_waiting", "waiting_by_reason", split_by("reason", CONCURRENT),
           ("num_requests_waiting_by_reason",), labels=("reason",)),
    Family("kv_cache_usage_ratio", "kv_usage", RATIO, ("kv_cache_usage_perc", "gpu_cache_usage_perc")),
    Family("engine_sleep_state", "asleep", ASLEEP, ("engine_sleep_state",), labels=("sleep_state",)),
    _counter("preemptions_total", "preemptions", "num_preemptions"),
    _counter("prompt_tokens_total", "prompt_tokens", "prompt_tokens"),
    _counter("prompt_tokens_computed_total", "prompt_tokens_computed", "prompt_tokens_by_source",
             only=("source", "local_compute"), labels=("source",)),
    _counter("prompt_tokens_computed_total", "prompt_tokens_cached", "prompt_tokens_cached"),
    _counter("generation_tokens_total", "generation_tokens", "generation_tokens"),
    # A histogram in spite of its name; its count is the engine's heartbeat.
    Family("steps_total", "steps", TOTAL, ("iteration_tokens_total_count",)),
    _counter("responses_total", "responses", "request_success",
             fold=split_by("finished_reason", TOTAL, whole=True, alias="finish_reason"),
             labels=("finished_reason", "finish_reason")),
    _counter("prefix_cache_queries_total", "prefix_cache_queries", "prefix_cache_queries", "gpu_prefix_cache_queries",
             in_blocks="gpu_prefix_cache_queries"),
    _counter("prefix_cache_hits_total", "prefix_cache_hits", "prefix_cache_hits", "gpu_prefix_cache_hits",
             in_blocks="gpu_prefix_cache_hits"),
    _counter("external_prefix_cache_queries_total", "external_queries", "external_prefix_cache_queries"),
    _counter("rejected_requests_total", "rejections", "admission_rejections", shared=True, labels=("reason",)),
    Family("rl_weight_update", "updating", PEAK, ("rl_weight_update_operations_in_flight",), shared=True,
           labels=("operation",)),
    Family("sleep_mode_operation", "moving", PEAK, ("sleep_mode_operations_in_flight",), shared=True,
           labels=("operation",)),
    # All counters of an engine are created together: one of them says when.
    Family("started_at", "started_at", EARLIEST, ("generation_tokens_created", "prompt_tokens_created")),
    _histogram("tpot_seconds", "request_time_per_output_token_seconds"),
    # The old name meant the gap between two outputs in V0 and V1 alike, never a request's mean.
    _histogram("inter_token_latency_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds"),
    _histogram("ttft_seconds", "time_to_first_token_seconds"),
    _histogram("e2e_latency_seconds", "e2e_request_latency_seconds"),
    _histogram("queue_time_seconds", "request_queue_time_seconds", "time_in_queue_requests"),
    _histogram("request_prompt_tokens", "request_prompt_tokens"),
    _histogram("request_output_tokens", "request_generation_tokens"),
    _histogram("request_max_tokens", "request_params_max_tokens"),
    _histogram("request_preemptions", "request_num_preemptions"),
)  # fmt: skip

# Without a prefix; absent where several API server processes share their metrics.
PROCESS_START = Family("started_at", "process_start", DISTINCT, ("process_start_time_seconds",), shared=True)
# Without a prefix too: the answers of the HTTP server before the engines.
HTTP = Family("http_requests_total", "http", ANSWERS, (HTTP_REQUESTS + "_total",), shared=True)

# The newest sign first: a family or, for kv_cache_size_tokens and engine, a label that a release brought.
ERAS: tuple[tuple[str, str], ...] = (
    ("admission_rejections", "v1>=0.32"),
    ("request_num_preemptions", "v1>=0.30"),
    ("label:kv_cache_size_tokens", "v1>=0.24"),
    ("num_requests_waiting_by_reason", "v1>=0.20"),
    ("estimated_flops_per_gpu", "v1>=0.17"),
    ("prompt_tokens_by_source", "v1>=0.16"),
    ("request_prefill_kv_computed_tokens", "v1>=0.13"),
    ("engine_sleep_state", "v1>=0.11.1"),
    ("request_time_per_output_token_seconds", "v1>=0.11"),
    ("kv_cache_usage_perc", "v1>=0.9.2"),
    ("label:engine", "v1>=0.8.3"),
    ("gpu_prefix_cache_queries", "v1"),
    ("num_preemptions", "v0"),
    ("num_requests_swapped", "v0"),
    ("cpu_cache_usage_perc", "v0"),
    ("avg_generation_throughput_toks_per_s", "v0"),
)

# What vLLM exposes and we do not read, so that only news is counted as unknown (names without suffixes).
IGNORED = frozenset({
    CACHE_CONFIG, "lora_requests_info", "num_requests_kv_fetch_by_stage", "mm_cache_queries", "mm_cache_hits",
    "external_prefix_cache_hits", "prompt_tokens_cached_by_source", "prompt_tokens_recomputed", "corrupted_requests",
    "watermark_requests", "estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds",
    "request_max_num_generation_tokens", "request_params_n", "request_params_best_of",
    "request_prefill_kv_computed_tokens", "iteration_tokens", "rl_weight_update_operation_duration_seconds",
    "sleep_mode_operation_duration_seconds", "tool_call_parser_invocations",
    "cpu_cache_usage_perc", "gpu_prefix_cache_hit_rate", "cpu_prefix_cache_hit_rate", "tokens",
    "model_forward_time_milliseconds", "model_execute_time_milliseconds", "avg_prompt_throughput_toks_per_s",
    "avg_generation_throughput_toks_per_s", "cache_config",
})  # fmt: skip
# Stores outside the GPU, from which a preempted request takes its blocks again.
KV_STORES = ("kv_offload_", "simple_kv_offload_", "mooncake_store_", "hisparse_", "hf3fs_", "umbp_", "lmcache")
# Between prefill and decode servers blocks travel once a request: their schedulers set do_remote_prefill to False after
# it (kv_connector/v1/{nixl,mooncake}), so a victim is computed again.
KV_TRANSFERS = ("nixl_", "mooncake_")
IGNORED_PREFIXES = (*KV_STORES, *KV_TRANSFERS, "spec_decode_", "diffusion_", "kv_block_", "websocket_")

# Labels of cache_config_info worth showing; the others change with every release.
SETTINGS = (
    "block_size", "num_gpu_blocks", "num_gpu_blocks_override", "num_cpu_blocks", "gpu_memory_utilization",
    "cache_dtype", "sliding_window", "enable_prefix_caching", "prefix_caching_hash_algo", "kv_cache_memory_bytes",
    "kv_cache_size_tokens", "kv_cache_max_concurrency", "kv_offloading_size", "kv_offloading_backend", "swap_space",
    "cpu_offload_gb",
)  # fmt: skip

_PARTS = ("bucket", "sum", "count")
MAX_SUFFIXES = 3  # the longest of vLLM's is _total_created
_SUFFIXES = ("_bucket", "_sum", "_count", "_created", "_total")


@dataclass(frozen=True, slots=True)
class Spelling:
    """What a metric name on the wire means. ``rank`` 0 is the preferred spelling of its family."""

    family: Family
    rank: int
    part: str = ""
    in_blocks: bool = False


def _wire() -> dict[str, Spelling]:
    known: dict[str, Spelling] = {}
    for family in FAMILIES:
        for rank, name in enumerate(family.spellings):
            parts = _PARTS if family.fold is HISTOGRAM else ("",)
            for order, prefix in enumerate(PREFIXES):
                for part in parts:
                    wire = prefix + name + (part and "_" + part)
                    known[wire] = Spelling(family, rank * len(PREFIXES) + order, part, name == family.in_blocks)
    for family in (PROCESS_START, HTTP):
        known[family.spellings[0]] = Spelling(family, 0)
    return known


WIRE = _wire()
CONFIG_NAMES = frozenset(prefix + CACHE_CONFIG for prefix in PREFIXES)
WANTED = CONFIG_NAMES.union(WIRE)


def prefix_of(name: str) -> str:
    """The prefix that makes a name vLLM's, or ""."""
    return next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")


def stem(name: str) -> str:
    """A wire name without prefix and suffixes: one word a family, however it is exposed."""
    name = name[len(prefix_of(name)) :]
    for _ in range(MAX_SUFFIXES):
        if name.endswith(_SUFFIXES):
            name = name[: name.rindex("_")]
    return name


ENGINE_STEMS = frozenset(stem(name) for family in FAMILIES if not family.shared for name in family.spellings)
KNOWN_STEMS = IGNORED.union(ENGINE_STEMS, (stem(name) for family in FAMILIES for name in family.spellings))


def is_known(name: str) -> bool:
    """Whether a stem belongs to a family that some vLLM release exposes."""
    return name in KNOWN_STEMS or name.startswith(IGNORED_PREFIXES)


def era(stems: frozenset[str], labels: frozenset[str]) -> str:
    """The era whose spellings were seen: v0, v1, unknown, or v1>=X where X is the release of the newest one."""
    signs = stems | {"label:" + label for label in labels}
    return next((name for sign, name in ERAS if sign in signs), "unknown")
