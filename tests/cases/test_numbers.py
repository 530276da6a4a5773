"""Every vital sign of real recordings against a second, plain computation from the raw text."""

import json
from math import inf

import pytest

from tests.cases import naive
from tests.cases.edit import DATA, judge, recording
from tests.cases.naive import Seen, grown, histogram
from vllm_vitals.core.snapshot import EngineSnapshot, Reading

NAMES = sorted(path.name for path in (DATA / "recordings").iterdir())
PATHS = [f"recordings/{name}" for name in NAMES] + sorted(f"versions/{p.name}" for p in (DATA / "versions").iterdir())
MOMENTS = (0.2, 0.45, 0.6, 0.8, 0.99)  # of a recording's scrapes


def life(history: list[Seen]) -> list[Seen]:
    """The scrapes since the last restart that show an engine (V0 does from its first request on)."""
    history, start = [one for one in history if "generation_tokens_total" in one.plain], 0
    for index in range(1, len(history)):
        if history[index].plain["generation_tokens_total"] < history[index - 1].plain["generation_tokens_total"]:
            start = index
    return history[start:]


def back(history: list[Seen], seconds: float) -> list[Seen]:
    """From the newest scrape at least so old (else the first) to the last."""
    old = [index for index, one in enumerate(history) if one.at <= history[-1].at - seconds]
    return history[max(old, default=0) :]


Moment = tuple[EngineSnapshot, list[Seen]]


@pytest.fixture(scope="module", params=PATHS)
def moments(request: pytest.FixtureRequest) -> list[Moment]:
    """An engine as judged at some moments, and the scrapes of its life until then."""
    scrapes = recording(request.param)
    told = judge(scrapes)
    found = []
    for engine in sorted({e.key.engine for snapshot in told for e in snapshot.engines if e.key.engine}):
        history = [naive.seen(at, text, engine) for at, text in scrapes]
        for share in MOMENTS:
            index = int(share * (len(scrapes) - 1))
            own = [e for e in told[index].engines if e.key.engine == engine]
            lived = life(history[: index + 1])
            if own and own[0].readings:
                found.append((own[0], lived))
    assert len(found) >= 3
    return found


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 9)


def near(reading: Reading, expected: float) -> bool:
    return reading.value is not None and reading.value == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_rates_over_the_fast_window(moments: list[Moment]) -> None:
    for engine, lived in moments:
        fast = back(lived, 60.0)
        seconds = fast[-1].at - fast[0].at
        assert engine.window_s == pytest.approx(seconds)
        assert near(engine.readings["preemptions_per_second"], grown(fast, "num_preemptions_total") / seconds)
        assert near(engine.readings["useful_tokens_per_second"], naive.useful(fast))
        gaps = histogram(fast, "inter_token_latency_seconds")
        assert near(engine.readings["stall_gaps_per_second"], (gaps[inf] - gaps[1.0]) / seconds)


def test_kv_usage_demand_and_full_windows(moments: list[Moment]) -> None:
    for engine, lived in moments:
        recent = naive.gauges(lived, 60.0)
        largest = max(one.plain.get("kv_cache_usage_perc", 0.0) for one in recent)
        assert near(engine.readings["kv_cache_usage_max_ratio"], largest)
        usage, running = naive.mean(recent, "kv_cache_usage_perc"), naive.mean(recent, "num_requests_running")
        waiting, demand = naive.mean(recent, "num_requests_waiting"), engine.readings["kv_cache_demand_ratio"]
        if running >= 1:
            assert near(demand, usage * (running + waiting) / running)
        else:
            assert demand.value is None


def test_the_tax_and_its_bounds(moments: list[Moment]) -> None:
    for engine, lived in moments:
        fast, reading = back(lived, 60.0), engine.readings["recompute_tax_ratio"]
        assert reading.upper == pytest.approx(naive.tax(fast, 1.0))
        if (
            engine.sample.caches_prefixes
        ):  # how much comes back from the cache is held against a scheduler's count in test_tax
            assert reading.lower <= reading.value <= reading.upper  # type: ignore[operator]
            continue
        assert near(reading, naive.tax(fast, 0.4))
        assert reading.lower == pytest.approx(naive.tax(fast, 0.16))


def test_r_and_the_repeat_share_over_the_shortest_window_with_twenty_finishes(moments: list[Moment]) -> None:
    for engine, lived in moments:
        reading, repeated = (
            engine.readings[name] for name in ("preemptions_per_completion", "repeat_preemption_ratio")
        )
        enough = [window for window in map(lived.__getitem__, (slice(i, None) for i in range(len(lived) - 1)))
                  if window[-1].finishes - window[0].finishes >= 20]  # fmt: skip
        if not enough:
            assert reading.value is None
            continue
        # beyond 90 s one sample in 15 s is kept: the shortest window may come out so much longer
        long = [window for window in enough if window[-1].at - window[0].at >= 60.0] or [lived]
        shortest = long[-1][-1].at - long[-1][0].at
        allowed = [
            window for window in long if window[-1].at - window[0].at <= shortest + (15.0 if shortest > 88 else 0)
        ]
        pairs = set()
        for window in allowed:
            finishes = window[-1].finishes - window[0].finishes
            counts = histogram(window, "request_num_preemptions")
            twice = counts[inf] - counts[1.0] if counts else None
            pairs.add((rounded(grown(window, "num_preemptions_total") / finishes), rounded(twice and twice / finishes)))
        assert reading.value is not None
        assert (rounded(reading.value), rounded(repeated.value)) in pairs


def test_shares_and_tails_over_the_slow_window(moments: list[Moment]) -> None:
    for engine, lived in moments:
        slow = back(lived, 600.0)
        finishes = slow[-1].finishes - slow[0].finishes
        truncated = engine.readings["truncated_ratio"]
        if not finishes:
            assert truncated.value is None
            continue
        assert near(truncated, (slow[-1].finished["length"] - slow[0].finished.get("length", 0.0)) / finishes)
        for name, family, q in (
            ("tpot_p50_seconds", "request_time_per_output_token_seconds", 0.5),
            ("tpot_p99_seconds", "request_time_per_output_token_seconds", 0.99),
            ("tpot_p99_seconds.inter_token", "inter_token_latency_seconds", 0.99),
            ("ttft_p99_seconds", "time_to_first_token_seconds", 0.99),
        ):
            reading, observed = engine.readings[name], histogram(slow, family)
            if not observed:
                assert reading.status == "absent", name  # this release has no such histogram
                continue
            lower, upper = naive.bucket(observed, q)
            assert (reading.lower, reading.upper) == (lower, upper), name
            assert (reading.value is None) == (lower == 0.0 or upper == inf), name
            assert reading.value is None or lower <= reading.value <= upper, name
        for name, family in (("prompt", "request_prompt_tokens"), ("output", "request_generation_tokens")):
            expected = grown(slow, f"{family}_sum") / grown(slow, f"{family}_count")
            assert near(engine.readings[f"{name}_tokens_mean"], expected)


def test_the_ratio_of_tails_is_that_of_the_buckets(moments: list[Moment]) -> None:
    for engine, lived in moments:
        slow = back(lived, 600.0)
        observed = histogram(slow, "request_time_per_output_token_seconds")
        if not observed or not observed[inf]:
            assert engine.readings["tpot_p99_p50_ratio"].value is None
            continue
        (low, high), (low99, high99) = naive.bucket(observed, 0.5), naive.bucket(observed, 0.99)
        reading = engine.readings["tpot_p99_p50_ratio"]
        assert reading.lower == pytest.approx(max(1.0, low99 / high))
        assert reading.upper == pytest.approx(high99 / low if low else inf)
        if low == low99:
            assert reading.value is None


def test_abandoned_in_flight_and_cache_hits(moments: list[Moment]) -> None:
    for engine, lived in moments:
        fast = back(lived, 60.0)
        seconds = fast[-1].at - fast[0].at
        first, last = fast[0].plain, fast[-1].plain
        if "num_requests_running" not in first:
            assert engine.readings["abandoned_requests_per_second"].value is None
            continue
        waits = max(0.0, last["num_requests_waiting"] - first["num_requests_waiting"])
        left = (
            grown(fast, "time_to_first_token_seconds_count")
            - (fast[-1].finishes - fast[0].finishes)
            - (last["num_requests_running"] - first["num_requests_running"])
            - min(grown(fast, "num_preemptions_total"), waits)
        )
        assert near(engine.readings["abandoned_requests_per_second"], max(0.0, left) / seconds)
        present = last["num_requests_running"] + last["num_requests_waiting"]
        inflight = engine.readings["inflight_output_tokens_estimate"]
        finish = max((i for i in range(1, len(lived)) if lived[i].finishes > lived[i - 1].finishes), default=0)
        if present:
            made = last["generation_tokens_total"] - lived[finish].plain["generation_tokens_total"]
            assert near(inflight, made / present)
        else:
            assert inflight.value is None
        hits = engine.readings["prefix_cache_hit_ratio"]
        looked = "prefix_cache_queries_total" in last and grown(fast, "prefix_cache_queries_total")
        if looked:
            assert near(hits, grown(fast, "prefix_cache_hits_total") / looked)
        else:
            assert hits.value is None


@pytest.mark.parametrize("name", NAMES)
def test_what_the_client_measured_in_the_first_phase_lies_within_the_bounds(name: str) -> None:
    """The client's clock adds its own overhead, and p99 of few requests may fall one bucket higher."""
    truth = json.loads((DATA / "recordings" / name / "truth.json").read_text())
    phase, scrapes = truth["phases"][0], recording(f"recordings/{name}")
    begin, end = (truth["first_scrape"] + phase[edge] for edge in ("counters_from", "counters_to"))
    told = judge([one for one in scrapes if begin - 0.01 <= one[0] <= end + 0.01])[-1].engines
    for q, steps in (("p50", 0), ("p99", 1)):
        measured = phase["client"][f"tpot_{q}"]
        readings = [engine.readings[f"tpot_{q}_seconds"] for engine in told]
        lower = min(reading.lower for reading in readings if reading.lower is not None)
        upper = max(reading.upper for reading in readings if reading.upper is not None)
        bounds = sorted(naive.seen(*scrapes[-1], "0").buckets["request_time_per_output_token_seconds"])
        highest = bounds[min(bounds.index(upper) + steps, len(bounds) - 1)]
        assert lower <= measured <= highest, (q, lower, measured, upper)
