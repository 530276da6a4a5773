"""The one vocabulary: every metric that vllm-vitals serves, and what each means.

The exporter, the rules, the dashboards, the review and the README table all read their names from here; a name typed
elsewhere is a bug that a test catches. ``native`` says whether recording rules over raw vLLM series can say the same
thing without the daemon, and why not where they can't.
"""

from dataclasses import dataclass
from enum import StrEnum

from vllm_vitals.vllm.lookup import PREFIX, wire

NAMESPACE = "vllm_vitals_"
ENGINE_LABELS = ("target", "model_name", "engine")
TARGET_LABELS = ("target",)
BOUNDS = ("estimate", "lower", "upper")


class Kind(StrEnum):
    """The Prometheus type."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. ``name`` has no namespace; a counter's ends in ``_total``; ``labels`` come after the scope's own."""

    name: str
    kind: Kind
    help: str
    scope: tuple[str, ...] = ENGINE_LABELS
    labels: tuple[str, ...] = ()
    native: bool = True
    why_not_native: str = ""

    @property
    def full_name(self) -> str:
        """Give the name on the wire."""
        return NAMESPACE + self.name

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Give the scope's labels, then this family's own."""
        return self.scope + self.labels


def _gauge(
    name: str, text: str, labels: tuple[str, ...] = (), scope: tuple[str, ...] = ENGINE_LABELS, no: str = ""
) -> Metric:
    return Metric(name, Kind.GAUGE, text, scope, labels, not no, no)


def _counter(
    name: str, text: str, labels: tuple[str, ...] = (), scope: tuple[str, ...] = ENGINE_LABELS, no: str = ""
) -> Metric:
    return Metric(name, Kind.COUNTER, text, scope, labels, not no, no)


def _histogram(name: str, text: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, text, ENGINE_LABELS, (), False, _COPIES)


_COPIES = "native mode never copies histograms: its dashboards read vLLM's own buckets"
_IN_LABELS = "sits in a label's value, which PromQL cannot read as a number"
_BOUNDS_NO = "PromQL cannot compute the bounds of the bucket that holds a quantile"
_LOGS = "comes from logs"
_DAEMON = "it is about the daemon itself"
_CANARY = "the daemon sends the canaries"
_MEMORY = "needs a memory of the last day"
_SCRIPT = "needs the advice table"

# What vLLM says, under names that no release changes.
NORMALISED = (
    _gauge("requests_running", "Requests in the running batch."),
    _gauge(
        "requests_waiting", "Requests waiting, by reason: capacity, deferred, or unsplit before vLLM 0.20.", ("reason",)
    ),
    _gauge(
        "kv_cache_usage_ratio", "KV cache blocks in use, 0 to 1, at the last scrape. Dips while victims free blocks."
    ),
    _gauge("kv_cache_capacity_tokens", "Tokens of KV cache that this engine has.", no=_IN_LABELS),
    _counter("preemptions_total", "Preemption events as vLLM delivers them (may be late)."),
    _counter(
        "prompt_tokens_total", "Prompt tokens of requests that produced their first output, cached ones included."
    ),
    _counter("prompt_tokens_computed_total", "Prompt tokens that were computed, not found in a cache (vLLM 0.16 on)."),
    _counter("generation_tokens_total", "Generated tokens."),
    _counter(
        "responses_total", "Finished responses by reason. vLLM does not count client disconnects.", ("finished_reason",)
    ),
    _counter(
        "rejected_requests_total",
        "Requests refused because the queue was full (vLLM 0.32 on); on the server's first engine.",
        no=f"no rule needs it: read {PREFIX}{wire('rejections')[0]} itself",
    ),
    _counter("prefix_cache_queries_total", "Tokens looked up in the prefix cache."),
    _counter("prefix_cache_hits_total", "Tokens found in the prefix cache."),
    _histogram("tpot_seconds", "Time per output token of finished requests (one observation a request, vLLM 0.11 on)."),
    _histogram("inter_token_latency_seconds", "Gap between two outputs of a request (one observation a gap)."),
    _histogram("ttft_seconds", "Time to first token, queueing included."),
    _histogram("e2e_latency_seconds", "Arrival to finish."),
    _histogram("queue_time_seconds", "Arrival to first schedule; waiting after a preemption is not in it."),
    _histogram("request_prompt_tokens", "Prompt length of finished requests."),
    _histogram("request_output_tokens", "Output length of finished requests."),
    _histogram("request_max_tokens", "max_tokens of finished requests, after the server's default."),
    _histogram("request_preemptions", "Preemptions of each finished request (vLLM 0.30 on)."),
)

_RAW = "no rule needs it: read vLLM's own series"
_MOVES = "of blocks between the GPU and a store or another server, by connector"

# More of what vLLM says, which nothing is judged by: absent where the server lacks it.
DETAILS = (
    _counter("spec_decode_drafts_total", "Drafts that were proposed (speculative decoding).", no=_RAW),
    _counter("spec_decode_draft_tokens_total", "Draft tokens that were proposed.", no=_RAW),
    _counter("spec_decode_accepted_tokens_total", "Draft tokens that were accepted; over the proposed ones, the acceptance.", no=_RAW),
    _counter("spec_decode_accepted_tokens_by_position_total", "Accepted draft tokens by position in the draft, from 0.",
             ("position",), no=_RAW),
    _counter("external_prefix_cache_queries_total", "Tokens looked up in a cache outside the server.", no=_RAW),
    _counter("external_prefix_cache_hits_total", "Tokens found there; a load that then fails is counted too.", no=_RAW),
    _counter("prefix_cache_hits_by_tier_total", "Tokens found in a cache, by where: device, host, p2p, disk, external_unspecified.",
             ("tier",), no=_RAW),
    _counter("mm_cache_queries_total", "Items looked up in the multimodal processor cache.", no=_RAW),
    _counter("mm_cache_hits_total", "Items found in the multimodal processor cache.", no=_RAW),
    _counter("estimated_flops_total", "Floating point operations per GPU, recomputation included (--enable-mfu-metrics).", no=_RAW),
    _counter("estimated_read_bytes_total", "Bytes read from memory per GPU (--enable-mfu-metrics).", no=_RAW),
    _counter("estimated_write_bytes_total", "Bytes written to memory per GPU (--enable-mfu-metrics).", no=_RAW),
    _counter("corrupted_requests_total", "Finished requests with NaN in their logits, where vLLM looks for them.", no=_RAW),
    _counter("prompt_tokens_recomputed_total", "The last token of prompts that were wholly cached (vLLM 0.16 to 0.19); not preemption.", no=_RAW),
    _counter("watermarked_requests_total", "Requests by what text watermarking did.", ("status",), no=_RAW),
    _gauge("requests_kv_fetching", "Waiting requests whose KV blocks are fetched, by stage.", ("stage",), no=_RAW),
    _counter("kv_transfer_bytes_total", f"Bytes {_MOVES}.", ("connector", "direction"), no=_RAW),
    _counter("kv_transfer_seconds_total", f"Time spent on transfers {_MOVES}.", ("connector", "direction"), no=_RAW),
    _counter("kv_transfers_total", f"Transfers {_MOVES}.", ("connector", "direction"), no=_RAW),
    _counter("kv_transfer_failures_total", "Failures on the way between the GPU and a store or another server, by connector and what failed.", ("connector", "kind"), no=_RAW),
    _counter("kv_offload_saves_total", "Blocks that were to be saved to CPU memory, by what became of them.", ("outcome",), no=_RAW),
    _counter("kv_offload_loaded_blocks_total", "Blocks loaded back from CPU memory.", no=_RAW),
    _gauge("kv_offload_blocks", "Blocks in CPU memory: used, or waiting to be stored.", ("status",), no=_RAW),
    _gauge("kv_offload_pinned_ratio", "Share of the offloading memory that transfers in flight hold, not how full it is.",
           ("direction",), no=_RAW),
    _histogram("iteration_tokens", "Tokens of each step that had output: computed prompt tokens (vLLM 0.23 on; all before) and generated ones."),
    _histogram("prefill_time_seconds", "First schedule to first token of finished requests."),
    _histogram("decode_time_seconds", "First to last token of finished requests, preemption included."),
    _histogram("inference_time_seconds", "First schedule to last token of finished requests."),
    _histogram("request_computed_tokens", "Prompt tokens computed for each finished request, cached ones left out (vLLM 0.13 on)."),
    _histogram("request_choices", "`n` of requests: answers asked for at once."),
    _histogram("kv_block_lifetime_seconds", "Life of sampled KV blocks (--kv-cache-metrics)."),
    _histogram("kv_block_idle_seconds", "Time since a KV block's last use when it was evicted (--kv-cache-metrics)."),
    _histogram("kv_block_reuse_gap_seconds", "Time between two uses of a KV block (--kv-cache-metrics)."),
    _histogram("kv_lookup_sync_seconds", "Delay of lookups in the offloading store that the scheduler waits for."),
    _histogram("kv_lookup_async_seconds", "Delay of lookups in the offloading store that it does not wait for."),
    _gauge("lora_adapters", "LoRA adapters of the running and of the waiting requests of a server.", ("status",), TARGET_LABELS, no=_IN_LABELS),
    _gauge("lora_adapter", "1 for each LoRA adapter that has a running or waiting request (the first 32 of each).",
           ("adapter", "status"), TARGET_LABELS, no=_IN_LABELS),
    _gauge("lora_slots", "LoRA adapters that one batch may hold.", (), TARGET_LABELS, no=_IN_LABELS),
)  # fmt: skip

DERIVED = (
    _gauge("state", "1 for the state that the engine is in, 0 for every other.", ("state",)),
    _gauge("state_since_timestamp_seconds", "When the engine entered its state."),
    _gauge("window_seconds", "Length of the window that rates and states come from; shorter on a young engine.", no=_DAEMON),
    _gauge("preemptions_per_second", "Preemption events a second over the fast window."),
    _gauge("preemptions_per_completion", "R: preemptions per finished request, over the shortest window with 20 finishes."),
    _gauge("repeat_preemption_ratio", "Share of finished requests that were preempted twice or more (vLLM 0.30 on)."),
    _gauge("recompute_tax_ratio", "Estimated share of the work that recomputes what preemption threw away."),
    _gauge("recompute_tax_lower_ratio", "Lower bound of the recompute tax."),
    _gauge("recompute_tax_upper_ratio", "Upper bound of the recompute tax."),
    _gauge("kv_cache_usage_max_ratio", "Largest KV usage over the fast window."),
    _gauge("kv_cache_demand_ratio", "KV usage if every waiting request ran too; above 1 the cache is too small.", no=_IN_LABELS),
    _gauge("kv_cache_full_windows", "Requests at max_model_len that fit the KV cache at once.", no=_IN_LABELS),
    _gauge("tpot_p50_seconds", "Median TPOT over the slow window, with its bucket's bounds.", ("source", "bound"), no=_BOUNDS_NO),
    _gauge("tpot_p99_seconds", "p99 TPOT over the slow window, with its bucket's bounds.", ("source", "bound"), no=_BOUNDS_NO),
    _gauge("tpot_p99_p50_ratio", "p99 over p50 TPOT, with bounds; absent below resolution.", ("source", "bound"), no=_BOUNDS_NO),
    _gauge("ttft_p99_seconds", "p99 time to first token over the slow window, with bounds.", ("bound",), no=_BOUNDS_NO),
    _gauge("stall_gaps_per_second", "Inter-token gaps longer than 1 s, a second: where preemption shows."),
    _gauge("truncated_ratio", "Share of responses that ended by length, over the slow window."),
    _gauge("output_tokens_mean", "Mean output length over the slow window."),
    _gauge("output_tokens_p90", "90th percentile of output length over the slow window: what caps are sized by.", no=_BOUNDS_NO),
    _gauge("prompt_tokens_mean", "Mean prompt length over the slow window."),
    _gauge("output_tokens_cv", "Coefficient of variation of output length, from buckets.", no=_BOUNDS_NO),
    _gauge("output_tokens_straggler_ratio", "p99 output length over the mean.", no=_BOUNDS_NO),
    _gauge("prefix_cache_hit_ratio", "Share of looked-up tokens found in the prefix cache, over the fast window."),
    _gauge("inflight_output_tokens_estimate", "Tokens since the last completion per request that can have made them: some request made about that many.",
           no="needs the counter's value at the last completion"),
    _gauge("abandoned_requests_per_second", "Requests that started and left without finishing, an estimate."),
    _gauge("expected_wait_seconds", "Waiting requests over the completion rate."),
    _gauge("useful_tokens_per_second", "Generated plus computed prompt tokens a second; recomputation is not in it."),
    _gauge("useful_tokens_baseline_per_second", "Median useful rate at this concurrency and length, last 24 h, without preemption.", no=_MEMORY),
    _gauge("advice", "1 for each piece of advice in force.", ("knob", "direction"), no=_SCRIPT),
    _counter("death_spirals_total", "Times the engine entered death_spiral.", no=_DAEMON),
    _counter("state_seconds_total", "Seconds spent in each state.", ("state",), no=_DAEMON),
)  # fmt: skip

SERVER = (
    _gauge("server_info", "1, with what the server is.", ("version", "dialect"), TARGET_LABELS, no=_IN_LABELS),
    _gauge("server_setting", "A numeric setting of the server.", ("name",), TARGET_LABELS, no=_IN_LABELS),
    _gauge("server_setting_overridden", "1 where the start-up log confirms a configured default, 0 where it dropped it.",
           ("name",), TARGET_LABELS, no=_LOGS),
)  # fmt: skip

LOGS = (
    _counter("log_records_total", "Log lines read, by what became of each.", ("source", "result"), (), no=_LOGS),
    _counter("log_responses_total", "Finished responses seen in logs.", ("model_name", "route", "source"), (), no=_LOGS),
    _counter("log_truncated_responses_total", "Responses truncated at a cap, by cap: request, server_default, context_window, unknown.",
             ("model_name", "route", "source", "cap"), (), no=_LOGS),
    _counter("log_reasoning_truncated_total", "Responses truncated inside their reasoning, with no answer.", ("model_name", "route", "source"), (), no=_LOGS),
    _counter("log_finish_reason_disagreements_total", "Responses at their cap with another finish reason.",
             ("model_name", "route", "source"), (), no=_LOGS),
    _counter("log_generated_tokens_total", "Completion tokens of logged responses.", ("model_name", "route", "source"), (), no=_LOGS),
    _counter("log_unreturned_tokens_total", "Generated tokens that were removed before the client saw them.",
             ("model_name", "route", "source"), (), no=_LOGS),
    _counter("log_engine_errors_total", "Engine errors in logs, by kind, whatever their level.", ("source", "kind"), (), no=_LOGS),
    _gauge("log_tpot_p50_seconds", "Exact median TPOT from logged responses.", ("model_name", "route", "source"), (), no=_LOGS),
    _gauge("log_tpot_p99_seconds", "Exact p99 TPOT from logged responses.", ("model_name", "route", "source"), (), no=_LOGS),
    _gauge("log_tpot_p99_p50_ratio", "Exact p99 over p50 TPOT from logged responses.", ("model_name", "route", "source"), (), no=_LOGS),
    _gauge("log_truncated_ratio", "Share of logged responses truncated at a cap, over the slow window.",
           ("model_name", "route", "source"), (), no=_LOGS),
    _gauge("log_output_tokens_mean", "Mean output length of logged responses.", ("model_name", "route", "source"), (), no=_LOGS),
    _gauge("log_output_tokens_cv", "Coefficient of variation of output length; route=\"\" is all routes mixed.",
           ("model_name", "route", "source"), (), no=_LOGS),
    _gauge("log_predicted_length_error_ratio", "Mean (predicted - actual) / actual output length; below 0 is under-prediction.",
           ("model_name", "route", "source"), (), no=_LOGS),
    _gauge("log_underpredicted_ratio", "Share of logged responses that came out longer than predicted.",
           ("model_name", "route", "source"), (), no=_LOGS),
    _gauge("log_reasoning_tokens_p90", "90th percentile of the thinking of logged responses; it shares max_tokens with the answer.",
           ("model_name", "route", "source"), (), no=_LOGS),
    _gauge("log_answer_tokens_p90", "90th percentile of what follows the thinking, of logged responses that were not truncated.",
           ("model_name", "route", "source"), (), no=_LOGS),
    _gauge("log_route_split_helps", "1 where serving a model's routes apart would make its output lengths more even.",
           ("model_name", "source"), (), no=_LOGS),
)  # fmt: skip

SELF = (
    _gauge("build_info", "1, with the version that runs.", ("version", "python"), (), no=_DAEMON),
    _gauge("monitor_impaired", "1 where vllm-vitals itself is kept from looking: by its file descriptors, its event loop, its disk.",
           ("reason",), (), no=_DAEMON),
    _gauge("event_loop_lag_seconds", "The longest that the daemon's event loop stood still over the last minute.", (), (), no=_DAEMON),
    _gauge("target_up", "1 where the last scrape gave a usable body.", (), TARGET_LABELS),
    _gauge("target_service_class", "1, with whether its users can wait: interactive or batch.", ("service_class",), TARGET_LABELS,
           no="comes from the exporter's config; without it, `batch` in the alert config"),
    _gauge("last_scrape_timestamp_seconds", "When the last good scrape was taken.", (), TARGET_LABELS, no=_DAEMON),
    _gauge("scrape_duration_seconds", "How long the last scrape took.", (), TARGET_LABELS, no=_DAEMON),
    _counter("scrape_errors_total", "Failed scrapes by reason.", ("reason",), TARGET_LABELS, no=_DAEMON),
    _counter("invalid_samples_total", "Samples dropped because they cannot be true.", ("family",), TARGET_LABELS, no=_DAEMON),
    _gauge("contradictions", "What the server's page says that cannot be true together, by check: findings now, 0 where there is none.",
           ("check",), TARGET_LABELS, no=_DAEMON),
    _counter("canary_requests_total", "Canary requests by outcome: ok, timeout, error. Absent where none are sent.",
             ("outcome",), TARGET_LABELS, no=_CANARY),
    _gauge("canary_duration_seconds", "How long the last canary request took; its deadline where it timed out.",
           (), TARGET_LABELS, no=_CANARY),
    _gauge("unknown_vllm_families", "vLLM families that this version of the exporter does not know.", (), TARGET_LABELS, no=_DAEMON),
)  # fmt: skip

METRICS: tuple[Metric, ...] = NORMALISED + DETAILS + DERIVED + SERVER + LOGS + SELF
BY_NAME = {metric.name: metric for metric in METRICS}
