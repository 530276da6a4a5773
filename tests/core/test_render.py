"""Our exposition against the reference library: its parsers read it, and its writer would have said the same."""

import subprocess
from array import array
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.programs import PATIENCE_S, find
from vllm_vitals.catalog import BY_NAME, METRICS, NAMESPACE, Kind
from vllm_vitals.core.render import TargetRenderer, join, render_samples
from vllm_vitals.core.sample import EngineSample, Histogram
from vllm_vitals.core.series_block import label_text
from vllm_vitals.core.snapshot import (
    SCRAPE_ERRORS,
    Advice,
    EngineKey,
    EngineSnapshot,
    Reading,
    Scrape,
    TargetSnapshot,
    absent,
)
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings import recording

DATA = Path(__file__).parent.parent / "data"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def replayed(name: str, upto: int | None = None) -> TargetSnapshot:
    judge = TargetEvaluator(name)
    snapshots = [judge.observe(s) for s in list(recording.read(DATA / "recordings" / name / "metrics.jsonl.gz"))[:upto]]
    return snapshots[-1]


def rich_snapshot() -> TargetSnapshot:
    """A snapshot that has everything."""
    whole = replayed("spiral_chunked", 70)
    (engine,) = whole.engines
    advice = (Advice("s", "now", "gateway_concurrency", "down", "to 4", "w", "c"),) * 2
    return replace(whole, invalid={"requests_running": 2}, engines=(replace(engine, advice=advice),), version="0.32.0")


def series(families: list[Metric]) -> Series:
    found: Series = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def by_name(text: str) -> Series:
    return series(list(parse_text(text)))


def named(found: Series, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
    wanted = frozenset(labels.items())
    return {key[1]: value for key, value in found.items() if key[0] == NAMESPACE + name and wanted <= key[1]}


def the(found: Series, name: str, **labels: str) -> float:
    (value,) = named(found, name, **labels).values()
    return value


class Reference:
    """The same series as the library's own families."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return families_of(self._families)


def families_of(parsed: list[Metric]) -> list[Metric]:
    built: list[Metric] = []
    for family in parsed:
        metric = (
            BY_NAME.get(family.name.removeprefix(NAMESPACE)) or BY_NAME[f"{family.name.removeprefix(NAMESPACE)}_total"]
        )
        labels = metric.all_labels
        if metric.kind is Kind.HISTOGRAM:
            made = HistogramMetricFamily(metric.full_name, metric.help, labels=labels)
            for values in dict.fromkeys(tuple(s.labels[name] for name in labels) for s in family.samples):
                mine = [s for s in family.samples if tuple(s.labels[name] for name in labels) == values]
                buckets = [(s.labels["le"], s.value) for s in mine if s.name.endswith("_bucket")]
                made.add_metric(values, buckets, next(s.value for s in mine if s.name.endswith("_sum")))
        else:
            kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            made = kind(metric.full_name, metric.help, labels=labels)
            for sample in family.samples:
                made.add_metric([sample.labels[name] for name in labels], sample.value)
        built.append(made)
    return built


@pytest.mark.parametrize("openmetrics", [False, True])
def test_the_librarys_writer_says_exactly_the_same_series_types_and_help(openmetrics: bool) -> None:
    ours = join([TargetRenderer().render(rich_snapshot())], openmetrics).decode()
    parse = parse_openmetrics if openmetrics else parse_text
    parsed = list(parse(ours))
    registry = CollectorRegistry()
    registry.register(Reference(parsed))
    theirs = (generate_openmetrics if openmetrics else generate_latest)(registry).decode()
    again = list(parse(theirs))
    assert series(parsed) == series(again)
    assert [(f.name, f.type, f.documentation) for f in parsed] == [(f.name, f.type, f.documentation) for f in again]
    assert [f.name for f in parsed] == [f.name for f in sorted(parsed, key=lambda f: order(f.name))]


def order(name: str) -> int:
    names = [metric.full_name.removesuffix("_total") for metric in METRICS]
    return names.index(name.removesuffix("_total"))


def test_both_formats_hold_the_same_series() -> None:
    families = [TargetRenderer().render(rich_snapshot())]
    text = by_name(join(families).decode())
    assert text == series(list(parse_openmetrics(join(families, openmetrics=True).decode())))
    assert len(text) > 200


label_values = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=200)
@given(label_values, label_values, label_values)
def test_any_label_value_survives_both_parsers(target: str, model: str, engine: str) -> None:
    key = EngineKey(target, model, engine)
    snapshot = TargetSnapshot(target, True, 1.0, 0.1, engines=(EngineSnapshot(key, State.IDLE, 1.0, 1.0),))
    families = [TargetRenderer().render(snapshot)]
    for found in (
        by_name(join(families).decode()),
        series(list(parse_openmetrics(join(families, openmetrics=True).decode()))),
    ):
        assert the(found, "state", target=target, model_name=model, engine=engine, state="idle") == 1


def test_absurdly_long_names_are_cut_and_two_of_them_stay_two() -> None:
    engines = tuple(EngineSnapshot(EngineKey("t", "m" * 10_000 + end, "0"), State.IDLE, 1.0, 1.0) for end in ("a", "b"))
    text = join([TargetRenderer().render(TargetSnapshot("t", True, 1.0, 0.1, engines=engines))]).decode()
    assert len(named(by_name(text), "state", state="idle")) == 2
    assert max(len(line) for line in text.splitlines()) < 600


def test_every_state_is_always_present_and_exactly_one_holds() -> None:
    found = by_name(join([TargetRenderer().render(rich_snapshot())]).decode())
    states = named(found, "state")
    assert len(states) == len(State)
    assert sum(states.values()) == 1
    assert len(named(found, "scrape_errors_total")) == len(SCRAPE_ERRORS)


def test_what_is_absent_or_not_finite_has_no_series() -> None:
    readings = {
        "preemptions_per_second": absent("no"),
        "truncated_ratio": Reading(nan),
        "expected_wait_seconds": Reading(inf),
    }
    sample = EngineSample(running=0.0, kv_usage=None, responses=None)
    engine = EngineSnapshot(EngineKey("t", "m", "0"), State.IDLE, 1.0, 1.0, sample=sample, readings=readings)
    found = by_name(join([TargetRenderer().render(TargetSnapshot("t", True, 1.0, 0.1, engines=(engine,)))]).decode())
    assert the(found, "requests_running") == 0
    for name in ("kv_cache_usage_ratio", "responses_total", "requests_waiting", *readings):
        assert not named(found, name)


def test_quantiles_carry_their_source_and_bounds_and_the_tax_its_own_families() -> None:
    readings = {
        "tpot_p50_seconds": Reading(None, 0.0, 0.01),
        "tpot_p50_seconds.inter_token": Reading(0.02, 0.01, 0.025),
        "ttft_p99_seconds": Reading(0.5, 0.25, 0.75),
        "recompute_tax_ratio": Reading(0.2, 0.1, 0.6),
    }
    engine = EngineSnapshot(EngineKey("t", "m", "0"), State.IDLE, 1.0, 1.0, readings=readings)
    found = by_name(join([TargetRenderer().render(TargetSnapshot("t", True, 1.0, 0.1, engines=(engine,)))]).decode())
    assert not named(found, "tpot_p50_seconds", source="request", bound="estimate")
    assert the(found, "tpot_p50_seconds", source="request", bound="upper") == 0.01
    assert the(found, "tpot_p50_seconds", source="inter_token", bound="estimate") == 0.02
    assert the(found, "ttft_p99_seconds", bound="lower") == 0.25
    assert the(found, "recompute_tax_ratio") == 0.2
    assert the(found, "recompute_tax_lower_ratio") == 0.1
    assert the(found, "recompute_tax_upper_ratio") == 0.6


def test_waiting_without_reasons_is_unsplit() -> None:
    engine = EngineSnapshot(EngineKey("t", "m", "0"), State.IDLE, 1.0, 1.0, sample=EngineSample(waiting=3.0))
    found = by_name(join([TargetRenderer().render(TargetSnapshot("t", True, 1.0, 0.1, engines=(engine,)))]).decode())
    assert the(found, "requests_waiting", reason="unsplit") == 3


@pytest.mark.parametrize(("choice", "shown"), [("all", 15), ("latency", 5), ("none", 0)])
def test_histograms_are_passed_through_as_chosen_with_vllms_own_bounds(choice: str, shown: int) -> None:
    snapshot = rich_snapshot()
    text = join([TargetRenderer(histograms=choice).render(snapshot)]).decode()  # type: ignore[arg-type]
    kinds = [family for family in parse_text(text) if family.type == "histogram"]
    assert len(kinds) == shown
    for family in kinds:
        name = family.name.removeprefix(NAMESPACE)
        sample = snapshot.engines[0].sample
        assert sample is not None
        bounds = [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")]
        assert bounds == [*sample.histograms[name].bounds, inf]


def test_a_histogram_is_rendered_again_only_when_it_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_vitals.core import series_block

    made: list[str] = []
    real = series_block._render_histogram
    monkeypatch.setattr(
        series_block, "_render_histogram", lambda name, own, h: (made.append(name), real(name, own, h))[1]
    )
    histogram = Histogram((0.1, 1.0), array("d", [1.0, 2.0, 2.0]), 1.5)
    sample = EngineSample(histograms={"ttft_seconds": histogram})
    engine = EngineSnapshot(EngineKey("t", "m", "0"), State.IDLE, 1.0, 1.0, sample=sample)
    snapshot = TargetSnapshot("t", True, 1.0, 0.1, engines=(engine,))
    renderer = TargetRenderer()
    first, second = renderer.render(snapshot), renderer.render(snapshot)
    assert made == ["ttft_seconds"]
    assert first == second
    other = replace(sample, histograms={"ttft_seconds": replace(histogram, sum=2.5)})
    third = renderer.render(replace(snapshot, engines=(replace(engine, sample=other),)))
    assert made == ["ttft_seconds"] * 2
    assert b"_sum{" in third["ttft_seconds"]
    assert third != first


@pytest.mark.parametrize("name", ["100%d", "%a%s%%", "a\0b", "\u00ff", 'quo"te\\', "two\nlines", "\ud800"])
@pytest.mark.parametrize("count", [2.0, 2.5])
def test_no_name_is_taken_for_a_part_of_the_text_around_it(name: str, count: float) -> None:
    histogram = Histogram((0.1,), array("d", [1.0, count]), 1.5)
    sample = EngineSample(running=3.0, histograms={"ttft_seconds": histogram})
    engine = EngineSnapshot(EngineKey("t", name, "0"), State.IDLE, 1.0, 1.0, sample=sample)
    families = TargetRenderer().render(TargetSnapshot("t", True, 1.0, 0.1, engines=(engine,)))
    shown = label_text({"target": "t", "model_name": name, "engine": "0"}).encode(errors="replace")
    assert families["requests_running"] == b"vllm_vitals_requests_running{%b} 3\n" % shown
    assert families["ttft_seconds"].splitlines() == [
        b'vllm_vitals_ttft_seconds_bucket{%b,le="0.1"} 1' % shown,
        b'vllm_vitals_ttft_seconds_bucket{%b,le="+Inf"} %a' % (shown, 2.5 if count == 2.5 else 2),
        b"vllm_vitals_ttft_seconds_sum{%b} 1.5" % shown,
        b"vllm_vitals_ttft_seconds_count{%b} %a" % (shown, 2.5 if count == 2.5 else 2),
    ]


def test_lines_come_and_go_with_what_is_known() -> None:
    renderer, key = TargetRenderer(), EngineKey("t", "m", "0")

    def shown(sample: EngineSample) -> str:
        engine = EngineSnapshot(key, State.IDLE, 1.0, 1.0, sample=sample)
        return join([renderer.render(TargetSnapshot("t", True, 1.0, 0.1, engines=(engine,)))]).decode()

    full, less = EngineSample(running=3.0, waiting=1.0, kv_usage=0.5), EngineSample(running=4.0, waiting=inf)
    pages = [shown(sample) for sample in (full, less, full)]
    assert pages[0] == pages[2]
    assert "kv_cache_usage_ratio" not in pages[1]
    assert "requests_waiting" not in pages[1]
    assert 'vllm_vitals_requests_running{target="t",model_name="m",engine="0"} 4\n' in pages[1]


def test_a_target_never_seen_shows_as_not_up_and_nothing_is_invented() -> None:
    snapshot = TargetEvaluator("t", model_name="llama").observe(Scrape(5.0, 0.1, None, "refused", "no"))
    found = by_name(join([TargetRenderer().render(snapshot)]).decode())
    assert the(found, "target_up", target="t") == 0
    assert the(found, "scrape_errors_total", reason="refused") == 1
    assert the(found, "state", model_name="llama", state="unknown") == 1
    assert not named(found, "last_scrape_timestamp_seconds")
    assert not named(found, "requests_running")


def test_after_a_failure_the_last_series_stay_until_the_third_in_a_row() -> None:
    judge, renderer = TargetEvaluator("t"), TargetRenderer()
    scrapes = list(recording.read(DATA / "recordings" / "spiral_chunked" / "metrics.jsonl.gz"))[:30]
    for scrape in scrapes:
        good = renderer.render(judge.observe(scrape))
    last = scrapes[-1].at
    shown = []
    for number in range(3):
        snapshot = judge.observe(Scrape(last + 2 * (number + 1), 0.1, None, "refused", "no"))
        shown.append(by_name(join([renderer.render(snapshot)]).decode()))
    before = by_name(join([good]).decode())
    for found in shown[:2]:
        assert the(found, "target_up") == 0
        assert the(found, "generation_tokens_total") == the(before, "generation_tokens_total")
        assert the(found, "preemptions_per_second") == the(before, "preemptions_per_second")
    gone = shown[2]
    assert the(gone, "state", state="down") == 1
    assert the(gone, "last_scrape_timestamp_seconds") == pytest.approx(last, abs=0.001)
    assert not named(gone, "generation_tokens_total")
    assert not named(gone, "preemptions_per_second")
    assert not any(name.endswith("_bucket") for name, _ in gone)


def test_timestamps_are_shown_in_the_wall_clock() -> None:
    snapshot = rich_snapshot()
    plainly, stepped = (by_name(join([TargetRenderer().render(snapshot, skew)]).decode()) for skew in (0.0, 3600.0))
    for name in ("last_scrape_timestamp_seconds", "state_since_timestamp_seconds"):
        assert the(stepped, name) - the(plainly, name) == pytest.approx(3600)


def test_extra_labels_stand_on_every_series_of_their_target() -> None:
    text = join([TargetRenderer({"cluster": "a"}).render(rich_snapshot())]).decode()
    assert all(("cluster", "a") in labels for _, labels in by_name(text))


def test_two_targets_share_each_familys_head() -> None:
    one = rich_snapshot()
    two = replace(one, target="u", engines=tuple(replace(e, key=replace(e.key, target="u")) for e in one.engines))
    text = join([TargetRenderer().render(one), TargetRenderer().render(two)]).decode()
    heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert {dict(labels)["target"] for _, labels in by_name(text)} == {"spiral_chunked", "u"}


def test_samples_that_are_about_no_target_take_any_labels() -> None:
    families = render_samples(
        [("log_records_total", {"source": 'a"b', "result": "ok"}, 3.0), ("log_tpot_p50_seconds", {}, nan)]
    )
    assert families == {"log_records_total": b'vllm_vitals_log_records_total{source="a\\"b",result="ok"} 3\n'}


def test_promtool_finds_nothing_to_improve() -> None:
    promtool = find("promtool")
    text = join([TargetRenderer().render(rich_snapshot())])
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout.decode() + done.stderr.decode()) == (0, "")


@pytest.mark.parametrize("version", sorted(p.parent.name for p in DATA.glob("versions/*/metrics.jsonl.gz")))
def test_every_version_renders_only_what_its_server_said(version: str) -> None:
    judge = TargetEvaluator(version)
    snapshot = None
    for scrape in recording.read(DATA / "versions" / version / "metrics.jsonl.gz"):
        snapshot = judge.observe(scrape)
    assert snapshot is not None
    found = by_name(join([TargetRenderer().render(snapshot)]).decode())
    for engine in snapshot.engines:
        assert engine.sample is not None
        labels = {"model_name": engine.key.model_name, "engine": engine.key.engine}
        assert the(found, "generation_tokens_total", **labels) == engine.sample.generation_tokens
        assert bool(named(found, "request_preemptions_count", **labels)) == (
            "request_preemptions" in engine.sample.histograms
        )


def test_what_a_server_refused_stands_on_its_first_engine_alone() -> None:
    judge = TargetEvaluator("a:8000")
    for scrape in list(recording.read(DATA / "recordings" / "dp2_pressure" / "metrics.jsonl.gz"))[-3:]:
        body = (scrape.body or b"").replace(b'reason="max_num_queued_reqs"} 0.0', b'reason="max_num_queued_reqs"} 7.0')
        snapshot = judge.observe(replace(scrape, body=body))
    text = TargetRenderer().render(snapshot)["rejected_requests_total"].decode()
    assert text == 'vllm_vitals_rejected_requests_total{target="a:8000",model_name="tiny",engine="0"} 7\n'
