"""Real vLLM under real load, end to end: what was said of every scrape, against what a correct monitor says."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vllm_vitals.core.snapshot import EngineSnapshot
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings.recording import read

RECORDINGS = Path(__file__).parent / "data" / "recordings"
NAMES = sorted(path.name for path in RECORDINGS.iterdir())
NEXT_BUCKET = {0.01: 0.025, 0.025: 0.05, 0.05: 0.075, 0.075: 0.1}

Timeline = list[tuple[float, EngineSnapshot]]


def load(name: str, what: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDINGS / name / what).read_text())
    return content


@cache
def judged(name: str) -> dict[str, Timeline]:
    """Engine -> (seconds since the first scrape, what was said)."""
    judge, timelines, start = TargetEvaluator(name), {}, None
    for scrape in read(RECORDINGS / name / "metrics.jsonl.gz"):
        start = scrape.at if start is None else start
        for engine in judge.observe(scrape).engines:
            timelines.setdefault(engine.key.engine, []).append((scrape.at - start, engine))
    return timelines


def expected_engines(name: str) -> list[Timeline]:
    expect = load(name, "expect.json")
    return [judged(name)[engine] for engine in expect.get("engines", [expect["engine"]])]


@pytest.mark.parametrize("name", NAMES)
def test_every_scrape_has_a_state_that_a_correct_monitor_gives(name: str) -> None:
    expect = load(name, "expect.json")
    for timeline in expected_engines(name):
        for at, engine in timeline:
            assert engine.state not in expect["never"], f"at {at:.0f} s"
            for rule in expect["rules"]:
                if rule["from"] <= at <= rule["to"]:
                    assert engine.state in rule["states"], f"at {at:.0f} s"


@pytest.mark.parametrize("name", [name for name in NAMES if load(name, "expect.json").get("critical")])
def test_trouble_is_seen_in_time(name: str) -> None:
    expect = load(name, "expect.json")
    (timeline,) = expected_engines(name)
    seen = next(at for at, engine in timeline if engine.state == expect["critical"])
    assert expect["onset"] <= seen <= expect["onset"] + expect["detect_within"]


@pytest.mark.parametrize("name", [name for name in NAMES if load(name, "expect.json")["signals"]])
def test_signals_lie_where_the_recording_says(name: str) -> None:
    for timeline in expected_engines(name):
        for signal in load(name, "expect.json")["signals"]:
            _, engine = min(timeline, key=lambda entry: abs(entry[0] - signal["t"]))
            reading = engine.readings.get(signal["name"])
            value = getattr(engine.sample, "kv_capacity_tokens") if reading is None else reading.value  # noqa: B009
            assert value is not None, signal["name"]
            assert signal["min"] <= value <= signal["max"], signal["name"]


@pytest.mark.parametrize("name", [name for name in NAMES if "engines" not in load(name, "expect.json")])
def test_counts_agree_exactly_with_what_the_load_generator_saw(name: str) -> None:
    truth, (timeline,) = load(name, "truth.json"), expected_engines(name)
    samples = {round(at, 1): engine.sample for at, engine in timeline if engine.sample}
    for phase in truth["phases"]:
        if phase["counter_reset_inside"]:
            continue
        first = samples[min(samples, key=lambda at: abs(at - phase["counters_from"]))]
        last = samples[min(samples, key=lambda at: abs(at - phase["counters_to"]))]
        assert first.responses is not None
        assert last.responses is not None
        assert last.preemptions - first.preemptions == phase["num_preemptions_total"]  # type: ignore[operator]
        assert last.prompt_tokens - first.prompt_tokens == phase["prompt_tokens_total"]  # type: ignore[operator]
        assert last.generation_tokens - first.generation_tokens == phase["generation_tokens_total"]  # type: ignore[operator]
        finished = {reason: n - first.responses[reason] for reason, n in last.responses.items()}
        assert finished == phase["finished"]


@pytest.mark.parametrize("name", NAMES)
def test_the_clients_own_tpot_lies_within_the_bounds(name: str) -> None:
    phase = load(name, "truth.json")["phases"][0]
    for timeline in expected_engines(name):
        _, engine = [entry for entry in timeline if entry[0] <= phase["counters_to"] + 0.5][-1]
        p50, p99 = engine.readings["tpot_p50_seconds"], engine.readings["tpot_p99_seconds"]
        assert p50.lower <= phase["client"]["tpot_p50"] <= p50.upper  # type: ignore[operator]
        # the 99th of some hundred requests is one request: it may fall one bucket higher than the rank says
        assert p99.lower <= phase["client"]["tpot_p99"] <= NEXT_BUCKET[p99.upper]  # type: ignore[operator, index]
