"""The table: every family of vLLM that is known, how each era spells it, since which release, and how it is read.

Sources: vllm/v1/metrics/loggers.py and vllm/engine/metrics.py of the releases 0.3 to 0.33. Invariant: a name of vLLM's
stands here once, and nowhere else in the package: the parser, the native rules, the raw dashboards and the simulator
read it from here, by the row's field. What no judgement rests on is in `vllm_vitals.vllm.details`.
"""

from vllm_vitals.core.fold_series import ANSWERS, ASLEEP, CONCURRENT, DISTINCT, EARLIEST, PEAK, RATIO, TOTAL, split_by
from vllm_vitals.vllm import buckets
from vllm_vitals.vllm.details import DETAILS
from vllm_vitals.vllm.family import Family, Name, counter, every, gauge, histogram, unread, v0_only
from vllm_vitals.vllm.routes import HTTP_REQUESTS

LATENCY = buckets.REQUEST_LATENCY

JUDGED: tuple[Family, ...] = (
    gauge("requests_running", "running", CONCURRENT, "num_requests_running"),
    gauge("requests_waiting", "waiting", CONCURRENT, "num_requests_waiting"),
    gauge("requests_waiting", "swapped", CONCURRENT, v0_only("num_requests_swapped")),
    gauge("requests_waiting", "waiting_by_reason", split_by("reason", CONCURRENT),
          Name("num_requests_waiting_by_reason", "0.20"), labels=("reason",)),
    gauge("kv_cache_usage_ratio", "kv_usage", RATIO,
          Name("kv_cache_usage_perc", "0.9.2"), every("gpu_cache_usage_perc", until="0.11")),
    gauge("engine_sleep_state", "asleep", ASLEEP, Name("engine_sleep_state", "0.11.1"), labels=("sleep_state",)),
    counter("preemptions_total", "preemptions", "num_preemptions"),
    counter("prompt_tokens_total", "prompt_tokens", "prompt_tokens"),
    counter("prompt_tokens_computed_total", "prompt_tokens_computed", Name("prompt_tokens_by_source", "0.16"),
            only=("source", "local_compute"), labels=("source",)),
    counter("prompt_tokens_computed_total", "prompt_tokens_cached", Name("prompt_tokens_cached", "0.16")),
    counter("generation_tokens_total", "generation_tokens", "generation_tokens"),
    counter("responses_total", "responses", "request_success",
            fold=split_by("finished_reason", TOTAL, whole=True, alias="finish_reason"),
            labels=("finished_reason", "finish_reason")),
    counter("prefix_cache_queries_total", "prefix_cache_queries", Name("prefix_cache_queries", "0.9.2"),
            Name("gpu_prefix_cache_queries", until="0.11", in_blocks=True)),
    counter("prefix_cache_hits_total", "prefix_cache_hits", Name("prefix_cache_hits", "0.9.2"),
            Name("gpu_prefix_cache_hits", until="0.11", in_blocks=True)),
    counter("rejected_requests_total", "rejections", Name("admission_rejections", "0.32"), shared=True,
            labels=("reason",)),
    gauge("rl_weight_update", "updating", PEAK, Name("rl_weight_update_operations_in_flight", "0.32"), shared=True,
          labels=("operation",), when="reinforcement learning"),
    gauge("sleep_mode_operation", "moving", PEAK, Name("sleep_mode_operations_in_flight", "0.32"), shared=True,
          labels=("operation",), when="sleep mode"),
    # All counters of an engine are created together: one of them says when.
    Family("started_at", "started_at", EARLIEST, (Name("generation_tokens_created"), Name("prompt_tokens_created")),
           "series", when="one API server"),
    histogram("tpot_seconds", buckets.INTER_TOKEN, Name("request_time_per_output_token_seconds", "0.11")),
    # The old name meant the gap between two outputs in V0 and V1 alike, never a request's mean.
    histogram("inter_token_latency_seconds", buckets.INTER_TOKEN,
              Name("inter_token_latency_seconds", "0.10.2", v0="0.10.2"),
              every("time_per_output_token_seconds", until="0.12")),
    histogram("ttft_seconds", buckets.FIRST_TOKEN, "time_to_first_token_seconds"),
    histogram("e2e_latency_seconds", LATENCY, "e2e_request_latency_seconds"),
    histogram("queue_time_seconds", LATENCY, "request_queue_time_seconds", v0_only("time_in_queue_requests")),
    histogram("request_prompt_tokens", buckets.tokens, "request_prompt_tokens"),
    histogram("request_output_tokens", buckets.tokens, "request_generation_tokens"),
    histogram("request_max_tokens", buckets.tokens, "request_params_max_tokens"),
    histogram("request_preemptions", buckets.PREEMPTIONS, Name("request_num_preemptions", "0.30")),
)  # fmt: skip

FAMILIES = (*JUDGED, *DETAILS)

# Without a prefix: the process (absent where several API servers share their metrics), and the answers of the HTTP
# server before the engines.
PROCESS_START = Family("started_at", "process_start", DISTINCT, (every("process_start_time_seconds"),), "series",
                       shared=True)  # fmt: skip
HTTP = Family("http_requests_total", "http", ANSWERS, (every(HTTP_REQUESTS + "_total"),), "series", shared=True)

UNREAD: tuple[Family, ...] = (
    # Its labels hold the names of adapters, and every combination is a series that stays: `core.lora` reads it.
    unread("gauge", "lora_requests_info", field="lora", when="LoRA"),
    unread("histogram", "request_max_num_generation_tokens", field="request_longest_output", bounds=buckets.tokens),
    unread("histogram", Name("rl_weight_update_operation_duration_seconds", "0.32"), when="reinforcement learning"),
    unread("histogram", Name("sleep_mode_operation_duration_seconds", "0.32"), when="sleep mode"),
    unread("counter", Name("tool_call_parser_invocations", "0.24"), when="a tool call parser"),
    unread("histogram", v0_only("request_params_best_of"), when="V0 before 0.6.3"),
    unread("gauge", v0_only("cpu_cache_usage_perc"), field="cpu_kv_usage"),
    unread("gauge", v0_only("gpu_prefix_cache_hit_rate"), field="gpu_prefix_hit_rate"),
    unread("gauge", v0_only("cpu_prefix_cache_hit_rate"), field="cpu_prefix_hit_rate"),
    unread("counter", v0_only("tokens"), when="V0 before 0.8"),
    unread("histogram", v0_only("model_forward_time_milliseconds"), when="V0 tracing"),
    unread("histogram", v0_only("model_execute_time_milliseconds"), when="V0 tracing"),
    unread("gauge", v0_only("avg_prompt_throughput_toks_per_s"), when="V0 before 0.7"),
    unread("gauge", v0_only("avg_generation_throughput_toks_per_s"), when="V0 before 0.7"),
)  # fmt: skip
# Stores outside the GPU, from which a preempted request takes its blocks again.
KV_STORES = ("kv_offload_", "simple_kv_offload_", "mooncake_store_", "hisparse_", "hf3fs_", "umbp_", "lmcache")
# Between prefill and decode servers blocks travel once a request: their schedulers set do_remote_prefill to False after
# it (kv_connector/v1/{nixl,mooncake}), so a victim is computed again.
KV_TRANSFERS = ("nixl_", "mooncake_")
# Families of parts of vLLM that name their own.
UNREAD_PREFIXES = (*KV_STORES, *KV_TRANSFERS, "spec_decode_", "diffusion_", "websocket_")
