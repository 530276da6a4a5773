"""Real vLLM under real load, end to end: what was said of every scrape, against what a correct monitor says."""

import gzip
import json
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vllm_vitals.core.snapshot import EngineSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings.recording import read

DATA = Path(__file__).parent / "data"
# `measured` holds those for which an instrumented scheduler wrote down what it did.
FOLDERS = {path.name: path for kind in ("recordings", "measured") for path in sorted((DATA / kind).iterdir())}
NAMES = sorted(FOLDERS)
MEASURED = sorted(path.name for path in (DATA / "measured").iterdir())
# those with a loop, by engine: where the tax is held against the scheduler's count
LOOPS = {
    "spiral_prefix_cached": "0", "degrade_and_recover": "0", "dp2_spiral": "1", "tune2_baseline": "0",
    "tune2_kv_plus50": "0", "tune_baseline": "0", "tune_batch512": "0",
}  # fmt: skip
NEXT_BUCKET = {0.01: 0.025, 0.025: 0.05, 0.05: 0.075, 0.075: 0.1}

Timeline = list[tuple[float, EngineSnapshot]]


def load(name: str, what: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDERS[name] / what).read_text())
    return content


@cache
def judged(name: str) -> dict[str, Timeline]:
    """Engine -> (seconds since the first scrape, what was said)."""
    judge, timelines, start = TargetEvaluator(name), {}, None
    for scrape in read(FOLDERS[name] / "metrics.jsonl.gz"):
        start = scrape.at if start is None else start
        for engine in judge.observe(scrape).engines:
            timelines.setdefault(engine.key.engine, []).append((scrape.at - start, engine))
    return timelines


def expected_engines(name: str) -> list[Timeline]:
    """The engines that the expectations are about; one rank of two that loops speaks for itself alone."""
    expect = load(name, "expect.json")
    alone = [expect["engine"]]
    return [judged(name)[engine] for engine in (alone if name in LOOPS else expect.get("engines", alone))]


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


# the others' first phases are a dozen requests, or a client that shared the server's core
@pytest.mark.parametrize("name", [*sorted(set(NAMES) - set(MEASURED)), "tune2_baseline", "dp2_spiral", "spec_collapse"])
def test_the_clients_own_tpot_lies_within_the_bounds(name: str) -> None:
    phase = load(name, "truth.json")["phases"][0]
    for timeline in expected_engines(name):
        _, engine = [entry for entry in timeline if entry[0] <= phase["counters_to"] + 0.5][-1]
        p50, p99 = engine.readings["tpot_p50_seconds"], engine.readings["tpot_p99_seconds"]
        assert p50.lower <= phase["client"]["tpot_p50"] <= p50.upper  # type: ignore[operator]
        # the 99th of some hundred requests is one request: it may fall one bucket higher than the rank says
        assert p99.lower <= phase["client"]["tpot_p99"] <= NEXT_BUCKET[p99.upper]  # type: ignore[operator, index]


def scheduled(name: str) -> dict[int, list[dict[str, Any]]]:
    """What the instrumented scheduler of each process counted, cumulative, about once a second."""
    lines: dict[int, list[dict[str, Any]]] = {}
    with gzip.open(FOLDERS[name] / "sched.jsonl.gz", "rt") as file:
        for line in map(json.loads, file):
            lines.setdefault(line.get("pid", 0), []).append(line)
    return lines


def between(lines: list[dict[str, Any]], start: float, end: float) -> dict[str, float] | None:
    """The differences of one process's counts over a span, None where it did not cover that."""
    times = [line["t"] for line in lines]
    first, last = bisect_right(times, start) - 1, bisect_right(times, end) - 1
    if first < 0 or last >= len(lines) - 1:
        return None
    return {key: lines[last].get(key, 0) - lines[first].get(key, 0) for key in ("pre", "recomp", "sched")}


@pytest.mark.parametrize("name", LOOPS)
def test_the_recompute_tax_is_within_one_and_a_half_of_the_schedulers_count_and_its_bounds_hold_it(name: str) -> None:
    start = next(iter(read(FOLDERS[name] / "metrics.jsonl.gz"))).at
    compared = 0
    for at, engine in judged(name)[LOOPS[name]]:
        tax, seconds = engine.readings.get("recompute_tax_ratio"), engine.window_s or 0.0
        if tax is None or tax.value is None or seconds < 55:
            continue
        for lines in scheduled(name).values():
            did = between(lines, start + at - seconds, start + at)
            own = engine.readings["preemptions_per_second"].value * seconds  # type: ignore[operator]
            # the right one of two processes; enough preemptions to speak of a share; each counted where it was done
            if did is None or did["pre"] < 20 or abs(own - did["pre"]) > 0.2 * did["pre"]:
                continue
            truth = did["recomp"] / did["sched"]
            assert truth / 1.5 <= tax.value <= truth * 1.5, f"at {at:.0f} s: {tax.value:.3f} against {truth:.3f}"
            assert tax.lower <= truth <= tax.upper, f"at {at:.0f} s"  # type: ignore[operator]
            compared += 1
    assert compared > 10


def test_what_failed_stays_out_of_lengths_and_speed() -> None:
    """In errors_most_fail 93 % fail with one token and no time per token; the rest are as before."""
    (timeline,) = expected_engines("errors_most_fail")
    before = next(engine for at, engine in timeline if at > 38)
    during = next(engine for at, engine in timeline if at > 130)
    assert during.state is State.FAILING
    for name in ("output_tokens_mean", "truncated_ratio"):
        good, now = before.readings[name].value, during.readings[name].value
        assert now is None or good is None or now == pytest.approx(good, rel=0.2), name
