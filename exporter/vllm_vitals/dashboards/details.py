"""What else vLLM says of an engine: closed rows at the end of its dashboard, asked for only once somebody opens them.

Input: the site. Output: closed rows. Invariant: nothing here is judged, so nothing has a colour; each panel says which
option of vLLM or which version it needs.
"""

from vllm_vitals.dashboards import panels
from vllm_vitals.dashboards.panels import Column, Panel
from vllm_vitals.dashboards.promql import (
    BY_ENGINE,
    folded_target,
    gauge,
    mean,
    of_engine,
    quantile,
    rate,
    ratio,
    total,
)
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Site
from vllm_vitals.dashboards.theme import Row

_MOVED = ("connector", "direction")


def rows(site: Site) -> tuple[Row, ...]:
    """Return a row a subject."""
    made = {
        "Speculative decoding": _speculation(),
        "Caches beside the prefix cache": _caches(),
        "KV offload and transfer": _transfer(site),
        "LoRA": _lora(),
        "Where a request's time goes": _times(site),
        "Steps, model FLOPs and KV blocks": _hardware(site),
        "Parameters and faults of requests": _requests(site),
    }
    return tuple(Row(f"Details · {title}", shown, closed=True) for title, shown in made.items())


def _per_engine(expr: str) -> str:
    return total(expr, BY_ENGINE)


def _quantiles(name: str, what: str, site: Site) -> list[Query]:
    return [Query(quantile(q, name, site, BY_ENGINE), of_engine(f"{what} p{q * 100:g}")) for q in (0.5, 0.99)]


def _speculation() -> tuple[Panel, ...]:
    accepted, drafts = rate("spec_decode_accepted_tokens_total"), rate("spec_decode_drafts_total")
    by_position = rate("spec_decode_accepted_tokens_by_position_total", keep=("position",))
    off = "No drafts are proposed: speculative decoding is off, or nothing runs."
    return (
        panels.timeseries(
            "Draft tokens accepted",
            "Accepted over proposed draft tokens. When it falls by half, speculation costs more than it gives: compare "
            "the requests' time per token with it off.",
            [Query(ratio(accepted, rate("spec_decode_draft_tokens_total")), of_engine("accepted"))],
            "percentunit",
            off,
            high=1,
        ),
        panels.timeseries(
            "Tokens a draft gives",
            "Mean accepted tokens of a draft, and one more that the model itself makes. 1 means that no draft helps.",
            [Query(f"1 + {ratio(accepted, drafts)}", of_engine("tokens"))],
            "none",
            off,
        ),
        panels.timeseries(
            "Accepted by position in the draft",
            "Share of drafts whose token at this position was accepted. Where a position is near 0, propose fewer "
            "tokens (num_speculative_tokens).",
            [
                Query(
                    f"{by_position} / on ({BY_ENGINE}) group_left () ({drafts} > 0)", of_engine("position {{position}}")
                )
            ],
            "percentunit",
            off,
            high=1,
        ),
    )


def _caches() -> tuple[Panel, ...]:
    def hits(name: str) -> str:
        return ratio(rate(f"{name}_hits_total"), rate(f"{name}_queries_total"))

    return (
        panels.timeseries(
            "Hits outside and in the multimodal cache",
            "Share of tokens found in a cache outside the server (a load that then fails is counted too), and of items "
            "found in the multimodal processor's cache.",
            [
                Query(hits("external_prefix_cache"), of_engine("external")),
                Query(hits("mm_cache"), of_engine("multimodal")),
            ],
            "percentunit",
            "Neither cache is in use, or the server is older than vLLM 0.11.1.",
            high=1,
        ),
        panels.timeseries(
            "Cached prompt tokens per second, by tier",
            "Where the cached tokens of prompts were found: on the device, on the host, at a peer, on disk, or in an "
            "external cache that does not say.",
            [Query(rate("prefix_cache_hits_by_tier_total", keep=("tier",)), of_engine("{{tier}}"))],
            "short",
            "The server does not say by tier: vLLM 0.32 on does.",
        ),
        panels.timeseries(
            "Requests whose KV is being fetched",
            "Waiting requests by the stage of their fetch. A stage that stays full is the bottleneck: look at that "
            "store, not at this engine.",
            [Query(gauge("requests_kv_fetching", keep=("stage",)), of_engine("{{stage}}"))],
            "short",
            "No KV connector fetches, or the server is older than vLLM 0.32.",
        ),
    )


def _transfer(site: Site) -> tuple[Panel, ...]:
    seconds, count = (rate(f"kv_{what}_total", keep=_MOVED) for what in ("transfer_seconds", "transfers"))
    failures = rate("kv_transfer_failures_total", keep=("connector", "kind"))
    off = "No KV connector moves blocks, or this one does not say."
    none = "KV is not offloaded to CPU memory."
    return (
        panels.timeseries(
            "KV bytes moved per second",
            "Between the GPU and a store or another server, by connector and direction.",
            [Query(rate("kv_transfer_bytes_total", keep=_MOVED), of_engine("{{connector}} {{direction}}"))],
            "Bps",
            off,
        ),
        panels.timeseries(
            "Time a KV transfer takes",
            "Mean time of a transfer, by connector and direction. It adds to the first token where a request waits for "
            "its blocks.",
            [Query(ratio(seconds, count), of_engine("{{connector}} {{direction}}"))],
            "s",
            off,
        ),
        panels.timeseries(
            "KV transfer failures per second",
            "By connector and what failed. A failed load is computed anew, or fails its request: see the connector's "
            "log.",
            [Query(failures, of_engine("{{connector}} {{kind}}"))],
            "cps",
            off,
        ),
        panels.timeseries(
            "Blocks in CPU memory",
            "Blocks that are kept there, and those that wait to be stored; loaded back and what became of saves, per "
            "second.",
            [
                Query(gauge("kv_offload_blocks", keep=("status",)), of_engine("{{status}}")),
                Query(rate("kv_offload_loaded_blocks_total"), of_engine("loaded/s")),
                Query(rate("kv_offload_saves_total", keep=("outcome",)), of_engine("{{outcome}}/s")),
            ],
            "short",
            none,
        ),
        panels.timeseries(
            "Offloading memory held by transfers",
            "Share of the CPU memory for offloading that transfers in flight hold. It is not how full that memory is.",
            [Query(gauge("kv_offload_pinned_ratio", keep=("direction",)), of_engine("{{direction}}"))],
            "percentunit",
            none,
            high=1,
        ),
        panels.timeseries(
            "Look-ups in the offloading store",
            "Mean delay of look-ups that the scheduler waits for, and of those that it does not. Only the first holds "
            "up every request.",
            [
                Query(mean("kv_lookup_sync_seconds", site, BY_ENGINE), of_engine("waited for")),
                Query(mean("kv_lookup_async_seconds", site, BY_ENGINE), of_engine("not waited for")),
            ],
            "s",
            none,
        ),
    )


def _lora() -> tuple[Panel, ...]:
    return (
        panels.timeseries(
            "LoRA adapters in use",
            "Adapters of the running and of the waiting requests, and how many one batch may hold (dashed). Waiting "
            "adapters with no free slot queue whatever the KV cache has: raise max_loras.",
            [
                Query(folded_target("lora_adapters", keep=("status",)), "{{status}} · {{target}}"),
                Query(folded_target("lora_slots"), "slots · {{target}}"),
            ],
            "short",
            "The server runs without LoRA, or no request names an adapter.",
            width=12,
        ),
        panels.table(
            "LoRA adapters with requests",
            "Each adapter that has a running or a waiting request now, the first 32 of each kind.",
            [f"{folded_target('lora_adapter', keep=('adapter', 'status'))} == 1"],
            [Column("adapter", "Adapter"), Column("status", "Requests", width=90), Column("target", "Server")],
            "No request names an adapter now.",
            width=12,
            sort="Adapter",
        ),
    )


def _times(site: Site) -> tuple[Panel, ...]:
    parts = (
        ("queue_time_seconds", "Queue time", "Arrival to first schedule. Waiting after a preemption is not in it."),
        ("prefill_time_seconds", "Prefill time", "First schedule to first token: what long prompts cost."),
        ("decode_time_seconds", "Decode time", "First to last token, preemption included."),
        ("inference_time_seconds", "Inference time", "First schedule to last token, preemption included."),
        ("e2e_latency_seconds", "End to end", "Arrival to finish: queue, prompt and every token."),
        ("inter_token_latency_seconds", "Gap between two tokens", "Each gap, not each request: one stall shows."),
    )  # fmt: skip
    return tuple(
        panels.timeseries(
            title,
            f"Finished requests. {why} Median and p99, interpolated inside vLLM's buckets.",
            _quantiles(name, "", site),
            "s",
            "No request has finished in this range.",
        )
        for name, title, why in parts
    )


def _hardware(site: Site) -> tuple[Panel, ...]:
    mfu = "The server counts none: start vLLM with --enable-mfu-metrics."
    return (
        panels.timeseries(
            "Tokens of a step",
            "Prompt and generated tokens of each step that had output. At max_num_batched_tokens, prompts wait for "
            "room in a step.",
            _quantiles("iteration_tokens", "", site),
            "short",
            "No step had output in this range.",
            width=6,
        ),
        panels.timeseries(
            "Model FLOPs per GPU",
            "Floating point operations a second, recomputation included. Over the GPU's peak it is the model FLOPs "
            "utilisation (MFU).",
            [Query(rate("estimated_flops_total"), of_engine("FLOPs"))],
            "flops",
            mfu,
            width=6,
        ),
        panels.timeseries(
            "Memory traffic per GPU",
            "Bytes read and written a second. Near the GPU's memory bandwidth, decode cannot be faster at this batch.",
            [
                Query(rate("estimated_read_bytes_total"), of_engine("read")),
                Query(rate("estimated_write_bytes_total"), of_engine("written")),
            ],
            "Bps",
            mfu,
            width=6,
        ),
        panels.timeseries(
            "Residency of KV blocks, median",
            "Life of sampled blocks, time since last use when evicted, and time between two uses. Evicted long after "
            "their last use: the cache is large enough for this reuse.",
            [
                Query(quantile(0.5, f"kv_block_{name}_seconds", site, BY_ENGINE), of_engine(words))
                for name, words in (("lifetime", "life"), ("idle", "idle when evicted"), ("reuse_gap", "between uses"))
            ],
            "s",
            "No blocks are sampled: start vLLM with --kv-cache-metrics.",
            width=6,
        ),
    )


def _requests(site: Site) -> tuple[Panel, ...]:
    return (
        panels.timeseries(
            "Answers asked for at once (n)",
            "Mean n of requests. Each answer takes a sequence slot and KV of its own, so n = 4 is four requests.",
            [Query(mean("request_choices", site, BY_ENGINE), of_engine("n"))],
            "none",
            "No request has finished in this range.",
        ),
        panels.timeseries(
            "Prompt tokens computed of a request",
            "What was computed of each finished request's prompt, cached tokens left out: what prefill really costs.",
            _quantiles("request_computed_tokens", "", site),
            "short",
            "No request has finished in this range, or the server is older than vLLM 0.13.",
        ),
        panels.timeseries(
            "Faults and marks of requests",
            "Per second: finished requests with NaN in their logits (the model or the hardware is broken), the last "
            "token of wholly cached prompts computed again, and requests by what watermarking did.",
            [
                Query(rate("corrupted_requests_total"), of_engine("corrupted")),
                Query(rate("prompt_tokens_recomputed_total"), of_engine("last token computed again")),
                Query(rate("watermarked_requests_total", keep=("status",)), of_engine("watermark: {{status}}")),
            ],
            "cps",
            "The server counts none of them.",
        ),
    )
