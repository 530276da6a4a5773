"""Every vLLM family the simulated server exposes, in vLLM's own order, as data.

Input: one engine's `EngineStats`. Output: name, type, help, label sets and values. Help texts and labels are those of
vllm/v1/metrics/loggers.py (0.32), of 0.11 and of the V0 engine (vllm/engine/metrics.py, 0.6); names, types, buckets and
who has which come from `vllm_vitals.vllm`. Invariant: ``labels`` and ``values`` have the same length, and ``values``
follows it whatever the engine does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from vllm_vitals.simulator.stats import FINISH_REASONS, EngineStats
from vllm_vitals.vllm.family import Kind
from vllm_vitals.vllm.lookup import PREFIX, family


class Dialect(StrEnum):
    """Which era's names are spoken."""

    V0 = "v0"
    V0_11 = "0.11"
    V0_32 = "0.32"

    @property
    def release(self) -> str:
        """The release whose names these are."""
        return {Dialect.V0: "0.6.6", Dialect.V0_11: "0.11.2", Dialect.V0_32: "0.32"}[self]


Values = Callable[[EngineStats], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """What a server says of one field of `vllm_vitals.vllm.families`, under one of its spellings.

    ``labels`` are the label sets beside engine and model_name; ``dialects`` those that say it this way.
    """

    field: str
    help: str
    values: Values = lambda _: (0.0,)
    labels: tuple[Mapping[str, str], ...] = ({},)
    spelling: int = 0
    dialects: tuple[Dialect, ...] = tuple(Dialect)
    per_engine: bool = True

    @property
    def name(self) -> str:
        """The name on the wire."""
        return PREFIX + family(self.field).wire()[self.spelling]

    @property
    def kind(self) -> Kind:
        """The Prometheus type."""
        return family(self.field).kind

    @property
    def set_by_steps(self) -> bool:
        """A gauge that the engine's steps set; the sleep state is set at start."""
        return self.kind == "gauge" and self.field != "asleep"


def _each(label: str, *values: str) -> tuple[Mapping[str, str], ...]:
    return tuple({label: value} for value in values)


def _named(field: str) -> str:
    return PREFIX + family(field).names[0].text


_V0 = (Dialect.V0,)
_V1 = (Dialect.V0_11, Dialect.V0_32)
_V0_REASONS = ("stop", "length", "abort")
_FLOPS = "(for Model Flops Utilization calculations)."

FAMILIES: tuple[Row, ...] = (
    Row("flops", f"Estimated number of floating point operations per GPU {_FLOPS}"),
    Row("read_bytes", f"Estimated number of bytes read from memory per GPU {_FLOPS}"),
    Row("write_bytes", f"Estimated number of bytes written to memory per GPU {_FLOPS}"),
    Row("running", "Number of requests in model execution batches.",
           lambda s: (s.running,)),
    Row("swapped", "Number of requests swapped to CPU."),
    Row("waiting", "Number of requests waiting to be processed.",
           lambda s: (s.waiting,)),
    Row("waiting_by_reason",
           "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity;"
           " 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status)."
           f" Sum of all reasons equals {_named('waiting')}.",
           lambda s: (s.waiting - s.deferred, s.deferred), _each("reason", "capacity", "deferred")),
    Row("asleep",
           "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded"
           " = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
           lambda s: (s.sleep_level == 0, s.sleep_level == 1, s.sleep_level == 2),
           _each("sleep_state", "awake", "weights_offloaded", "discard_all")),
    Row("kv_usage", "KV-cache usage. 1 means 100 percent usage.", lambda s: (s.kv_usage,)),
    Row("kv_usage", "GPU KV-cache usage. 1 means 100 percent usage.",
           lambda s: (s.kv_usage,), spelling=1),
    Row("cpu_kv_usage", "CPU KV-cache usage. 1 means 100 percent usage."),
    Row("cpu_prefix_hit_rate", "CPU prefix cache block hit rate.", lambda _: (-1.0,)),
    Row("gpu_prefix_hit_rate", "GPU prefix cache block hit rate.",
           lambda s: (s.device_hits / s.prefix_queries if s.prefix_queries else -1.0,)),
    Row("prefix_cache_queries",
           "Prefix cache queries, in terms of number of queried tokens.", lambda s: (s.prefix_queries,)),
    Row("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", lambda s: (s.device_hits,)),
    Row("external_queries",
           "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried"
           " tokens.", lambda s: (s.external_queries,)),
    Row("external_hits",
           "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached"
           " tokens.", lambda s: (s.external_hits,)),
    Row("mm_queries", "Multi-modal cache queries, in terms of number of queried items."),
    Row("mm_hits", "Multi-modal cache hits, in terms of number of cached items."),
    Row("preemptions", "Cumulative number of preemption from the engine.",
           lambda s: (s.preemptions,)),
    Row("prompt_tokens", "Number of prefill tokens processed.", lambda s: (s.prompt_tokens,), dialects=_V1),
    Row("prompt_tokens", "Number of prefill tokens processed.", lambda s: (s.prefilled,), dialects=_V0),
    Row("prompt_tokens_computed", "Number of prompt tokens by source.",
           lambda s: (s.prompt_tokens - s.cached_tokens, s.cached_tokens, 0),
           _each("source", "local_compute", "local_cache_hit", "external_kv_transfer")),
    Row("prompt_tokens_cached", "Number of cached prompt tokens (local + external).",
           lambda s: (s.cached_tokens,)),
    Row("cached_by_source",
           "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM),"
           " disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to"
           f" {_named('prefix_cache_hits')} + {_named('external_hits')}.",
           lambda s: (s.device_hits, 0, 0, 0, s.external_hits),
           _each("source", "device", "host", "p2p", "disk", "external_unspecified")),
    Row("generation_tokens", "Number of generation tokens processed.",
           lambda s: (s.generation_tokens,)),
    Row("responses", "Count of successfully processed requests.",
           lambda s: tuple(s.responses.values()), _each("finished_reason", *FINISH_REASONS),
           dialects=(Dialect.V0_32,)),
    Row("responses", "Count of successfully processed requests.",
           lambda s: tuple(s.responses[reason] for reason in _V0_REASONS), _each("finished_reason", *_V0_REASONS),
           dialects=(Dialect.V0, Dialect.V0_11)),
    Row("rejections", "Number of admission attempts rejected by a queue limit, by reason.",
           lambda s: (s.queue_rejections, 0),
           _each("reason", "max_num_queued_reqs", "max_num_queued_tokens"), per_engine=False),
    Row("request_prompt_tokens", "Number of prefill tokens processed."),
    Row("request_output_tokens", "Number of generation tokens processed."),
    Row("iteration_tokens", "Histogram of number of tokens per engine_step."),
    Row("request_longest_output", "Histogram of maximum number of requested generation tokens."),
    Row("request_choices", "Histogram of the n request parameter."),
    Row("request_max_tokens", "Histogram of the max_tokens request parameter."),
    Row("ttft_seconds", "Histogram of time to first token in seconds."),
    Row("inter_token_latency_seconds",
           f"Histogram of time per output token in seconds.DEPRECATED: Use {_named('inter_token_latency_seconds')}"
           " instead.", spelling=1, dialects=_V1),
    Row("inter_token_latency_seconds", "Histogram of time per output token in seconds.", spelling=1, dialects=_V0),
    Row("inter_token_latency_seconds", "Histogram of inter-token latency in seconds."),
    Row("tpot_seconds", "Histogram of time_per_output_token_seconds per request."),
    Row("e2e_latency_seconds", "Histogram of e2e request latency in seconds."),
    Row("queue_time_seconds", "Histogram of time spent in WAITING phase for request."),
    Row("inference_time_seconds", "Histogram of time spent in RUNNING phase for request."),
    Row("prefill_time_seconds", "Histogram of time spent in PREFILL phase for request."),
    Row("decode_time_seconds", "Histogram of time spent in DECODE phase for request."),
    Row("request_preemptions", "Histogram of the number of times a request was preempted."),
    Row("request_computed_tokens", "Histogram of new KV tokens computed during prefill (excluding cached tokens)."),
)  # fmt: skip


def speculation(draft_tokens: int) -> tuple[Row, ...]:
    """Return the rows of speculative decoding (vllm/v1/spec_decode/metrics.py), which stand before all others."""
    if not draft_tokens:
        return ()
    positions = _each("position", *(str(position) for position in range(draft_tokens)))
    return (
        Row("spec_drafts", "Number of spec decoding drafts.", lambda s: (s.drafts,), dialects=_V1),
        Row("spec_draft_tokens", "Number of draft tokens.", lambda s: (s.draft_tokens,), dialects=_V1),
        Row("spec_accepted", "Number of accepted tokens.",
            lambda s: (sum(int(accepted) for accepted in s.accepted_at),), dialects=_V1),
        Row("spec_accepted_at", "Accepted tokens per draft position.",
            lambda s: tuple(int(accepted) for accepted in s.accepted_at), positions),
    )  # fmt: skip


def families(dialect: Dialect, draft_tokens: int = 0) -> list[Row]:
    """Return what a dialect says, in order."""
    return [
        row
        for row in (*speculation(draft_tokens), *FAMILIES)
        if dialect in row.dialects and family(row.field).names[row.spelling].served(dialect.release)
    ]
