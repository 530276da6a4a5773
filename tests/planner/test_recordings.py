"""The recordings of a real vLLM: once through Prometheus, once read directly, and against what they really hold."""

import gzip
import json
from functools import cache
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.planner.conftest import RECORDINGS
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.planner.review.report import ModelReview, build
from vllm_vitals.planner.telemetry import recorded
from vllm_vitals.planner.telemetry.collect import collect
from vllm_vitals.planner.telemetry.telemetry import STATES, UNKNOWN
from vllm_vitals.prometheus.promapi import PromApi, access
from vllm_vitals.recordings import recording

NAMES = sorted(folder.name for folder in RECORDINGS.iterdir())


@cache
def scrapes(name: str) -> list[tuple[float, dict[tuple[str, str], float]]]:
    """(time, values by (series, engine)) as another parser reads them; a label that is not the engine's is added up."""
    found = []
    with gzip.open(RECORDINGS / name / "metrics.jsonl.gz") as lines:
        for line in lines:
            scrape = json.loads(line)
            if scrape["status"] != 200:
                continue
            values: dict[tuple[str, str], float] = {}
            for family in text_string_to_metric_families(scrape["text"]):
                for sample in family.samples:
                    if sample.name.startswith("vllm:") and "le" not in sample.labels:
                        key = (sample.name, sample.labels.get("engine", ""))
                        values[key] = values.get(key, 0.0) + sample.value
            found.append((scrape["t"], values))
    return found


def review_of(url: str, name: str) -> ModelReview:
    seen = scrapes(name)
    telemetry = collect([PromApi(access(url))], seen[0][0], seen[-1][0], matchers=f'target="{name}:8000"')
    assert not telemetry.missing
    return build(telemetry, ReviewSettings(), "test", 0.0).models[0]


def grown(seen: list[tuple[float, dict[tuple[str, str], float]]], series: str, start: float, end: float) -> float:
    """A counter's growth between two times, over all engines, resets taken out."""
    total = 0.0
    for key in {key for _, values in seen for key in values if key[0] == series}:
        inside = [(t, values[key]) for t, values in seen if key in values and t <= end]
        before = [v for t, v in inside if t <= start][-1:]
        points = before + [v for t, v in inside if t > start]
        total += sum(b - a if b >= a else b for a, b in pairwise(points))
    return total


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("restart_under_load", "dp2_pressure")])
def test_totals_are_the_counters_own_growth(recordings_url: str, name: str) -> None:
    seen, review = scrapes(name), review_of(recordings_url, name)
    start, end = review_start(recordings_url, name), float(int(seen[-1][0]))
    assert review.traffic.generated_tokens == grown(seen, "vllm:generation_tokens_total", start, end)
    assert review.traffic.requests == grown(seen, "vllm:request_success_total", start, end)
    assert review.preemption.events == grown(seen, "vllm:num_preemptions_total", start, end)
    assert review.tails["ttft_seconds"].count == grown(seen, "vllm:time_to_first_token_seconds_count", start, end)
    mean = grown(seen, "vllm:time_to_first_token_seconds_sum", start, end) / review.tails["ttft_seconds"].count
    assert review.tails["ttft_seconds"].mean == pytest.approx(mean, rel=1e-9)


def review_start(url: str, name: str) -> float:
    """Where the grid begins, or the first scrape where it begins before it: an earlier reading does not exist."""
    seen = scrapes(name)
    telemetry = collect([PromApi(access(url))], seen[0][0], seen[-1][0], matchers=f'target="{name}:8000"')
    start = telemetry.grid.start
    while start < seen[0][0]:
        start += telemetry.grid.step
    return start


@pytest.mark.parametrize("name", NAMES)
def test_states_are_what_the_judge_said(recordings_url: str, name: str) -> None:
    seen = scrapes(name)
    telemetry = collect([PromApi(access(recordings_url))], seen[0][0], seen[-1][0], matchers=f'target="{name}:8000"')
    judge = TargetEvaluator(f"{name}:8000")
    said: dict[str, list[tuple[float, State]]] = {}
    for scrape in recording.read(RECORDINGS / name / "metrics.jsonl.gz"):
        for engine in judge.observe(scrape).engines:
            said.setdefault(engine.key.engine, []).append((scrape.at, engine.state))
    for engine, series in telemetry.engines.items():
        for index, code in enumerate(series.states):
            time = telemetry.states.at(index + 1)
            past = [state for at, state in said[engine.engine] if at <= time + 0.001]
            if code != UNKNOWN and past:
                assert STATES[code] is past[-1]


@pytest.mark.parametrize(
    ("name", "worst"),
    [
        ("spiral_chunked", State.DEATH_SPIRAL),
        ("overcommit_thrash", State.THRASHING),
        ("restart_under_load", State.DOWN),
    ],
)
def test_what_harmed_is_an_incident(recordings_url: str, name: str, worst: State) -> None:
    assert worst in [incident.worst for incident in review_of(recordings_url, name).incidents]


@pytest.mark.parametrize(
    "name", ["same_load_reserved", "preempting_productive", "saturated_no_preemption", "truncation_mix"]
)
def test_what_did_no_harm_is_none(recordings_url: str, name: str) -> None:
    assert review_of(recordings_url, name).incidents == []


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("restart_under_load", "dp2_pressure")])
def test_a_recording_read_directly_says_the_same(recordings_url: str, name: str) -> None:
    direct = build(recorded.telemetry(RECORDINGS / name / "metrics.jsonl.gz"), ReviewSettings(), "test", 0.0).models[0]
    through = review_of(recordings_url, name)
    assert direct.traffic.generated_tokens == pytest.approx(through.traffic.generated_tokens, rel=0.1)
    assert direct.headroom.kv.max == through.headroom.kv.max
    assert direct.headroom.capacity_tokens == through.headroom.capacity_tokens
    assert [i.worst for i in direct.incidents] == [i.worst for i in through.incidents]
    assert (direct.shape.outputs.mean or 0) == pytest.approx(through.shape.outputs.mean or 0, rel=0.1)


def test_an_engine_that_restarts_says_so(recordings_url: str) -> None:
    review = review_of(recordings_url, "restart_under_load")
    assert review.restarts == 1
    direct = recorded.telemetry(RECORDINGS / "restart_under_load/metrics.jsonl.gz")
    assert [series.restarts for series in direct.engines.values()] == [1]


def test_truncation_is_seen(recordings_url: str) -> None:
    assert review_of(recordings_url, "truncation_mix").truncated_share > 0.6
