"""What vLLM says that nothing is judged by: speculation, offload, transfer, caches, FLOPs, LoRA; how it is shown."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.core.test_dialect import V1, normal, only, page
from vllm_vitals.catalog import BY_NAME, DETAILS, Kind
from vllm_vitals.core.dialect import Layout, normalise
from vllm_vitals.core.lora import MAX_ADAPTERS, Lora
from vllm_vitals.core.render import TargetRenderer, join
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.vllm import details
from vllm_vitals.vllm.family import Family

DATA = Path(__file__).parents[1] / "data"
PAGES = sorted(path.name.split(".")[0] for path in (DATA / "pages").iterdir())
Details = Mapping[str, Mapping[tuple[str, ...], float]]


def series(text: str) -> list[tuple[str, Mapping[str, str], float]]:
    """Read a page by the reference parser."""
    families = text_string_to_metric_families(text)
    return [(s.name.removeprefix("vllm:"), s.labels, float(s.value)) for family in families for s in family.samples]


def expected(text: str) -> Details:
    """Say what the details of the one engine on a page are, straight from the table."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    shown = [row for row in details.DETAILS if row.says is not None]
    for name, labels, value in series(text):
        for row in shown:
            if name in row.wire() and (value or not row.name.startswith("estimated_")):
                own = BY_NAME[row.name].labels[len(row.says or ()) :]
                key = (*(row.says or ()), *(labels[label] for label in row.labels[: len(own)]))
                parts = found.setdefault(row.name, {})
                parts[key] = parts.get(key, 0.0) + value
    return found


@pytest.mark.parametrize("name", PAGES)
def test_real_pages_say_what_the_reference_parser_reads(name: str) -> None:
    text = page(name)
    assert only(text).details == expected(text)


def test_speculation_is_read_to_the_position() -> None:
    """Half of it drafted nonsense: 49 % were accepted in all."""
    sample = only(page("spec_collapse"))
    assert sample.detail("spec_decode_drafts_total") == 10868
    assert sample.detail("spec_decode_draft_tokens_total") == 41221
    assert sample.detail("spec_decode_accepted_tokens_total") == 20090
    by_position = sample.details["spec_decode_accepted_tokens_by_position_total"]
    assert by_position == {("0",): 5556, ("1",): 4975, ("2",): 4890, ("3",): 4669}
    assert sum(by_position.values()) == sample.detail("spec_decode_accepted_tokens_total")


def test_an_external_cache_whose_loads_fail_counts_them_as_hits() -> None:
    sample = only(page("errors_most_fail"))
    assert sample.detail("external_prefix_cache_hits_total") == 19968
    assert sample.details["prefix_cache_hits_by_tier_total"]["external_unspecified",] == 19968


def test_what_a_server_lacks_is_absent() -> None:
    sample = only(V1)
    assert sample.details == {}
    assert sample.detail("spec_decode_drafts_total") is None
    with gzip.open(DATA / "versions" / "0.14.1" / "metrics.jsonl.gz", "rt") as lines:
        old = only(json.loads(list(lines)[-1])["text"])
    assert set(old.details) == {
        "external_prefix_cache_queries_total", "external_prefix_cache_hits_total",
        "mm_cache_queries_total", "mm_cache_hits_total",
    }  # fmt: skip


CL = 'engine="0",model_name="m"'


def line(name: str, value: float, labels: str = "") -> str:
    return f"vllm:{name}{{{CL}{labels and ',' + labels}}} {value}\n"


def test_flops_that_stay_0_are_not_known() -> None:
    """The counters are always there; only --enable-mfu-metrics moves them."""
    off = V1 + line("estimated_flops_per_gpu_total", 0) + line("estimated_read_bytes_per_gpu_total", 0)
    assert only(off).details == {}
    on = V1 + line("estimated_flops_per_gpu_total", 5e12) + line("estimated_read_bytes_per_gpu_total", 0)
    assert only(on).details == {"estimated_flops_total": {(): 5e12}}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (line("nixl_bytes_transferred_sum", 7) + line("nixl_xfer_time_seconds_sum", 2)
         + line("nixl_xfer_time_seconds_count", 3) + line("nixl_num_failed_transfers_total", 4)
         + line("nixl_num_kv_expired_reqs_total", 5),
         {"kv_transfer_bytes_total": {("nixl", "load"): 7}, "kv_transfer_seconds_total": {("nixl", "load"): 2},
          "kv_transfers_total": {("nixl", "load"): 3},
          "kv_transfer_failures_total": {("nixl", "transfer"): 4, ("nixl", "expired"): 5}}),
        (line("kv_offload_load_bytes_total", 1) + line("kv_offload_store_bytes_total", 2)
         + line("kv_offload_load_time_total", 3) + line("kv_offload_allocation_failure_total", 4),
         {"kv_transfer_bytes_total": {("offload", "load"): 1, ("offload", "store"): 2},
          "kv_transfer_seconds_total": {("offload", "load"): 3},
          "kv_transfer_failures_total": {("offload", "allocation"): 4}}),
        (line("mooncake_store_operation_bytes_total", 1, 'operation="get",status="ok"')
         + line("mooncake_store_operation_bytes_total", 2, 'operation="get",status="error"')
         + line("mooncake_store_operation_failed_keys_total", 3, 'operation="put",status="error"'),
         {"kv_transfer_bytes_total": {("mooncake_store", "get"): 3},
          "kv_transfer_failures_total": {("mooncake_store", "put"): 3}}),
        (line("kv_offload_tiering_read_bytes_total", 1, 'tier="0:primary"')
         + line("kv_offload_tiering_read_bytes_total", 2, 'tier="1:fs"'),
         {"kv_transfer_bytes_total": {("tiering", "load"): 3}}),
        (line("simple_kv_offload_save_outcomes_total", 6, 'outcome="stored"')
         + line("simple_kv_offload_save_outcomes_total", 7, 'outcome="dropped_cpu_full"')
         + line("simple_kv_offload_used_blocks", 8) + line("simple_kv_offload_pending_store_blocks", 9)
         + line("simple_kv_offload_load_blocks_total", 10),
         {"kv_offload_saves_total": {("stored",): 6, ("dropped_cpu_full",): 7},
          "kv_offload_blocks": {("used",): 8, ("pending_store",): 9}, "kv_offload_loaded_blocks_total": {(): 10}}),
        (line("kv_offload_cpu_cache_read_usage_perc", 0.25), {"kv_offload_pinned_ratio": {("load",): 0.25}}),
        (line("num_requests_kv_fetch_by_stage", 3, 'stage="in_progress"'),
         {"requests_kv_fetching": {("in_progress",): 3}}),
        (line("watermark_requests_total", 2, 'status="skipped"') + line("corrupted_requests_total", 1),
         {"watermarked_requests_total": {("skipped",): 2}, "corrupted_requests_total": {(): 1}}),
        (line("spec_decode_num_drafts_total", -1), {}),
    ],
)  # fmt: skip
def test_every_connector_speaks_of_bytes_time_and_failures_in_the_same_words(rows: str, said: Details) -> None:
    target = normal(V1 + rows)
    assert target.engines["m", "0"].details == said
    assert not target.unknown_families
    assert not target.split_labels


def test_many_positions_are_bounded() -> None:
    rows = "".join(line("spec_decode_num_accepted_tokens_per_pos_total", 1, f'position="{n}"') for n in range(100))
    parts = only(V1 + rows).details["spec_decode_accepted_tokens_by_position_total"]
    assert len(parts) == 33
    assert (parts["other",], sum(parts.values())) == (68, 100)


def test_details_are_the_same_object_until_one_of_them_moves() -> None:
    layout = Layout()
    text = page("spec_collapse")
    before = normalise(text.encode(), layout).engines["tiny", "0"]
    running = text.replace(
        'requests_running{engine="0",model_name="tiny"} ', 'requests_running{engine="0",model_name="tiny"} 1'
    )
    after = normalise(running.encode(), layout).engines["tiny", "0"]
    assert after.running != before.running
    assert after.details is before.details
    moved = normalise(running.replace("10868.0", "10869.0").encode(), layout).engines["tiny", "0"]
    assert moved.detail("spec_decode_drafts_total") == 10869
    assert before.detail("spec_decode_drafts_total") == 10868


def test_the_heartbeat_is_the_count_of_step_sizes() -> None:
    sample = only(page("spec_collapse"))
    assert sample.steps == sample.histograms["iteration_tokens"].count > 0
    broken = only(
        V1
        + line("iteration_tokens_total_count", 5)
        + line("iteration_tokens_total_sum", 5)
        + V1.splitlines()[-1]
        + "\n"
    )
    assert broken.steps is None
    assert "steps_total" in broken.unusable


# --- LoRA

INFO = 'vllm:lora_requests_info{{max_lora="{2}",running_lora_adapters="{0}",waiting_lora_adapters="{1}"}} {3}\n'
HEAD = "# HELP vllm:lora_requests_info Running stats on lora requests.\n# TYPE vllm:lora_requests_info gauge\n"
TAIL = "# HELP z Z.\n# TYPE z gauge\nz 1\n"


def lora(*rows: str) -> Lora | None:
    return normal(V1 + HEAD + "".join(rows) + TAIL).lora


def test_the_newest_series_says_which_adapters_run_and_which_wait() -> None:
    old, new = INFO.format("a1", "", 4, "1.7900000e+09"), INFO.format("a1,a2", "b", 4, "1.7900001e+09")
    wanted = Lora(2, 1, ("a1", "a2"), ("b",), 4.0)
    assert lora(old, new) == lora(new, old) == wanted
    assert lora(INFO.format("", "", 4, "1.79e+09")) == Lora(0, 0, (), (), 4.0)
    assert normal(V1).lora is None


def test_times_that_are_added_up_over_processes_tell_nothing() -> None:
    """prometheus_client's mode is sum: 3.59e9 was seen with two API servers."""
    assert lora(INFO.format("a1", "", 4, "3.59e+09"), INFO.format("a2", "", 4, "1.79e+09")) is None


@pytest.mark.parametrize(
    "row",
    [
        "",
        INFO.format("a", "", 1, "x"),
        INFO.format("a", "", 1, "NaN"),
        "vllm:lora_requests_info 1.79e+09\n",
        'vllm:lora_requests_info{max_lora="1" 1.79e+09\n',
    ],
)
def test_a_gauge_of_adapters_that_says_nothing_is_absent(row: str) -> None:
    said = lora(row)
    assert said is None
    assert normal(V1 + HEAD + row + TAIL).engines == normal(V1).engines


def test_names_of_adapters_are_bounded() -> None:
    many = ",".join(f"a{n}" for n in range(100))
    said = lora(INFO.format(many, "x" * 500, "99999999999", "1.79e+09"))
    assert said is not None
    assert (said.running, len(said.running_names), len(said.waiting_names[0]), said.slots) == (
        100,
        MAX_ADAPTERS,
        64,
        None,
    )


def test_a_new_combination_of_adapters_is_followed_without_learning_the_page_again() -> None:
    layout = Layout()
    body = V1 + HEAD + INFO.format("a1", "", 4, "1.79e+09") + TAIL
    before = normalise(body.encode(), layout)
    skeleton = layout.skeleton
    grown = body.replace(TAIL, INFO.format("a2", "", 4, "1.7901e+09") + TAIL)
    after = normalise(grown.encode(), layout)
    assert layout.skeleton is skeleton
    assert (after.lora, before.lora) == (Lora(1, 0, ("a2",), (), 4.0), Lora(1, 0, ("a1",), (), 4.0))
    assert after.engines["m", "0"] is before.engines["m", "0"]
    assert normalise(grown.encode(), layout) is after
    assert normalise(grown.encode()) == after


# --- Shown.


def rendered(text: str, histograms: str = "all") -> str:
    snapshot = TargetEvaluator("t").observe(Scrape(1.0, 0.1, text.encode()))
    return join([TargetRenderer(histograms=histograms).render(snapshot)]).decode()  # type: ignore[arg-type]


def test_details_stand_on_our_page_under_names_that_no_release_changes() -> None:
    ours = {
        (s.name, *sorted(s.labels.items())): s.value
        for f in text_string_to_metric_families(rendered(page("spec_collapse")))
        for s in f.samples
    }
    who = (("engine", "0"), ("model_name", "tiny"), ("target", "t"))
    assert ours["vllm_vitals_spec_decode_draft_tokens_total", *who] == 41221
    position = ("vllm_vitals_spec_decode_accepted_tokens_by_position_total", *who[:2], ("position", "3"), who[2])
    assert ours[position] == 4669
    assert (
        ours["vllm_vitals_decode_time_seconds_count", *who]
        == only(page("spec_collapse")).histograms["decode_time_seconds"].count
    )
    assert not any(name.startswith("vllm_vitals_lora") for name, *_ in ours)


def test_adapters_stand_on_our_page_once_a_server() -> None:
    text = rendered(V1 + HEAD + INFO.format("a1,a2", "b", 4, "1.79e+09") + TAIL)
    assert 'vllm_vitals_lora_adapters{target="t",status="running"} 2\n' in text
    assert 'vllm_vitals_lora_adapter{target="t",adapter="b",status="waiting"} 1\n' in text
    assert 'vllm_vitals_lora_slots{target="t"} 4\n' in text


def test_latency_histograms_alone_leave_the_details_of_time_out() -> None:
    text = rendered(page("spec_collapse"), "latency")
    assert "vllm_vitals_ttft_seconds_bucket" in text
    assert "vllm_vitals_decode_time_seconds" not in text


def test_the_text_of_details_is_kept_and_never_stale() -> None:
    evaluator, renderer = TargetEvaluator("t"), TargetRenderer()
    text = page("spec_collapse")
    first = join([renderer.render(evaluator.observe(Scrape(1.0, 0.1, text.encode())))])
    later = evaluator.observe(Scrape(6.0, 0.1, text.replace("10868.0", "10870.0").encode()))
    assert b'drafts_total{target="t",model_name="tiny",engine="0"} 10868' in first
    second = renderer.render(later)
    assert b"} 10870" in second["spec_decode_drafts_total"]
    assert second == TargetRenderer().render(later)


def test_every_detail_of_the_table_is_in_the_catalogue_with_its_labels() -> None:
    rows = {row.name: row for row in details.DETAILS}
    listed = {metric.name for metric in DETAILS if not metric.name.startswith("lora_")}
    assert set(rows) == listed
    for row in details.DETAILS:
        assert fits(row), row.field


def fits(row: Family) -> bool:
    metric = BY_NAME[row.name]
    kind = {"counter": Kind.COUNTER, "series": Kind.COUNTER, "gauge": Kind.GAUGE, "histogram": Kind.HISTOGRAM}[row.kind]
    return metric.kind is kind and len(row.says or ()) <= len(metric.labels) and not metric.native


def test_a_bad_detail_costs_only_itself() -> None:
    good = V1 + line("corrupted_requests_total", 1)
    target = normal(good + 'vllm:mm_cache_hits_total{engine="0"} x\n' + TAIL)
    assert replace(target.engines["m", "0"], unusable=frozenset()) == only(good)
    assert list(target.unread) == ["mm_cache_hits_total"]
