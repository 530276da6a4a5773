"""Every vLLM family the simulated server exposes, in vLLM's own order, as data.

Input: one engine's `EngineStats`. Output: name, type, help, label sets and values. Names, help texts and labels are
those of vllm/v1/metrics/loggers.py (0.32), of 0.11 and of the V0 engine (vllm/engine/metrics.py, 0.6). Invariant:
``labels`` and ``values`` have the same length, and ``values`` follows it whatever the engine does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from vllm_vitals.simulator.stats import FINISH_REASONS, EngineStats


class Dialect(StrEnum):
    """Which era's names are spoken."""

    V0 = "v0"
    V0_11 = "0.11"
    V0_32 = "0.32"


Values = Callable[[EngineStats], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """One family. ``labels`` are the label sets beside engine and model_name; a histogram names its ``source``."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    values: Values = lambda _: (0.0,)
    labels: tuple[Mapping[str, str], ...] = ({},)
    source: str = ""
    dialects: tuple[Dialect, ...] = (Dialect.V0_11, Dialect.V0_32)
    per_engine: bool = True

    @property
    def set_by_steps(self) -> bool:
        """A gauge that the engine's steps set; the sleep state is set at start."""
        return self.kind == "gauge" and not self.name.endswith("sleep_state")


def _each(label: str, *values: str) -> tuple[Mapping[str, str], ...]:
    return tuple({label: value} for value in values)


def _zeros(count: int) -> Values:
    return lambda _: (0.0,) * count


_NEW = (Dialect.V0_32,)
_OLD = (Dialect.V0,)
_EVERY = tuple(Dialect)
_V0_REASONS = ("stop", "length", "abort")
_FLOPS = "(for Model Flops Utilization calculations)."


def _histogram(
    name: str, text: str, source: str = "", dialects: tuple[Dialect, ...] = (Dialect.V0_11, Dialect.V0_32)
) -> Family:
    return Family(f"vllm:{name}", "histogram", text, source=source or name, dialects=dialects)


def _latencies(name: str, text: str) -> Family:
    return _histogram(name, text, dialects=_EVERY)


FAMILIES: tuple[Family, ...] = (
    Family("vllm:estimated_flops_per_gpu_total", "counter",
           f"Estimated number of floating point operations per GPU {_FLOPS}", dialects=_NEW),
    Family("vllm:estimated_read_bytes_per_gpu_total", "counter",
           f"Estimated number of bytes read from memory per GPU {_FLOPS}", dialects=_NEW),
    Family("vllm:estimated_write_bytes_per_gpu_total", "counter",
           f"Estimated number of bytes written to memory per GPU {_FLOPS}", dialects=_NEW),
    Family("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.",
           lambda s: (s.running,), dialects=_EVERY),
    Family("vllm:num_requests_swapped", "gauge", "Number of requests swapped to CPU.", dialects=_OLD),
    Family("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.",
           lambda s: (s.waiting,), dialects=_EVERY),
    Family("vllm:num_requests_waiting_by_reason", "gauge",
           "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity;"
           " 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status)."
           " Sum of all reasons equals vllm:num_requests_waiting.",
           lambda s: (s.waiting - s.deferred, s.deferred), _each("reason", "capacity", "deferred"), dialects=_NEW),
    Family("vllm:engine_sleep_state", "gauge",
           "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded"
           " = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
           lambda s: (s.sleep_level == 0, s.sleep_level == 1, s.sleep_level == 2),
           _each("sleep_state", "awake", "weights_offloaded", "discard_all")),
    Family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", lambda s: (s.kv_usage,)),
    Family("vllm:gpu_cache_usage_perc", "gauge", "GPU KV-cache usage. 1 means 100 percent usage.",
           lambda s: (s.kv_usage,), dialects=_OLD),
    Family("vllm:cpu_cache_usage_perc", "gauge", "CPU KV-cache usage. 1 means 100 percent usage.", dialects=_OLD),
    Family("vllm:cpu_prefix_cache_hit_rate", "gauge", "CPU prefix cache block hit rate.", lambda _: (-1.0,),
           dialects=_OLD),
    Family("vllm:gpu_prefix_cache_hit_rate", "gauge", "GPU prefix cache block hit rate.",
           lambda s: (s.device_hits / s.prefix_queries if s.prefix_queries else -1.0,), dialects=_OLD),
    Family("vllm:prefix_cache_queries_total", "counter",
           "Prefix cache queries, in terms of number of queried tokens.", lambda s: (s.prefix_queries,)),
    Family("vllm:prefix_cache_hits_total", "counter",
           "Prefix cache hits, in terms of number of cached tokens.", lambda s: (s.device_hits,)),
    Family("vllm:external_prefix_cache_queries_total", "counter",
           "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried"
           " tokens.", lambda s: (s.external_queries,)),
    Family("vllm:external_prefix_cache_hits_total", "counter",
           "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached"
           " tokens.", lambda s: (s.external_hits,)),
    Family("vllm:mm_cache_queries_total", "counter",
           "Multi-modal cache queries, in terms of number of queried items."),
    Family("vllm:mm_cache_hits_total", "counter", "Multi-modal cache hits, in terms of number of cached items."),
    Family("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.",
           lambda s: (s.preemptions,), dialects=_EVERY),
    Family("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.",
           lambda s: (s.prompt_tokens,)),
    Family("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.",
           lambda s: (s.prefilled,), dialects=_OLD),
    Family("vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.",
           lambda s: (s.prompt_tokens - s.cached_tokens, s.cached_tokens, 0),
           _each("source", "local_compute", "local_cache_hit", "external_kv_transfer"), dialects=_NEW),
    Family("vllm:prompt_tokens_cached_total", "counter", "Number of cached prompt tokens (local + external).",
           lambda s: (s.cached_tokens,), dialects=_NEW),
    Family("vllm:prompt_tokens_cached_by_source_total", "counter",
           "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM),"
           " disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to"
           " vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
           lambda s: (s.device_hits, 0, 0, 0, s.external_hits),
           _each("source", "device", "host", "p2p", "disk", "external_unspecified"), dialects=_NEW),
    Family("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.",
           lambda s: (s.generation_tokens,), dialects=_EVERY),
    Family("vllm:request_success_total", "counter", "Count of successfully processed requests.",
           lambda s: tuple(s.responses.values()), _each("finished_reason", *FINISH_REASONS), dialects=_NEW),
    Family("vllm:request_success_total", "counter", "Count of successfully processed requests.",
           lambda s: tuple(s.responses[reason] for reason in _V0_REASONS), _each("finished_reason", *_V0_REASONS),
           dialects=(Dialect.V0, Dialect.V0_11)),
    Family("vllm:admission_rejections_total", "counter",
           "Number of admission attempts rejected by a queue limit, by reason.", lambda s: (s.queue_rejections, 0),
           _each("reason", "max_num_queued_reqs", "max_num_queued_tokens"), dialects=_NEW, per_engine=False),
    _latencies("request_prompt_tokens", "Number of prefill tokens processed."),
    _latencies("request_generation_tokens", "Number of generation tokens processed."),
    _latencies("iteration_tokens_total", "Histogram of number of tokens per engine_step."),
    _latencies("request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens."),
    _latencies("request_params_n", "Histogram of the n request parameter."),
    _latencies("request_params_max_tokens", "Histogram of the max_tokens request parameter."),
    _latencies("time_to_first_token_seconds", "Histogram of time to first token in seconds."),
    _histogram("time_per_output_token_seconds",
               "Histogram of time per output token in seconds.DEPRECATED: Use vllm:inter_token_latency_seconds"
               " instead.",
               "inter_token_latency_seconds", (Dialect.V0_11,)),
    _histogram("time_per_output_token_seconds", "Histogram of time per output token in seconds.",
               "inter_token_latency_seconds", _OLD),
    _histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds."),
    _histogram("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request."),
    _latencies("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds."),
    _latencies("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request."),
    _latencies("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request."),
    _latencies("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request."),
    _latencies("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request."),
    _histogram("request_num_preemptions", "Histogram of the number of times a request was preempted.", dialects=_NEW),
    _histogram("request_prefill_kv_computed_tokens",
               "Histogram of new KV tokens computed during prefill (excluding cached tokens).", dialects=_NEW),
)  # fmt: skip


def speculation(draft_tokens: int) -> tuple[Family, ...]:
    """Return the families of speculative decoding (vllm/v1/spec_decode/metrics.py), which stand before all others."""
    if not draft_tokens:
        return ()
    positions = _each("position", *(str(position) for position in range(draft_tokens)))
    return (
        Family("vllm:spec_decode_num_drafts_total", "counter", "Number of spec decoding drafts.",
               lambda s: (s.drafts,)),
        Family("vllm:spec_decode_num_draft_tokens_total", "counter", "Number of draft tokens.",
               lambda s: (s.draft_tokens,)),
        Family("vllm:spec_decode_num_accepted_tokens_total", "counter", "Number of accepted tokens.",
               lambda s: (sum(int(accepted) for accepted in s.accepted_at),)),
        Family("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
               "Accepted tokens per draft position.",
               lambda s: tuple(int(accepted) for accepted in s.accepted_at), positions),
    )  # fmt: skip


def families(dialect: Dialect, draft_tokens: int = 0) -> list[Family]:
    """Return the families that `dialect` has, in order."""
    return [family for family in (*speculation(draft_tokens), *FAMILIES) if dialect in family.dialects]
