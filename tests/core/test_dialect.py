"""Every era of vLLM in one vocabulary: recordings of each release, and the shapes that servers and proxies add."""

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from vllm_vitals.catalog import BY_NAME, NORMALISED, Kind
from vllm_vitals.core.dialect import ExpositionError, Layout, normalise
from vllm_vitals.core.sample import EngineSample, Identity, TargetSample
from vllm_vitals.vllm.families import FAMILIES

DATA = Path(__file__).parents[1] / "data"
VERSIONS = sorted(path.name for path in (DATA / "versions").iterdir())
RECORDINGS = [*(f"versions/{v}" for v in VERSIONS), *(f"recordings/{p.name}" for p in (DATA / "recordings").iterdir())]


def bodies(recording: str) -> list[bytes]:
    with gzip.open(DATA / recording / "metrics.jsonl.gz", "rt") as lines:
        scrapes = [json.loads(line) for line in lines]
    return [scrape["text"].encode() for scrape in scrapes if scrape["status"] == 200]


def page(name: str) -> str:
    """The last page of a recording."""
    return gzip.decompress((DATA / "pages" / f"{name}.txt.gz").read_bytes()).decode()


def normal(text: str, **options: str) -> TargetSample:
    return normalise(text.encode(), Layout(**options) if options else None)  # type: ignore[arg-type]


def only(text: str, **options: str) -> EngineSample:
    """The sample of the one engine in a text."""
    (engine,) = normal(text, **options).engines.values()
    return engine


def refused(text: str) -> ExpositionError:
    with pytest.raises(ExpositionError) as caught:
        normal(text)
    return caught.value


# --- Recordings: what each release can say is present and right, and nothing else is there.

# Which family (as families.json names it) lets a server say which field.
SCALARS: Mapping[str, tuple[str, ...]] = {
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "preemptions": ("num_preemptions_total",),
    "prompt_tokens": ("prompt_tokens_total",),
    "generation_tokens": ("generation_tokens_total",),
    "prefix_cache_queries": ("prefix_cache_queries_total",),
    "prefix_cache_hits": ("prefix_cache_hits_total",),
    "rejections": ("admission_rejections_total",),
}
HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "tpot_seconds": ("request_time_per_output_token_seconds",),
    "inter_token_latency_seconds": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "ttft_seconds": ("time_to_first_token_seconds",),
    "e2e_latency_seconds": ("e2e_request_latency_seconds",),
    "queue_time_seconds": ("request_queue_time_seconds",),
    "request_prompt_tokens": ("request_prompt_tokens",),
    "request_output_tokens": ("request_generation_tokens",),
    "request_max_tokens": ("request_params_max_tokens",),
    "request_preemptions": ("request_num_preemptions",),
    "iteration_tokens": ("iteration_tokens_total",),
    "prefill_time_seconds": ("request_prefill_time_seconds",),
    "decode_time_seconds": ("request_decode_time_seconds",),
    "inference_time_seconds": ("request_inference_time_seconds",),
    "request_computed_tokens": ("request_prefill_kv_computed_tokens",),
    "request_choices": ("request_params_n",),
}

Samples = list[tuple[str, Mapping[str, str], float]]


def oracle(body: bytes) -> Samples:
    families = text_string_to_metric_families(body.decode())
    return [(s.name.removeprefix("vllm:"), s.labels, float(s.value)) for family in families for s in family.samples]


def said(samples: Samples, name: str, engine: str, **labels: str) -> float | None:
    """The sum over the series of one engine with these labels, None if there are none."""
    shared = name == "admission_rejections_total"
    found = [
        value
        for sample, own, value in samples
        if sample == name
        and (shared or own.get("engine", "0") == engine)
        and all(own.get(label) == value for label, value in labels.items())
    ]
    return sum(found) if found else None


def first_said(samples: Samples, names: tuple[str, ...], engine: str) -> float | None:
    return next((value for name in names if (value := said(samples, name, engine)) is not None), None)


def compare_with_raw(body: bytes) -> TargetSample:
    target = normalise(body)
    samples = oracle(body)
    engines = {labels.get("engine", "0") for name, labels, _ in samples if name == "generation_tokens_total"}
    assert {engine for _, engine in target.engines} == engines
    assert not target.invalid
    for (model, engine), sample in target.engines.items():
        assert model == "tiny"
        for name, spellings in SCALARS.items():
            assert getattr(sample, name) == first_said(samples, spellings, engine), name
        assert sample.steps == said(samples, "iteration_tokens_total_count", engine)
        computed = said(samples, "prompt_tokens_by_source_total", engine, source="local_compute")
        assert sample.prompt_tokens_computed == computed
        reasons = {labels["finished_reason"] for name, labels, _ in samples if name == "request_success_total"}
        expected = {r: said(samples, "request_success_total", engine, finished_reason=r) for r in reasons}
        assert sample.responses == (expected or None)
        split = {labels["reason"] for name, labels, _ in samples if name == "num_requests_waiting_by_reason"}
        assert sample.waiting_by_reason == {
            r: said(samples, "num_requests_waiting_by_reason", engine, reason=r) for r in split
        }
        compare_histograms(sample, samples, engine)
    return target


def compare_histograms(sample: EngineSample, samples: Samples, engine: str) -> None:
    for name, spellings in HISTOGRAMS.items():
        total = first_said(samples, tuple(s + "_sum" for s in spellings), engine)
        histogram = sample.histograms.get(name)
        if total is None:
            assert histogram is None, name
            continue
        assert histogram is not None, name
        spelling = next(s for s in spellings if said(samples, s + "_sum", engine) is not None)
        buckets = [
            (float(labels["le"]), value)
            for sample_name, labels, value in samples
            if sample_name == spelling + "_bucket" and labels.get("engine", "0") == engine
        ]
        assert [*zip((*histogram.bounds, math.inf), histogram.counts, strict=True)] == buckets
        assert (histogram.sum, histogram.count) == (total, said(samples, spelling + "_count", engine))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_release_can_say_is_present_and_what_it_cannot_is_absent(version: str) -> None:
    """Scrapes under load, so that V0, which makes a series at its first event, has them all."""
    exposed = {
        name.removeprefix("vllm:")
        for name in json.loads((DATA / "versions" / version / "families.json").read_text())["families"]
    }
    (sample,) = normalise(bodies(f"versions/{version}")[-1]).engines.values()
    for name, spellings in SCALARS.items():
        assert (getattr(sample, name) is not None) == bool(exposed.intersection(spellings)), name
    for name, spellings in HISTOGRAMS.items():
        assert (name in sample.histograms) == bool(exposed.intersection(spellings)), name
    assert (sample.asleep is False) == ("engine_sleep_state" in exposed)
    assert (sample.prompt_tokens_computed is not None) == ("prompt_tokens_by_source_total" in exposed)
    assert set(sample.waiting_by_reason) == (
        {"capacity", "deferred"} if "num_requests_waiting_by_reason" in exposed else set()
    )
    assert sample.responses
    assert sample.kv_capacity_tokens == 8192
    assert sample.prefix_caching is not None
    assert sample.started_at is not None
    assert sample.recompute_counted == (version == "0.8.5")
    assert not sample.updating_weights
    assert not sample.kv_restored


@pytest.mark.parametrize(
    ("version", "dialect"),
    [
        ("0.8.5", "v0"),
        ("0.10.2", "v1>=0.9.2"),
        ("0.11.2", "v1>=0.11.1"),
        ("0.14.1", "v1>=0.13"),
        ("0.20.2", "v1>=0.20"),
        ("0.26.0", "v1>=0.24"),
        ("0.31.0", "v1>=0.30"),
    ],
)
def test_the_dialect_is_told_from_the_series(version: str, dialect: str) -> None:
    for body in bodies(f"versions/{version}"):
        target = normalise(body)
        assert target.dialect == dialect
        assert not target.unknown_families
        assert target.settings["block_size"] in ("16", "128")


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_recording_reads_as_the_reference_parser_reads_it(recording: str) -> None:
    texts = bodies(recording)
    for body in (texts[0], texts[len(texts) // 2], texts[-1]):
        compare_with_raw(body)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_layout_changes_no_result_over_a_whole_recording(recording: str) -> None:
    layout = Layout()
    for body in bodies(recording):
        assert normalise(body, layout) == normalise(body)


def test_two_engines_are_two_samples_each_with_its_own_share_of_the_cache() -> None:
    target = normalise(bodies("recordings/dp2_pressure")[-1])
    assert list(target.engines) == [("tiny", "0"), ("tiny", "1")]
    assert {sample.running for sample in target.engines.values()} == {12.0, 10.0}
    assert [sample.started_at for sample in target.engines.values()] == [None, None]
    blocks = float(target.settings["num_gpu_blocks"]) * float(target.settings["block_size"]) / 2
    assert [sample.kv_capacity_tokens for sample in target.engines.values()] == [blocks, blocks]


def test_gauges_that_a_fresh_server_has_not_set_are_absent_not_zero() -> None:
    for sample in normalise(bodies("recordings/dp2_pressure")[0]).engines.values():
        assert (sample.running, sample.waiting, sample.kv_usage) == (None, None, None)
        assert sample.preemptions == 0


def test_a_v0_server_before_its_first_request_has_no_engine_yet() -> None:
    target = normalise(bodies("versions/0.8.5")[0])
    assert not target.engines
    assert target.dialect == "v0"


# --- Shapes.

V1 = """\
# HELP vllm:num_requests_running R.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# HELP vllm:num_requests_waiting W.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# HELP vllm:kv_cache_usage_perc K.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
# HELP vllm:num_preemptions_total P.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
# HELP vllm:prompt_tokens_total P.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
# HELP vllm:generation_tokens_total G.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
"""


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm:", "ray_vllm_", "kserve_vllm:", "kserve_vllm_"])
def test_every_prefix_means_the_same(prefix: str) -> None:
    body = V1 + 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 4.0\n'
    plain, other = normal(body), normal(body.replace("vllm:", prefix))
    assert other.engines == plain.engines
    through = prefix.split("_", maxsplit=1)[0] if prefix[0] != "v" else ""
    assert other.dialect == f"{plain.dialect} {through}".strip()


def test_a_counter_that_ray_does_not_show_is_0_and_one_that_vllm_does_not_show_is_absent() -> None:
    """vllm/v1/metrics/ray_wrappers.py skips ``inc(0)``."""
    gauges = 'ray_vllm_num_requests_running{engine="0",model_name="m"} 0.0\n'
    ray, plain = only(gauges), only(gauges.replace("ray_vllm_", "vllm:"))
    assert (ray.generation_tokens, ray.prompt_tokens, ray.preemptions, ray.completions) == (0, 0, 0, 0)
    assert (plain.generation_tokens, plain.prompt_tokens, plain.preemptions, plain.completions) == (None,) * 4
    assert (ray.prompt_tokens_computed, ray.rejections) == (None, None)  # not every release has them
    broken = only(gauges + 'ray_vllm_num_preemptions_total{engine="0",model_name="m"} -1.0\n')
    assert broken.preemptions is None


def test_gauges_repeat_over_processes_and_counters_are_shares() -> None:
    """vllm-project/vllm#28792: one live process of four says 0.66, an average would say 0.17."""
    sample = only("""\
vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="301"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="302"} 0.66
vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="303"} 0.0
vllm:num_requests_running{engine="0",model_name="m",pid="301"} 4.0
vllm:num_requests_running{engine="0",model_name="m",pid="302"} 5.0
vllm:generation_tokens_total{engine="0",model_name="m",pid="301"} 10.0
vllm:generation_tokens_total{engine="0",model_name="m",pid="302"} 20.0
""")
    assert (sample.kv_usage, sample.running, sample.generation_tokens) == (0.66, 5.0, 30.0)


LORA = """\
vllm:num_requests_running{engine="0",model_name="base"} 3.0
vllm:num_requests_waiting{engine="0",model_name="base"} 2.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="base"} 5.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="adapter"} 7.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="adapter"} 1.0
vllm:generation_tokens_total{engine="0",model_name="adapter"} 40.0
vllm:generation_tokens_total{engine="0",model_name="base"} 2.0
"""


def test_adapters_under_their_own_model_name_are_one_engine() -> None:
    target = normal(LORA)
    assert list(target.engines) == [("base", "0")]
    sample = target.engines["base", "0"]
    assert sample.responses == {"stop": 12.0, "length": 1.0}
    assert (sample.generation_tokens, sample.running) == (42.0, 3.0)
    assert list(normal(LORA, served_name="adapter").engines) == [("adapter", "0")]
    assert list(normal(LORA, served_name="elsewhere").engines) == [("base", "0")]


def test_requests_present_are_added_over_model_names_and_not_over_processes() -> None:
    sample = only("""\
vllm:num_requests_running{engine="0",model_name="base",pid="1"} 3.0
vllm:num_requests_running{engine="0",model_name="base",pid="2"} 2.0
vllm:num_requests_running{engine="0",model_name="adapter",pid="1"} 1.0
""")
    assert sample.running == 4.0


@pytest.mark.parametrize("value", ["-0.39", "1.2", "NaN", "+Inf"])
def test_impossible_kv_usage_is_dropped_and_counted(value: str) -> None:
    """vllm-project/vllm-ascend#10048 showed -0.3875."""
    target = normal(
        V1.replace('usage_perc{engine="0",model_name="m"} 0.5', f'usage_perc{{engine="0",model_name="m"}} {value}')
    )
    assert target.engines["m", "0"].kv_usage is None
    assert target.invalid == {"kv_cache_usage_ratio": 1}
    assert target.engines["m", "0"].running == 3.0


@pytest.mark.parametrize(("value", "usage"), [("-0.001", 0.0), ("1.004", 1.0), ("-0.0", 0.0)])
def test_rounding_at_the_ends_of_kv_usage_is_forgiven(value: str, usage: float) -> None:
    sample = only(f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {value}\n')
    assert sample.kv_usage == usage
    assert math.copysign(1, usage) == 1


@pytest.mark.parametrize("value", ["-3", "NaN", "+Inf", "-Inf"])
def test_impossible_gauges_and_counters_are_absent_and_counted(value: str) -> None:
    target = normal(V1.replace("3.0", value).replace("50.0", value))
    sample = target.engines["m", "0"]
    assert (sample.running, sample.generation_tokens, sample.waiting) == (None, None, 2.0)
    assert target.invalid == {"requests_running": 1, "generation_tokens_total": 1}


def test_a_counter_with_one_impossible_share_is_absent_not_smaller() -> None:
    target = normal("""\
vllm:generation_tokens_total{engine="0",model_name="m",pid="1"} 10.0
vllm:generation_tokens_total{engine="0",model_name="m",pid="2"} NaN
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 10.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} -1
""")
    sample = target.engines["m", "0"]
    assert (sample.generation_tokens, sample.responses, sample.completions) == (None, None, None)
    assert target.invalid == {"generation_tokens_total": 1, "responses_total": 1}


def test_finish_reasons_are_an_open_set_with_a_cap() -> None:
    rows = [f'vllm:request_success_total{{finished_reason="r{i}",model_name="m"}} 1\n' for i in range(40)]
    responses = only("".join(rows)).responses
    assert responses is not None
    assert responses["r0"] == 1
    assert len(responses) == 17
    assert responses["other"] == 24


def histogram(*rows: tuple[str, float], count: float, total: float, name: str = "vllm:e2e_request_latency_seconds",
              labels: str = 'engine="0",model_name="m"') -> str:  # fmt: skip
    lines = [f'{name}_bucket{{{labels},le="{bound}"}} {value}\n' for bound, value in rows]
    return "".join(lines) + f"{name}_count{{{labels}}} {count}\n{name}_sum{{{labels}}} {total}\n"


def test_bounds_are_numbers_however_they_are_written_and_ordered() -> None:
    one = histogram(("0.3", 1), ("1", 2), ("+Inf", 4), count=4, total=9.5)
    other = histogram(("+Inf", 4), ("1.0", 2), ("3e-1", 1), count=4, total=9.5)
    for text in (one, other):
        found = only(V1 + text).histograms["e2e_latency_seconds"]
        assert (found.bounds, list(found.counts), found.sum, found.count) == ((0.3, 1.0), [1, 2, 4], 9.5, 4)


@pytest.mark.parametrize(
    "text",
    [
        histogram(("1", 5), ("2", 3), ("+Inf", 6), count=6, total=9),
        histogram(("1", 1), ("+Inf", 2), count=3, total=9),
        histogram(("1", 1), ("+Inf", 2), count=2, total=math.nan),
        histogram(("1", 1), ("+Inf", 2), count=2, total=-4),
        histogram(("1", -1), ("+Inf", 2), count=2, total=4),
        histogram(("1", math.nan), ("+Inf", 2), count=2, total=4),
        histogram(("1", 1), ("+Inf", math.inf), count=math.inf, total=4),
    ],
)
def test_a_histogram_that_cannot_be_is_dropped_and_counted(text: str) -> None:
    target = normal(text + V1)
    assert not target.engines["m", "0"].histograms
    assert target.invalid == {"e2e_latency_seconds": 1}


@pytest.mark.parametrize("gone", ["_sum", "_count", '"+Inf"'])
def test_a_histogram_without_a_part_is_truncated_at_the_end_and_dropped_before_it(gone: str) -> None:
    whole = histogram(("1", 1), ("2", 1), ("+Inf", 2), count=2, total=3)
    text = "".join(line + "\n" for line in whole.splitlines() if gone not in line)
    assert refused(V1 + text).reason == "truncated"
    target = normal(text + V1)
    assert not target.engines["m", "0"].histograms
    assert target.invalid == {"e2e_latency_seconds": 4}


def test_shares_of_a_histogram_are_added_only_where_their_bounds_agree() -> None:
    one = histogram(("1", 1), ("+Inf", 2), count=2, total=3, labels='model_name="m",pid="1"')
    two = histogram(("1", 4), ("+Inf", 5), count=5, total=6, labels='model_name="m",pid="2"')
    odd = histogram(("2", 4), ("+Inf", 5), count=5, total=6, labels='model_name="m",pid="2"')
    found = only(one + two).histograms["e2e_latency_seconds"]
    assert (list(found.counts), found.sum) == ([5, 7], 9)
    target = normal(one + odd)
    assert not target.engines["m", "0"].histograms
    assert target.invalid == {"e2e_latency_seconds": 8}


def test_two_spellings_at_once_are_not_added_and_the_newer_one_wins() -> None:
    """0.9.2 to 0.11.2 expose both."""
    old = histogram(("1", 1), ("+Inf", 2), count=2, total=3, name="vllm:time_per_output_token_seconds")
    new = histogram(("1", 4), ("+Inf", 5), count=5, total=6, name="vllm:inter_token_latency_seconds")
    gauge = 'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.9\n'
    sample = only(old + new + gauge + V1)
    assert sample.histograms["inter_token_latency_seconds"].count == 5
    assert "tpot_seconds" not in sample.histograms
    assert sample.kv_usage == 0.5


def test_rays_gauge_without_total_is_not_added_to_the_counter() -> None:
    both = V1.replace("vllm:", "ray_vllm_") + 'ray_vllm_num_preemptions{engine="0",model_name="m"} 7.0\n'
    assert only(both).preemptions == 7.0
    bare = V1.replace("num_preemptions_total", "num_preemptions")
    assert only(bare).preemptions == 7.0


RAY_2_32 = """\
# HELP ray_vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE ray_vllm:prompt_tokens_total counter
ray_vllm:prompt_tokens_total{Component="core_worker",NodeAddress="10.0.0.4",WorkerId="6ad5",model_name="org/m"} 58.0
# TYPE ray_vllm:avg_generation_throughput_toks_per_s gauge
ray_vllm:avg_generation_throughput_toks_per_s{Component="core_worker",WorkerId="6ad5",model_name="org/m"} 17.7
# TYPE ray_vllm:gpu_cache_usage_perc gauge
ray_vllm:gpu_cache_usage_perc{Component="core_worker",WorkerId="6ad5",model_name="org/m"} 5.882698982295764e-05
# TYPE ray_vllm:gpu_prefix_cache_hit_rate gauge
ray_vllm:gpu_prefix_cache_hit_rate{Component="core_worker",WorkerId="6ad5",model_name="org/m"} -1.0
"""


def test_ray_with_a_v0_engine_is_one_engine_and_its_minus_one_is_no_value() -> None:
    target = normal(RAY_2_32)
    assert target.dialect == "v0 ray"
    assert not target.invalid
    assert not target.unknown_families
    sample = target.engines["org/m", "0"]
    assert (sample.prompt_tokens, sample.running, sample.recompute_counted) == (58.0, None, True)
    assert (sample.prefix_cache_queries, sample.prefix_cache_hits) == (None, None)


def test_replicas_behind_one_ray_agent_are_engines_of_their_own() -> None:
    rows = [
        f'ray_vllm_num_requests_running{{ReplicaId="{r}",WorkerId="w{r}",engine="0",model_name="m"}} {n}\n'
        for r, n in (("aa", 1), ("bb", 2))
    ]
    assert {k: v.running for k, v in normal("".join(rows)).engines.items()} == {("m", "0@aa"): 1.0, ("m", "0@bb"): 2.0}
    other = 'ray_vllm_num_requests_running{ReplicaId="cc",engine="0",model_name="n"} 3\n'
    assert list(normal(rows[0] + other).engines) == [("m", "0"), ("n", "0")]


CONFIG = "vllm:cache_config_info{{{labels}}} 1.0\n"
BLOCKS = 'block_size="16",num_gpu_blocks="1000"'


@pytest.mark.parametrize(
    ("config", "queries"),
    [
        ([BLOCKS], 160.0),  # up to 0.8.5: blocks
        ([BLOCKS + ',engine="0"'], 10.0),  # 0.9.0, 0.9.1: tokens
        ([], None),  # 0.7.3: blocks of unknown size
        (['block_size="None"'], None),
    ],
)
def test_the_old_prefix_cache_counters_are_scaled_to_tokens(config: list[str], queries: float | None) -> None:
    text = 'vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 10\n'
    text += "".join(CONFIG.format(labels=labels) for labels in config)
    assert only(text + V1).prefix_cache_queries == queries


def test_blocks_are_the_sum_over_ranks_and_tokens_are_each_ranks_own() -> None:
    ranks = V1 + "".join(line for line in V1.splitlines(keepends=True) if line[0] != "#").replace('"0"', '"1"')
    summed = "".join(CONFIG.format(labels=f'{BLOCKS},engine="{e}"') for e in "01")
    assert [s.kv_capacity_tokens for s in normal(ranks + summed).engines.values()] == [8000.0, 8000.0]
    own = "".join(CONFIG.format(labels=f'{BLOCKS},engine="{e}",kv_cache_size_tokens="7900"') for e in "01")
    assert [s.kv_capacity_tokens for s in normal(ranks + own).engines.values()] == [7900.0, 7900.0]
    unnamed = CONFIG.format(labels=BLOCKS)
    assert [s.kv_capacity_tokens for s in normal(ranks + unnamed).engines.values()] == [8000.0, 8000.0]
    unset = CONFIG.format(labels='engine="0",block_size="16",num_gpu_blocks="None",kv_cache_size_tokens="None"')
    assert only(V1 + unset).kv_capacity_tokens is None
    assert only(V1).kv_capacity_tokens is None


def test_settings_are_what_the_cache_configuration_says_and_bounded() -> None:
    labels = f'{BLOCKS},cache_dtype="{"x" * 500}",sliding_window="None",enable_prefix_caching="True",mamba_x="1"'
    target = normal(V1 + CONFIG.format(labels=labels))
    assert target.settings == {
        "block_size": "16", "num_gpu_blocks": "1000", "cache_dtype": "x" * 64, "enable_prefix_caching": "True",
    }  # fmt: skip
    assert target.engines["m", "0"].prefix_caching is True


SLEEP = 'vllm:engine_sleep_state{{engine="0",model_name="m"{state}}} {value}\n'


@pytest.mark.parametrize(
    ("states", "asleep"),
    [
        ({"": 1.0}, True),
        ({"": 0.0}, False),
        ({"awake": 1, "weights_offloaded": 0, "discard_all": 0}, False),
        ({"awake": 0, "weights_offloaded": 1, "discard_all": 0}, True),
        ({"awake": 0, "weights_offloaded": 0, "discard_all": 0}, True),
        ({"discard_all": 1}, True),
        ({}, None),
    ],
)
def test_sleep_is_read_in_both_shapes(states: Mapping[str, float], asleep: bool | None) -> None:
    rows = (SLEEP.format(state=f',sleep_state="{s}"' if s else "", value=v) for s, v in states.items())
    assert only("".join(rows) + V1).asleep is asleep


@pytest.mark.parametrize("name", ["rl_weight_update_operations_in_flight", "sleep_mode_operations_in_flight"])
def test_operations_in_flight_say_that_weights_are_moving(name: str) -> None:
    row = "vllm:" + name + '{{operation="{0}"}} {1}\n'
    assert only(V1 + row.format("update", 0) + row.format("start", 1)).updating_weights
    assert not only(V1 + row.format("update", 0)).updating_weights


def test_rejections_belong_to_the_server_and_are_added_over_reasons() -> None:
    row = 'vllm:admission_rejections_total{{model_name="m",reason="{0}"}} {1}\n'
    assert only(V1 + row.format("max_num_queued_reqs", 3) + row.format("max_num_queued_tokens", 4)).rejections == 7


@pytest.mark.parametrize(
    "row",
    [
        'vllm:mooncake_store_operation_total{engine="0",model_name="m"} 0\n',
        'vllm:kv_offload_load_bytes_total{engine="0",model_name="m"} 0\n',
        'vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="in_progress"} 0\n',
        'vllm:external_prefix_cache_queries_total{engine="0",model_name="m"} 5\n',
        CONFIG.format(labels='engine="0",kv_offloading_size="4.0"'),
    ],
)
def test_a_store_of_kv_blocks_shows_in_its_series(row: str) -> None:
    target = normal(V1 + row)
    assert target.engines["m", "0"].kv_restored
    assert not target.unknown_families
    idle = 'vllm:external_prefix_cache_queries_total{engine="0",model_name="m"} 0\n'
    assert not only(V1 + idle).kv_restored


@pytest.mark.parametrize("family", ["nixl_num_failed_transfers_total", "mooncake_num_failed_transfers_total"])
def test_blocks_that_travel_once_are_lost_with_a_preemption(family: str) -> None:
    row = 'vllm:{}{{engine="0",model_name="m"}} 5\n'.format
    moved = V1 + row(family) + row("external_prefix_cache_queries_total") + row("num_requests_kv_fetch_by_stage")
    assert not only(moved).kv_restored
    assert only(moved + row("kv_offload_load_bytes_total")).kv_restored


def test_computed_prompt_tokens_come_from_the_split_or_from_what_was_cached() -> None:
    cached = 'vllm:prompt_tokens_cached_total{engine="0",model_name="m"} 30\n'
    split = 'vllm:prompt_tokens_by_source_total{{engine="0",model_name="m",source="{0}"}} {1}\n'
    assert only(V1).prompt_tokens_computed is None
    assert only(V1 + cached).prompt_tokens_computed == 70
    both = split.format("local_compute", 60) + split.format("local_cache_hit", 40)
    assert only(V1 + cached + both).prompt_tokens_computed == 60


def test_when_the_counters_began_is_their_creation_else_the_process_start() -> None:
    process = "process_start_time_seconds 1000\n"
    created = 'vllm:generation_tokens_created{engine="0",model_name="m"} 1.5e+03\n'
    assert only(V1).started_at is None
    assert only(V1 + process).started_at == 1000
    assert only(process + V1 + created).started_at == 1500


def test_unknown_vllm_families_are_counted_and_harm_nothing() -> None:
    odd = '# TYPE vllm:brand_new_total counter\nvllm:brand_new_total 1\nvllm:other_seconds_bucket{le="1"} x\n'
    target = normal(odd + "other:thing 1\n" + V1)
    assert target.unknown_families == {"brand_new", "other_seconds"}
    assert target.engines == normal(V1).engines
    many = "".join(f"vllm:new{i} 1\n" for i in range(3000))
    assert len(normal(many + V1).unknown_families) == 1000


def test_the_rust_frontend_is_read() -> None:
    """OpenMetrics with colons, counters declared without _total, no cache_config_info; series appear at first use."""
    text = """\
# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m",engine="0"} 1
# HELP vllm:prompt_tokens Prompt tokens.
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{model_name="m",engine="0"} 12
# EOF
"""
    sample = only(text)
    assert (sample.running, sample.prompt_tokens, sample.kv_capacity_tokens) == (1.0, 12.0, None)


def test_triton_calls_the_model_by_another_label() -> None:
    rows = 'vllm:prompt_tokens_total{{model="{0}",version="1"}} 10\n'
    assert list(normal(rows.format("a") + rows.format("b")).engines) == [("a", "0"), ("b", "0")]


def test_a_model_name_of_any_length_becomes_a_bounded_label() -> None:
    ((model, _),) = normal(V1.replace('"m"', '"' + "m" * 5000 + '"')).engines
    assert len(model) == 256


@pytest.mark.parametrize(
    "text", ["python_info 1\nprocess_start_time_seconds 1\n", 'http_requests_total{status="2xx"} 5\n', "go_gc 1\n"]
)
def test_a_server_without_engine_metrics_says_what_to_look_at(text: str) -> None:
    error = refused(text)
    assert error.reason == "no_vllm_metrics"
    assert "--disable-log-stats" in error.detail


# --- One bad line takes its family, and no other.


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (V1.replace(" 7.0", " seven"), "line 12: bad number: 'vllm:num_preemptions_total"),
        (V1.replace("num_preemptions_total{", "num_preemptions_total["), "line 12: no value after the name: "),
        (V1.replace('model_name="m"} 7.0', 'model_name="m} 7.0'), "labels do not end"),
        (V1.replace("} 7.0", "} 7.0\nvllm:num_preemptions_total{model_name=\"m\",engine=\"0\"} 8.0"),
         "line 13 repeats a series with another value: 'vllm:num_preemptions_total"),
    ],
)  # fmt: skip
def test_a_bad_line_takes_its_family_and_the_rest_is_judged(body: str, why: str) -> None:
    target = normal(body)
    sample, good = target.engines["m", "0"], only(V1)
    assert sample.preemptions is None
    assert sample.unusable == {"preemptions_total"}
    assert replace(sample, preemptions=7.0, unusable=frozenset()) == good
    assert target.invalid["preemptions_total"] >= 1
    assert list(target.unread) == ["preemptions_total"]
    assert why in target.unread["preemptions_total"]
    assert not normal(V1).unread


def test_a_line_in_another_encoding_takes_its_family_and_the_rest_is_judged() -> None:
    target = normalise(V1.encode().replace(b'model_name="m"} 7.0', b'model_name="m\xff"} 7.0'))
    assert target.engines["m", "0"].preemptions is None
    assert "line 12 is not UTF-8" in target.unread["preemptions_total"]
    help_text = normalise(V1.encode().replace(b"# HELP vllm:num_preemptions_total P.", b"# HELP x \xff."))
    assert help_text.engines["m", "0"].preemptions == 7.0
    assert not help_text.unread


def test_a_bad_line_of_the_newer_spelling_leaves_the_older_one() -> None:
    old = 'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.4\n'
    target = normal(old + V1.replace("} 0.5", "} x"))
    assert target.engines["m", "0"].kv_usage == 0.4
    assert list(target.unread) == ["kv_cache_usage_ratio"]


@pytest.mark.parametrize("part", ["_bucket", "_sum", "_count"])
def test_a_bad_part_of_a_histogram_takes_all_of_it(part: str) -> None:
    text = histogram(("1", 1), ("+Inf", 2), count=2, total=3)
    line = next(line for line in text.splitlines() if part in line)
    target = normal(text.replace(line, line + ".2.3") + V1)
    assert not target.engines["m", "0"].histograms
    assert target.invalid == {"e2e_latency_seconds": 4}
    assert replace(target.engines["m", "0"], unusable=frozenset()) == only(V1)


def test_a_second_process_start_leaves_the_engines_as_they_are() -> None:
    """A wrapper's own beside vLLM's."""
    target = normal("process_start_time_seconds 1000\nprocess_start_time_seconds 2000\n" + V1)
    assert replace(target.engines["m", "0"], unusable=frozenset()) == only(V1)
    assert list(target.unread) == ["started_at"]


def test_a_cache_configuration_that_contradicts_itself_is_unknown_not_off() -> None:
    row = CONFIG.format(labels='block_size="16",num_gpu_blocks="10",enable_prefix_caching="False",engine="0"')
    assert only(V1 + row).prefix_caching is False
    target = normal(row + row.replace(" 1.0", " 2.0") + V1)
    assert (target.engines["m", "0"].prefix_caching, target.engines["m", "0"].kv_capacity_tokens) == (None, None)
    assert list(target.unread) == ["cache_config_info"]


@pytest.mark.parametrize("label", ["", ',enable_prefix_caching="None"'])
def test_prefix_caching_that_is_not_said_is_unknown(label: str) -> None:
    assert only(V1 + CONFIG.format(labels=f'engine="0",block_size="16"{label}')).prefix_caching is None
    assert only(V1).prefix_caching is None


GAUGES = ("num_requests_running", "num_requests_waiting")
PROGRESS = ("prompt_tokens_total", "generation_tokens_total")


@pytest.mark.parametrize("lost", [GAUGES, PROGRESS])
def test_too_little_left_is_an_error_with_the_line(lost: tuple[str, ...]) -> None:
    body = V1 + 'vllm:num_requests_swapped{engine="0",model_name="m"} 0\n'
    one = body.replace(f'vllm:{lost[0]}{{engine="0"', f"vllm:{lost[0]}{{engine=0")
    assert list(normal(one).engines) == [("m", "0")]
    error = refused(one.replace(f'vllm:{lost[1]}{{engine="0"', f"vllm:{lost[1]}{{engine=0"))
    assert error.reason == "malformed"
    assert lost[0] in error.detail


def test_a_malformed_last_line_is_an_error_for_what_followed_may_be_missing() -> None:
    error = refused(V1.replace('model_name="m"} 50.0', ""))
    assert error.reason == "malformed"
    assert "line 18" in error.detail


@pytest.mark.parametrize(
    "body",
    [
        "# EOF\n",
        "# TYPE vllm:num_requests_running gauge\n# TYPE vllm:prompt_tokens counter\n# EOF\n",
        '# TYPE http_requests counter\nhttp_requests_total{method="GET",status="2xx",handler="/health"} 1\n# EOF\n',
    ],
)
def test_an_idle_rust_frontend_has_no_engine_yet_and_is_no_error(body: str) -> None:
    assert normal(body).engines == {}


@pytest.mark.parametrize("body", ["# TYPE go_gc gauge\ngo_gc 1\n# EOF\n", "# TYPE http_requests counter\n"])
def test_openmetrics_of_another_server_and_a_page_that_does_not_end_are_no_idle_frontend(body: str) -> None:
    assert refused(body).reason == "no_vllm_metrics"


# --- Labels that vLLM does not have.


def spread(body: str, *labels: str) -> str:
    """The samples of a body once for each of these labels; the last copy has 9 running."""
    rows = []
    for number, label in enumerate(labels, 1):
        busy = body.replace("running{", "running{ ").replace("} 3.0", "} 9.0") if number == len(labels) else body
        rows += [line.replace('model_name="m"', f'model_name="m"{label}') for line in busy.splitlines()]
    return "\n".join(row for row in rows if row[0] != "#") + "\n"


@pytest.mark.parametrize(
    ("labels", "engines"),
    [
        ([',stage="0"', ',stage="1"'], ["0@stage=0", "0@stage=1"]),
        ([',worker_addr="a:1"', ',worker_addr="a:2"'], ["0@worker_addr=a:1", "0@worker_addr=a:2"]),
        ([',pod="x",instance="10.0.0.1:80"', ',pod="y",instance="10.0.0.2:80"'], ["0@pod=x", "0@pod=y"]),
        ([',stage="0",replica="0"', ',stage="1",replica="0"'], ["0@stage=0", "0@stage=1"]),
        ([',stage="0",replica="1"', ',stage="1",replica="0"', ',stage="1",replica="1"'],
         ["0@replica=1,stage=0", "0@replica=0,stage=1", "0@replica=1,stage=1"]),
        (["", ',model_instance_name="b"'], ["0", "0@model_instance_name=b"]),
        ([f',zone="{"z" * 70}1"', ',zone="b"'], [f"0@zone={'z' * 64}", "0@zone=b"]),
    ],
)  # fmt: skip
def test_labels_that_tell_equal_series_apart_make_engines(labels: list[str], engines: list[str]) -> None:
    target = normal(spread(V1, *labels))
    assert list(target.engines) == [("m", engine) for engine in engines]
    assert [sample.running for sample in target.engines.values()] == [3.0] * (len(labels) - 1) + [9.0]
    assert {sample.generation_tokens for sample in target.engines.values()} == {50.0}
    assert target.split_labels == tuple(
        sorted({mark.split("=")[0] for e in engines for mark in e[2:].split(",") if mark})
    )
    assert not target.unread


def test_labels_that_are_the_same_everywhere_split_nothing() -> None:
    target = normal(spread(V1.replace("3.0", "9.0"), ',pod="x",namespace="n"'))
    assert list(target.engines) == [("m", "0")]
    assert target.split_labels == ()
    assert target.engines == normal(V1.replace("3.0", "9.0")).engines


def test_each_engine_of_a_split_page_has_its_own_start_and_configuration() -> None:
    label = 'engine="0",block_size="16",num_gpu_blocks="{}00",stage="{}"'.format
    rows = CONFIG.format(labels=label(1, 0)) + CONFIG.format(labels=label(2, 1))
    rows += 'process_start_time_seconds{stage="0"} 1000\nprocess_start_time_seconds{stage="1"} 2000\n'
    first, second = normal(rows + spread(V1, ',stage="0"', ',stage="1"')).engines.values()
    assert (first.kv_capacity_tokens, first.started_at) == (1600, 1000)
    assert (second.kv_capacity_tokens, second.started_at) == (3200, 2000)


def test_a_label_on_one_family_alone_is_refused_aloud() -> None:
    """A release that begins to split a counter must be told, not added up or guessed."""
    row = 'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m",priority="{0}"}} {1}\n'
    target = normal(V1 + row.format("high", 3) + row.format("low", 4))
    assert target.engines["m", "0"].responses is None
    assert target.invalid == {"responses_total": 2}
    assert "label priority, unknown to vLLM" in target.unread["responses_total"]
    assert normal(V1 + row.format("high", 3)).engines["m", "0"].responses == {"stop": 3.0}


def test_what_lacks_the_label_that_splits_the_page_is_nobodys() -> None:
    stray = 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3\n'
    target = normal(spread(V1, ',stage="0"', ',stage="1"') + stray)
    assert list(target.engines) == [("m", "0@stage=0"), ("m", "0@stage=1")]
    assert "no label stage" in target.unread["responses_total"]


def test_a_label_with_a_value_for_everything_is_refused_with_its_name() -> None:
    error = refused(spread(V1, *(f',request_id="{n}"' for n in range(65))))
    assert error.reason == "too_many_series"
    assert "label request_id, unknown to vLLM, makes 65 engines" in error.detail
    clash = spread(V1, f',zone="{"z" * 64}1"', f',zone="{"z" * 64}2"')
    assert refused(clash).reason == "duplicate"


def test_splitting_is_the_same_with_a_layout() -> None:
    body = spread(V1, ',stage="0"', ',stage="1"')
    layout = Layout()
    for text in (V1, body, body.replace("} 50.0", "} 51.0"), V1, body.replace("} 7.0", "} x")):
        assert normalise(text.encode(), layout) == normalise(text.encode())


def test_a_reason_under_the_label_that_imitators_use_is_read() -> None:
    row = 'vllm:request_success_total{{finish_reason="{0}",model_name="m"}} {1}\n'
    assert only(V1 + row.format("stop", 3) + row.format("length", 1)).responses == {"stop": 3.0, "length": 1.0}


def test_every_histogram_and_counter_of_the_table_is_in_the_catalogue() -> None:
    named = {f.name for f in FAMILIES}
    kinds = (Kind.HISTOGRAM, Kind.COUNTER)
    assert {metric.name for metric in NORMALISED if metric.kind in kinds} <= named
    judged = [f for f in FAMILIES if f.says is None]
    assert {f.field for f in judged if f.name in BY_NAME and BY_NAME[f.name].kind is not Kind.HISTOGRAM} <= {
        *(f.name for f in fields(EngineSample)),
        "prompt_tokens_cached",
        "swapped",
    }


def test_more_engines_than_any_server_has_are_refused() -> None:
    rows = 'vllm:num_requests_running{{engine="{0}",model_name="m"}} 1\n'
    error = refused("".join(rows.format(rank) for rank in range(3000)))
    assert error.reason == "too_many_series"
    assert "3000 engines" in error.detail
    assert len(normal("".join(rows.format(rank) for rank in range(300))).engines) == 300


# --- The HTTP server and the process before the engines.


def test_the_answers_of_the_routes_that_matter_are_counted_by_status_class() -> None:
    """No GET is in it: /v1/models and /is_paused say nothing about an engine."""
    paused = normal(page("pause_freeze_kill"))
    assert paused.http == {
        ("/v1/completions", "POST", "2xx"): 75,
        ("/v1/chat/completions", "POST", "2xx"): 243,
        ("/pause", "POST", "2xx"): 1,
        ("/resume", "POST", "2xx"): 1,
    }
    failing = normal(page("errors_most_fail"))
    assert failing.http == {("/v1/completions", "POST", "2xx"): 320, ("/v1/completions", "POST", "5xx"): 82}
    assert failing.identity.process_starts == (1.79608672144e09,)
    assert len(failing.identity.created) == 1


ANSWER = 'http_requests_total{{handler="{0}",method="{1}",status="{2}"{3}}} {4}\n'


@pytest.mark.parametrize(
    ("rows", "http"),
    [
        ([("/v1/completions", "POST", "200", "", 3), ("/v1/completions", "POST", "503", "", 1)],
         {("/v1/completions", "POST", "2xx"): 3, ("/v1/completions", "POST", "5xx"): 1}),
        ([("/v1/completions", "POST", "2xx", ',pid="1"', 3), ("/v1/completions", "POST", "2xx", ',pid="2"', 4)],
         {("/v1/completions", "POST", "2xx"): 7}),
        ([("/team-a/v1/completions/", "POST", "2xx", "", 3)], {("/v1/completions", "POST", "2xx"): 3}),
        ([("none", "POST", "4xx", "", 3), ("/v1/models", "GET", "2xx", "", 9), ("/unpause", "POST", "2xx", "", 1)], {}),
        ([("/pause", "POST", "NaN", "", 1), ("/resume", "POST", "", "", 1)], {}),
        ([("/pause", "POST", "2xx", "", -1), ("/resume", "POST", "2xx", "", 1)], {("/resume", "POST", "2xx"): 1}),
        ([(f"/x{n}", "POST", "2xx", "", 1) for n in range(2000)], {}),
    ],
)  # fmt: skip
def test_answers_are_added_over_processes_and_bounded(
    rows: list[tuple[object, ...]], http: Mapping[tuple[str, str, str], float]
) -> None:
    target = normal(V1 + "".join(ANSWER.format(*row) for row in rows))
    assert target.http == http
    assert target.engines == normal(V1).engines
    assert normal(V1).http is None


def test_an_answer_changes_the_target_and_no_engine() -> None:
    layout = Layout()
    one = V1 + ANSWER.format("/pause", "POST", "2xx", "", 1)
    before = normalise(one.encode(), layout)
    after = normalise(one.replace('"2xx"} 1', '"2xx"} 2').encode(), layout)
    assert after.http == {("/pause", "POST", "2xx"): 2}
    assert after.engines["m", "0"] is before.engines["m", "0"]


def test_every_start_time_on_the_page_is_known() -> None:
    body = V1 + 'process_start_time_seconds{stage="1"} 900\nprocess_start_time_seconds{stage="0"} 1000\n'
    created = 'vllm:generation_tokens_created{engine="0",model_name="m"} 950\n'
    target = normal(body + created)
    assert (target.identity.process_starts, target.identity.created) == ((900, 1000), (950,))
    assert only(body).started_at == 900
    assert normal(V1).identity == Identity()


# --- The layout.


def test_what_did_not_change_is_the_same_object() -> None:
    first, second = bodies("recordings/dp2_pressure")[-2:]
    layout = Layout()
    before = normalise(first, layout)
    assert normalise(first, layout) is before
    only_one = first.replace(b'running{engine="0",model_name="tiny"} ', b'running{engine="0",model_name="tiny"} 1')
    after = normalise(only_one, layout)
    assert after.engines["tiny", "1"] is before.engines["tiny", "1"]
    assert after.engines["tiny", "0"] != before.engines["tiny", "0"]
    for name, one in after.engines["tiny", "0"].histograms.items():
        assert one is before.engines["tiny", "0"].histograms[name]
    assert normalise(second, layout) == normalise(second)


def test_a_layout_survives_a_bad_body() -> None:
    body = bodies("recordings/spiral_chunked")[50]
    layout = Layout()
    good = normalise(body, layout)
    for bad in (
        b"",
        b"<html>",
        body[:-200],
        body.replace(b"running{", b"running[").replace(b"waiting{", b"waiting["),
        b"\xff\n",
    ):
        with pytest.raises(ExpositionError):
            normalise(bad, layout)
        assert normalise(body, layout) == good


def test_a_real_body_cut_anywhere_inside_a_line_is_truncated() -> None:
    body = bodies("recordings/spiral_chunked")[50]
    layout = Layout()
    for size in range(40, len(body), 997):
        if body[size - 1 : size] != b"\n":
            with pytest.raises(ExpositionError) as caught:
                normalise(body[:size], layout)
            assert caught.value.reason == "truncated"


BASE = bodies("recordings/preempting_productive")[40].decode()
LINES = [i for i, line in enumerate(BASE.split("\n")) if line.startswith(("vllm:", "process_start", "http_"))]
VALUES = st.one_of(
    st.integers(0, 10**6).map(str), st.floats(0, 1).map(repr),
    st.sampled_from(["NaN", "+Inf", "-1.0", "1_0", "", "5 1795961029545", "1e+010", "x"]),
)  # fmt: skip
EDITS = st.one_of(
    st.tuples(st.just("value"), st.sampled_from(LINES), VALUES),
    st.tuples(st.just("value"), st.sampled_from(LINES), VALUES),
    st.tuples(st.just("drop"), st.sampled_from(LINES), st.just("")),
    st.tuples(st.just("double"), st.sampled_from(LINES), st.just("")),
    st.tuples(st.just("rename"), st.sampled_from(LINES), st.sampled_from(['engine="1"', 'engine="é"', "vllm:other"])),
    st.tuples(st.just("base"), st.just(0), st.just("")),
)


def edits(steps: list[tuple[str, int, str]]) -> Iterator[bytes]:
    rows = BASE.split("\n")
    for kind, at, text in steps:
        if kind == "base":
            rows = BASE.split("\n")
        elif at < len(rows) - 1 and not rows[at].startswith("#"):
            if kind == "value":
                rows[at] = rows[at].rpartition(" ")[0] + " " + text
            elif kind == "rename":
                rows[at] = rows[at].replace('engine="0"', text) if "=" in text else rows[at].replace("vllm:", text, 1)
            else:
                rows[at : at + 1] = [rows[at]] * (2 if kind == "double" else 0)
        yield "\n".join(rows).encode()


def outcome(body: bytes, layout: Layout | None) -> str:
    try:
        return repr(normalise(body, layout))  # repr, so that NaN equals NaN
    except ExpositionError as error:
        return str(error)


@given(st.lists(EDITS, min_size=2, max_size=10))
@settings(max_examples=60, deadline=None)
def test_a_layout_never_changes_a_result(steps: list[tuple[str, int, str]]) -> None:
    layout = Layout()
    for body in edits(steps):
        assert outcome(body, layout) == outcome(body, None)
