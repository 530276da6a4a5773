"""A `LogSnapshot` as samples under the catalogue's names.

Input: a snapshot. Output: (name without namespace, labels, value), each (name, labels) once.
Invariant: closed label sets are complete from the first line on; absent figures give no sample.
"""

from collections.abc import Iterator, Mapping

from vllm_vitals.logs.events import CAPS, ERROR_KINDS, RESULTS
from vllm_vitals.logs.snapshot import LogSnapshot, SeriesView

Family = tuple[str, Mapping[str, str], float]

# Settings worth a series; the rest stay on the page and in JSON.
NUMERIC_SETTINGS = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "tensor_parallel_size",
    "pipeline_parallel_size", "data_parallel_size", "api_server_count", "block_size", "num_gpu_blocks",
    "num_gpu_blocks_override", "kv_cache_size_tokens", "kv_cache_memory_gib", "max_concurrency", "default_max_tokens",
    "enable_prefix_caching", "enable_chunked_prefill", "enforce_eager", "scheduler_reserve_full_isl", "watermark",
    "async_scheduling", "swap_space",
)  # fmt: skip


def log_families(snapshot: LogSnapshot) -> Iterator[Family]:
    """Give every sample that the logs give."""
    for source in snapshot.targets:
        for result in RESULTS:
            count = snapshot.records.get(source, {}).get(result, 0)
            yield "log_records_total", {"source": source, "result": result}, count
        for kind in ERROR_KINDS:
            yield (
                "log_engine_errors_total",
                {"source": source, "kind": kind},
                snapshot.errors.get(source, {}).get(kind, 0),
            )
    for view in snapshot.series:
        yield from _counts(view)
        yield from _figures(view)
    for view in snapshot.mixed:
        yield from _figures(view)
    for split in snapshot.splits:
        labels = {"model_name": split.model, "source": split.source}
        yield "log_route_split_helps", labels, float(split.helps)
    yield from _servers(snapshot)


def _labels(view: SeriesView) -> dict[str, str]:
    return {"model_name": view.model, "route": view.route, "source": view.source}


def _counts(view: SeriesView) -> Iterator[Family]:
    labels, counts = _labels(view), view.counts
    yield "log_responses_total", labels, counts.responses
    for cap in CAPS:
        yield "log_truncated_responses_total", {**labels, "cap": cap}, counts.truncated.get(cap, 0)
    yield "log_reasoning_truncated_total", labels, counts.reasoning_truncated
    yield "log_finish_reason_disagreements_total", labels, counts.disagreements
    yield "log_generated_tokens_total", labels, counts.generated_tokens
    yield "log_unreturned_tokens_total", labels, counts.unreturned_tokens


def _figures(view: SeriesView) -> Iterator[Family]:
    labels = _labels(view)
    for name, reading in (
        ("log_tpot_p50_seconds", view.tpot_p50_s),
        ("log_tpot_p99_seconds", view.tpot_p99_s),
        ("log_tpot_p99_p50_ratio", view.tpot_ratio),
        ("log_output_tokens_mean", view.output_mean),
        ("log_output_tokens_cv", view.output_cv),
        ("log_truncated_ratio", view.truncated),
        ("log_predicted_length_error_ratio", view.prediction_error),
        ("log_underpredicted_ratio", view.underpredicted),
        ("log_reasoning_tokens_p90", view.thinking_p90),
        ("log_answer_tokens_p90", view.answer_p90),
    ):
        if reading.value is not None:
            yield name, labels, reading.value


def _servers(snapshot: LogSnapshot) -> Iterator[Family]:
    for target, server in snapshot.servers.items():
        if not target:
            continue
        for name in NUMERIC_SETTINGS:
            value = server.settings.get(name)
            if isinstance(value, bool | int | float):
                yield "server_setting", {"target": target, "name": name}, float(value)
        for name, override in server.overrides.items():
            if override.confirmed is not None:
                yield "server_setting_overridden", {"target": target, "name": name[:64]}, float(override.confirmed)
