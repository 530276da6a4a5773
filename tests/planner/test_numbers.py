"""Every number of the week's report, counted again from the raw samples, without the review's own code."""

import math
from array import array
from bisect import bisect_right

import pytest

from tests.planner import week
from tests.planner.conftest import SETTINGS, Week
from vllm_vitals.core.distribution import fit
from vllm_vitals.core.sample import Histogram
from vllm_vitals.planner.review.report import ModelReview

START, STEP = week.END - week.SPAN, 300
WINDOWS = week.SPAN // STEP
STATE_STEP = 15
LOOKBACK = 300  # what Prometheus takes for current


def model(the_week: Week, name: str) -> ModelReview:
    return next(m for m in the_week.review.models if m.model_name == name)


def engines(the_week: Week, name: str) -> list[week.Engine]:
    return [engine for engine in the_week.engines if engine.model == name]


def at(samples: list[tuple[float, float]], time: float) -> float | None:
    """The newest sample not older than the look-back."""
    index = bisect_right(samples, (time, math.inf)) - 1
    return samples[index][1] if index >= 0 and time - samples[index][0] < LOOKBACK else None


def inside(samples: list[tuple[float, float]], window: int, start: float = START) -> list[float]:
    low, high = start + window * STEP, start + (window + 1) * STEP
    first, last = bisect_right(samples, (low, math.inf)), bisect_right(samples, (high, math.inf))
    return [value for _, value in samples[first:last]]


def gained(
    samples: list[tuple[float, float]], start: float = START, end: float = week.END, step: float = STEP
) -> list[float | None]:
    """Increase in each window of a counter, resets taken out; None where it was not there."""
    found: list[float | None] = []
    last = at(samples, start)
    for window in range(int((end - start) // step)):
        now = at(samples, start + (window + 1) * step)
        if now is None or last is None:
            found.append(None)
        else:
            found.append(now - last if now >= last else now)
        last = now if now is not None else last
    return found


def total(found: list[week.Engine], name: str) -> float:
    return sum(v for e in found for v in gained(e.series[name]) if v is not None)


def finished(engine: week.Engine) -> list[float | None]:
    parts = [gained(engine.series[f'responses_total{{finished_reason="{reason}"}}']) for reason in ("stop", "length")]
    return [None if a is None or b is None else a + b for a, b in zip(*parts, strict=True)]


def means(engine: week.Engine, name: str) -> list[float | None]:
    return [sum(v) / len(v) if (v := inside(engine.series[name], w)) else None for w in range(WINDOWS)]


def largest(engine: week.Engine, name: str) -> list[float | None]:
    return [max(v) if (v := inside(engine.series[name], w)) else None for w in range(WINDOWS)]


def rank(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def known(*series: list[float | None]) -> list[float]:
    return [v for each in series for v in each if v is not None]


def waiting(engine: week.Engine) -> list[float | None]:
    parts = [means(engine, f'requests_waiting{{reason="{reason}"}}') for reason in ("capacity", "deferred")]
    return [None if a is None or b is None else a + b for a, b in zip(*parts, strict=True)]


def in_flight(engine: week.Engine) -> list[float | None]:
    return [
        None if a is None or b is None else a + b
        for a, b in zip(means(engine, "requests_running"), waiting(engine), strict=True)
    ]


def wanted(engine: week.Engine) -> list[float | None]:
    """Demand: answered, refused, abandoned, and the growth of what is in flight."""
    answered, left, present = finished(engine), means(engine, "abandoned_requests_per_second"), in_flight(engine)
    refused = gained(engine.series["rejected_requests_total"])
    found: list[float | None] = []
    for window, count in enumerate(answered):
        if count is None:
            found.append(None)
            continue
        growth = 0.0
        if 0 < window < WINDOWS - 1 and None not in (present[window - 1], present[window + 1]):
            growth = (present[window + 1] - present[window - 1]) / 2
        found.append(max(0.0, (count + (refused[window] or 0.0) + growth) / STEP + (left[window] or 0.0)))
    return found


def together(found: list[week.Engine], of) -> list[float | None]:
    columns = [of(engine) for engine in found]
    return [sum(known(list(row))) if known(list(row)) else None for row in zip(*columns, strict=True)]


def buckets(
    found: list[week.Engine], name: str, start: float = START, end: float = week.END, windows: set[int] | None = None
) -> list[float]:
    """Cumulative counts by bucket over a period, or over some of its five-minute windows."""
    edges = [*(repr(b) for b in week.HISTOGRAMS[name]), "+Inf"]
    counts = []
    for edge in edges:
        parts = [gained(e.series[f'{name}_bucket{{le="{edge}"}}'], start, end) for e in found]
        counts.append(
            sum(v for part in parts for w, v in enumerate(part) if v is not None and (windows is None or w in windows))
        )
    return counts


def quantile(
    found: list[week.Engine], name: str, q: float, start: float = START, end: float = week.END,
    windows: set[int] | None = None,
) -> float | None:  # fmt: skip
    """What one engine for all answers says of these buckets and this sum."""
    parts = [gained(e.series[f"{name}_sum"], start, end) for e in found]
    seconds = sum(
        v for part in parts for w, v in enumerate(part) if v is not None and (windows is None or w in windows)
    )
    counts = array("d", buckets(found, name, start, end, windows))
    return fit(Histogram(week.HISTOGRAMS[name], counts, seconds)).quantile(q).value


def near(value: float | None, expected: float | None, by: float = 1e-9) -> bool:
    if value is None or expected is None:
        return value is expected
    return value == pytest.approx(expected, rel=by, abs=1e-12)


@pytest.fixture(params=["chat", "code"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_nothing_was_missing(the_week: Week) -> None:
    assert the_week.review.missing == ()
    assert [m.model_name for m in the_week.review.models] == ["chat", "code"]
    assert (the_week.review.start, the_week.review.end, the_week.review.window) == (START, week.END, STEP)


def test_traffic(the_week: Week, name: str) -> None:
    found, work = engines(the_week, name), model(the_week, name).traffic
    assert near(work.requests, sum(known(*(finished(e) for e in found))))
    for reason in ("stop", "length"):
        assert near(work.by_reason[reason], total(found, f'responses_total{{finished_reason="{reason}"}}'))
    assert near(work.generated_tokens, total(found, "generation_tokens_total"))
    assert near(work.prompt_tokens, total(found, "prompt_tokens_total"))
    assert near(work.computed_prompt_tokens, total(found, "prompt_tokens_computed_total"))
    assert near(
        work.prefix_hit_ratio, total(found, "prefix_cache_hits_total") / total(found, "prefix_cache_queries_total")
    )
    assert near(work.engine_hours, len(known(*(means(e, "requests_running") for e in found))) * STEP / 3600)


def test_a_counter_that_never_fell_is_counted_exactly(the_week: Week) -> None:
    """Totals of engines that did not restart are the raw counter's own change, whatever the windows are."""
    raw = 0.0
    for engine in engines(the_week, "chat"):
        samples = dict(engine.series["generation_tokens_total"])
        raw += samples[week.END] - samples[START]
    assert model(the_week, "chat").traffic.generated_tokens == raw


def test_demand_and_the_peak_hour(the_week: Week, name: str) -> None:
    found, work = engines(the_week, name), model(the_week, name).traffic
    rates = together(found, wanted)
    assert near(work.demand_p99, rank(known(rates), 0.99))
    assert near(work.demand_max, max(known(rates)))
    hours: dict[int, list[int]] = {}
    for window in range(WINDOWS):
        hours.setdefault(int(START + window * STEP) // 3600, []).append(window)
    asked = {hour: sum(known([rates[w] for w in windows])) * STEP for hour, windows in hours.items()}
    best = max(asked, key=asked.__getitem__)
    assert work.peak_hour_at == START + hours[best][0] * STEP
    assert near(work.peak_hour_requests, asked[best])
    present = together(found, in_flight)
    flying = known([present[w] for w in hours[best]])
    assert near(work.peak_hour_in_flight, sum(flying) / len(flying))


def test_headroom(the_week: Week, name: str) -> None:
    found, room = engines(the_week, name), model(the_week, name).headroom
    kv = known(*(largest(e, "kv_cache_usage_max_ratio") for e in found))
    assert (room.kv.p50, room.kv.p95, room.kv.max) == (rank(kv, 0.5), rank(kv, 0.95), max(kv))
    asked = known(*(largest(e, "kv_cache_demand_ratio") for e in found))
    assert (room.demand.p95, room.demand.max) == (rank(asked, 0.95), max(asked))
    running = known(*(largest(e, "requests_running") for e in found))
    assert (room.running.p95, room.running.max) == (rank(running, 0.95), max(running))
    queued = known(*(waiting(e) for e in found))
    assert near(room.waiting.p95, rank(queued, 0.95))
    assert near(room.waiting.max, max(queued))
    slots = {"chat": 32, "code": 8}[name]
    assert room.slots == slots
    assert near(room.slots_used.max, max(running) / slots)
    assert room.capacity_tokens == found[0].capacity
    assert near(room.full_windows, found[0].series["kv_cache_full_windows"][-1][1])
    held = requests = 0.0
    full = []
    for engine in found:
        triples = zip(
            means(engine, "kv_cache_usage_ratio"),
            means(engine, "requests_running"),
            largest(engine, "kv_cache_usage_max_ratio"),
            strict=True,
        )
        for usage, count, highest in triples:
            if usage is not None and count >= 1:
                held, requests = held + usage * engine.capacity, requests + count
            if highest is not None and highest >= 0.9:
                full.append(count)
    assert near(room.context, held / requests)
    assert near(room.running_when_full, sum(full) / len(full))


def states(engine: week.Engine) -> list[str | None]:
    """The state at each instant of the fine grid."""
    found: list[str | None] = []
    for step in range(week.SPAN // STATE_STEP):
        time = START + (step + 1) * STATE_STEP
        now = [s for s in week.STATES if at(engine.series[f'state{{state="{s}"}}'], time) == 1]
        found.append(now[0] if now else None)
    return found


def test_minutes_in_each_state(the_week: Week, name: str) -> None:
    expected: dict[str, float] = {}
    for engine in engines(the_week, name):
        for state in states(engine):
            key = state or "not known"
            expected[key] = expected.get(key, 0) + STATE_STEP / 60
    assert model(the_week, name).state_minutes == pytest.approx(expected)


def test_the_spiral_is_one_incident_with_its_evidence(the_week: Week) -> None:
    review = model(the_week, "chat")
    [incident] = review.incidents
    engine = engines(the_week, "chat")[0]
    spiral = [i for i, state in enumerate(states(engine)) if state == "death_spiral"]
    assert (incident.start, incident.end) == (START + spiral[0] * STATE_STEP, START + (spiral[-1] + 1) * STATE_STEP)
    assert abs(incident.start - week.SPIRAL) <= week.SCRAPE
    assert incident.worst.value == "death_spiral"
    assert str(incident.engine) == "chat-0:8000"
    windows = range(int((incident.start - START) // STEP), -(-int(incident.end - START) // STEP))
    evicted, tokens = gained(engine.series["preemptions_total"]), gained(engine.series["generation_tokens_total"])
    assert incident.preemptions == sum(evicted[w] for w in windows)
    assert incident.completions == sum(finished(engine)[w] for w in windows)
    assert near(incident.generation_rate, sum(tokens[w] / STEP for w in windows) / len(windows))
    before = range(windows.start - 2, windows.start)
    assert near(incident.generation_rate_before, sum(tokens[w] / STEP for w in before) / 2)
    assert incident.kv_max == max(largest(engine, "kv_cache_usage_max_ratio")[w] for w in windows)
    assert near(incident.waiting_max, max(waiting(engine)[w] for w in windows))


def test_a_restart_is_an_incident_and_its_reset_counts_nothing_twice(the_week: Week) -> None:
    [incident] = model(the_week, "code").incidents
    assert incident.worst.value == "down"
    assert incident.seconds == pytest.approx(week.SCRAPE, abs=STATE_STEP)


def test_preemption(the_week: Week, name: str) -> None:
    found, evicted = engines(the_week, name), model(the_week, name).preemption
    counts = known(*(gained(e.series["preemptions_total"]) for e in found))
    assert evicted.events == sum(counts)
    touched = sum(1 for count in counts if count > 0)
    assert near(evicted.minutes, touched * STEP / 60)
    assert near(evicted.share_of_time, touched / len(counts))
    assert near(evicted.per_completion, sum(counts) / sum(known(*(finished(e) for e in found))))
    for key, value in (("recompute_tax_ratio", evicted.tax), ("recompute_tax_lower_ratio", evicted.tax_lower),
                       ("recompute_tax_upper_ratio", evicted.tax_upper)):  # fmt: skip
        pairs = [(t, r) for e in found for t, r in zip(means(e, key), means(e, "requests_running"), strict=True)]
        worked = [t for t, r in pairs if t is not None and r > 0]
        assert near(value, sum(worked) / len(worked))


@pytest.mark.parametrize("histogram", ["ttft_seconds", "tpot_seconds"])
def test_latency(the_week: Week, name: str, histogram: str) -> None:
    found, tail = engines(the_week, name), model(the_week, name).tails[histogram]
    counts, bounds = buckets(found, histogram), week.HISTOGRAMS[histogram]
    assert near(tail.count, counts[-1])
    assert near(tail.mean, total(found, f"{histogram}_sum") / counts[-1], 1e-6)
    for q, reading in ((0.5, tail.p50), (0.95, tail.p95), (0.99, tail.p99)):
        assert near(reading.value, quantile(found, histogram, q), 1e-4)
        rank = math.ceil(q * counts[-1])
        index = next(i for i, count in enumerate(counts) if count >= rank)
        assert bounds[index - 1] <= reading.lower <= reading.value <= reading.upper <= bounds[index]
    assert tail.ratio.lower == max(1.0, tail.p99.lower / tail.p50.upper)


def test_the_gap_that_goes_away_without_preemption(the_week: Week) -> None:
    found, gap = engines(the_week, "code"), model(the_week, "code").gap
    evicted = gained(found[0].series["preemptions_total"])
    quiet = [not (count and count > 0) for count in evicted]
    calm = {w for w in range(WINDOWS) if quiet[w] and (w == 0 or quiet[w - 1])}
    spans = []
    for windows in (None, calm):
        low, high = (quantile(found, "tpot_seconds", q, windows=windows) for q in (0.5, 0.99))
        spans.append(high - low)
    assert near(gap.all.value, spans[0], 1e-4)
    assert near(gap.calm.value, spans[1], 1e-4)
    assert near(gap.share.value, 1 - spans[1] / spans[0], 1e-3)


def test_objectives(the_week: Week, name: str) -> None:
    for promise in model(the_week, name).promises:
        slo = promise.slo
        counts = buckets(engines(the_week, name), f"{slo.indicator}_seconds")
        bounds = week.HISTOGRAMS[f"{slo.indicator}_seconds"]
        low = max((counts[i] for i, b in enumerate(bounds) if b <= slo.seconds), default=0) / counts[-1]
        high = (
            low
            if slo.seconds in bounds
            else counts[next(i for i, b in enumerate(bounds) if b > slo.seconds)] / counts[-1]
        )
        assert near(promise.attained.lower, low)
        assert near(promise.attained.upper, high)
        assert near(promise.budget_left.lower, 1 - (1 - low) / (1 - slo.share))
        assert promise.met is (True if low >= slo.share else False if high < slo.share else None)
    said = {p.slo.name: p.assumption for p in model(the_week, name).promises}
    assert said == ({"first token": "met", "speed": "not stated"} if name == "chat" else {"code speed": "broken"})


def test_lengths(the_week: Week, name: str) -> None:
    found, shape = engines(the_week, name), model(the_week, name).shape
    for key, lengths in (("request_prompt_tokens", shape.inputs), ("request_output_tokens", shape.outputs)):
        counts, bounds = buckets(found, key), week.HISTOGRAMS[key]
        mean = total(found, f"{key}_sum") / counts[-1]
        assert near(lengths.mean, mean, 1e-6)
        for q, reading in ((0.5, lengths.p50), (0.9, lengths.p90), (0.99, lengths.p99)):
            assert near(reading.value, quantile(found, key, q), 1e-4)
        square = sum(v for e in found for v in gained(e.squares[key]) if v is not None) / counts[-1]
        true_cv = math.sqrt(square - mean**2) / mean
        assert lengths.cv.lower <= true_cv <= lengths.cv.upper
        assert lengths.cv.value is None or lengths.cv.lower <= lengths.cv.value <= lengths.cv.upper
        over_20k = 1 - counts[bounds.index(20000.0)] / counts[-1]
        low, high = lengths.share_over[32_000]
        assert low == pytest.approx(1 - counts[bounds.index(50000.0)] / counts[-1], abs=1e-12)
        assert near(high, over_20k, 1e-9)
    assert near(
        model(the_week, name).truncated_share,
        total(found, 'responses_total{finished_reason="length"}') / model(the_week, name).traffic.requests,
    )


def test_max_tokens_by_the_rule(the_week: Week, name: str) -> None:
    outputs, advice = model(the_week, name).shape.outputs, model(the_week, name).shape.max_tokens
    if model(the_week, name).truncated_share >= 0.05:
        assert (advice.class_, advice.low, advice.high) == ("unknown", None, None)
        assert "were truncated at a cap" in advice.caution
        return
    cv = outputs.cv.value
    base = outputs.mean if cv <= 0.3 else outputs.p90.value
    assert advice.class_ == ("steady" if cv <= 0.3 else "wide" if cv > 1 else "mixed")
    assert (advice.low, advice.high) == (round(1.5 * base), round(2 * base))
    assert f"{base:.0f}" in advice.arithmetic


def banded(found: list[week.Engine]) -> dict[int, list[tuple[week.Engine, int]]]:
    """Windows by band of concurrency."""
    edges = (0.5, 1.5, 2.5, 3.5, 5.5, 7.5, 11.5, 15.5, 23.5, 31.5, 47.5)
    groups: dict[int, list[tuple[week.Engine, int]]] = {}
    for engine in found:
        for window, running in enumerate(means(engine, "requests_running")):
            if running is not None and running >= 0.5:
                groups.setdefault(bisect_right(edges, running) - 1, []).append((engine, window))
    return groups


def test_bands_of_concurrency_and_the_knee(the_week: Week, name: str) -> None:
    found, knee = engines(the_week, name), model(the_week, name).knee
    groups = banded(found)
    generated = {e.target: gained(e.series["generation_tokens_total"]) for e in found}
    computed = {e.target: gained(e.series["prompt_tokens_computed_total"]) for e in found}
    running = {e.target: means(e, "requests_running") for e in found}
    expected = []
    for index in sorted(groups):
        pairs = [(e, w) for e, w in groups[index] if generated[e.target][w] is not None]
        useful = sum(generated[e.target][w] + computed[e.target][w] for e, w in pairs) / len(pairs) / STEP
        expected.append((len(pairs), sum(running[e.target][w] for e, w in pairs) / len(pairs), useful))
    assert [band.windows for band in knee.bands] == [count for count, _, _ in expected]
    for band, (_, mean, useful) in zip(knee.bands, expected, strict=True):
        assert near(band.running, mean)
        assert near(band.useful, useful)
    judged = [row for row in expected if row[0] >= 5]
    best = max(useful for _, _, useful in judged)
    first = next(row for row in judged if row[2] >= 0.9 * best)
    assert knee.at == (pytest.approx(first[1]) if first is not judged[-1] else None)


def test_latency_of_a_band_is_that_of_its_windows(the_week: Week) -> None:
    found, knee = engines(the_week, "chat"), model(the_week, "chat").knee
    groups = banded(found)
    index = sorted(groups)[len(groups) // 2]
    counts, seconds = [0.0] * (len(week.LATENCY) + 1), 0.0
    for engine in found:
        windows = {w for e, w in groups[index] if e is engine}
        counts = [a + b for a, b in zip(counts, buckets([engine], "tpot_seconds", windows=windows), strict=True)]
        seconds += sum(
            v for w, v in enumerate(gained(engine.series["tpot_seconds_sum"])) if v is not None and w in windows
        )
    band = knee.bands[sorted(groups).index(index)]
    assert near(band.tpot.count, counts[-1])
    told = fit(Histogram(week.LATENCY, array("d", counts), seconds)).quantile(0.99)
    assert near(band.tpot.p99.value, told.value, 1e-4)


def test_the_curve_is_a_weighted_line_and_says_the_next_step(the_week: Week, name: str) -> None:
    knee = model(the_week, name).knee
    judged = [band for band in knee.bands if band.windows >= 5]
    weight = sum(b.windows for b in judged)
    x0 = sum(b.running * b.windows for b in judged) / weight
    y0 = sum(b.running / b.useful * b.windows for b in judged) / weight
    slope = sum(b.windows * (b.running - x0) * (b.running / b.useful - y0) for b in judged)
    slope /= sum(b.windows * (b.running - x0) ** 2 for b in judged)
    assert near(knee.curve.b, slope, 1e-6)
    assert near(knee.curve.a, y0 - slope * x0, 1e-6)
    step = knee.next_step
    assert near(step.end, 1.25 * step.start)
    speed = (knee.curve.a + knee.curve.b * step.end) / (knee.curve.a + knee.curve.b * step.start)
    assert near(step.token_speed, 1 / speed - 1)
    assert near(step.throughput, step.end / speed / step.start - 1)


def test_money(the_week: Week, name: str) -> None:
    found, review = engines(the_week, name), model(the_week, name)
    bill, work = review.money, review.traffic
    gpus = 2 if name == "code" else 1
    assert near(bill.gpu_hours, work.engine_hours * gpus)
    assert near(bill.cost, bill.gpu_hours * 2.5)
    assert near(bill.cost_per_million_generated, bill.cost / total(found, "generation_tokens_total") * 1e6)
    computed = total(found, "generation_tokens_total") + total(found, "prompt_tokens_computed_total")
    assert near(bill.cost_per_million_computed, bill.cost / computed * 1e6)
    if review.knee.band is not None:
        assert near(bill.knee_cost_per_million_generated, 2.5 * gpus / 3600 / review.knee.band.generated * 1e6)
    lost = [sum(known(*(means(e, key) for e in found))) * STEP / 3600 * gpus
            for key in ("recompute_tax_lower_ratio", "recompute_tax_ratio", "recompute_tax_upper_ratio")]  # fmt: skip
    assert bill.lost_gpu_hours == pytest.approx(tuple(lost))


def test_capacity_and_engines_needed(the_week: Week) -> None:
    found, review = engines(the_week, "chat"), model(the_week, "chat")
    bill, work = review.money, review.traffic
    good = []
    for band in (b for b in review.knee.bands if b.windows >= 5):
        first, speed = band.ttft.histogram, band.tpot.histogram
        share_first = first.counts[week.LATENCY.index(2.5)] / first.count
        share_speed = speed.counts[week.LATENCY.index(0.05)] / speed.count
        if share_first >= 0.99 and share_speed >= 0.95:
            good.append(band)
    best = max(good, key=lambda b: b.useful)
    a_request = (work.generated_tokens + work.computed_prompt_tokens) / work.requests
    carries = best.useful / a_request
    assert near(bill.capacity.requests_per_second, carries)
    assert bill.engines == 2
    met = all(promise.met for promise in review.promises)
    for_peak = math.ceil(work.demand_p99 / carries)
    assert bill.engines_for_peak == (min(for_peak, 2) if met else for_peak)  # two that met the objectives suffice
    assert bill.engines_needed == bill.engines_for_peak + 1
    assert bill.engines_for_growth == math.ceil(1.3 * work.demand_p99 / carries)
    assert bill.engines_for_launch == math.ceil(2 * work.demand_p99 / carries)
    assert near(bill.headroom_requests_per_hour, 2 * carries * 3600 - work.peak_hour_requests)
    assert near(bill.headroom_users, 2 * best.running - work.peak_hour_in_flight)
    rates = together(found, wanted)
    spare = 0.0
    for hour in range(int(START) // 3600, int(week.END) // 3600):
        windows = [w for w in range(WINDOWS) if int(START + w * STEP) // 3600 == hour]
        need = math.ceil(max(known([rates[w] for w in windows])) / carries) + 1
        spare += max(0, 2 - need)
    assert near(bill.spare_engine_hours, spare)


def test_slots_advice_follows_the_numbers(the_week: Week) -> None:
    advice = model(the_week, "code").slots
    room, evicted = model(the_week, "code").headroom, model(the_week, "code").preemption
    if evicted.share_of_time >= 0.05:
        reached = room.running_when_full >= 0.95 * 8
        assert advice.value == (6 if reached else math.floor(0.9 * room.running_when_full))
    else:
        assert advice.direction in ("keep", "up")


def test_against_the_week_before(the_week: Week, name: str) -> None:
    found = engines(the_week, name)
    old_start = START - week.SPAN
    rows = {c.what: c for c in model(the_week, name).versus_before}
    for start, end, pick in ((old_start, START, "before"), (START, week.END, "after")):
        tokens = sum(v for e in found for v in gained(e.series["generation_tokens_total"], start, end) if v is not None)
        assert near(getattr(rows["generated tokens"], pick), tokens)
        told = quantile(found, "ttft_seconds", 0.99, start, end)
        assert near(getattr(rows["time to first token, p99"], pick), told, 1e-4)
        kv = [
            max(v)
            for e in found
            for w in range(WINDOWS)
            if (v := inside(e.series["kv_cache_usage_max_ratio"], w, start))
        ]
        assert near(getattr(rows["KV usage, p95"], pick), rank(kv, 0.95))


def test_daily_peaks_and_the_trend(the_week: Week) -> None:
    trends = {t.what.split(",")[0]: t for t in model(the_week, "chat").trends}
    running = trends["Running on the busiest engine"]
    assert len(running.days) == week.TREND_DAYS
    for end, peak in running.days[-4:]:
        values = [
            v for e in engines(the_week, "chat") for t, v in e.series["requests_running"] if end - week.DAY <= t <= end
        ]
        assert peak == max(values)
    assert running.verdict == "grows"
    assert running.limit == 32
    assert 0 < running.weekly_low <= running.weekly <= running.weekly_high


def test_the_forecast_grows_as_the_demand_does_and_counts_what_was_refused_and_queued(the_week: Week) -> None:
    """1.2 % of the last day's demand a day; what came was answered, refused, left or is still held."""
    found = model(the_week, "chat").forecast
    assert found.trend.verdict == "grows"
    assert found.trend.weekly == pytest.approx(0.1, abs=0.03)  # of the mean day that is
    last = week.END - 3600
    rates = [
        sum(known(finished(e)[WINDOWS - 12 :]))
        + sum(known(gained(e.series["rejected_requests_total"])[WINDOWS - 12 :]))
        for e in engines(the_week, "chat")
    ]
    held = [
        sum(at(e.series[name], time) or 0.0 for name in ("requests_running", 'requests_waiting{reason="capacity"}'))
        for time in (week.END, last)
        for e in engines(the_week, "chat")
    ]
    came = (sum(rates) + held[0] + held[1] - held[2] - held[3]) / 3600
    assert the_week.past["chat"]["demand"][-1] == (week.END, pytest.approx(came, rel=0.06))  # rate() extrapolates
    assert len(the_week.past["chat"]["demand"]) == 24 * week.TREND_DAYS


def test_settings_in_force_and_the_change_in_the_week(the_week: Week) -> None:
    review = model(the_week, "chat")
    assert review.settings["chat-0:8000"]["max_num_seqs"] == "32"
    assert review.settings["chat-0:8000"]["version"] == "0.32.0"
    assert {(c.target, c.name, c.value) for c in review.changes} == {
        (t, "max_num_seqs", "32") for t in ("chat-0:8000", "chat-1:8000")
    }
    assert all(0 <= c.at - week.CHANGE <= the_week.telemetry.slow.step for c in review.changes)


def test_engines_one_by_one(the_week: Week) -> None:
    for row in model(the_week, "chat").engines:
        engine = next(e for e in the_week.engines if e.target == row.engine.target)
        running = known(means(engine, "requests_running"))
        assert near(row.running_mean, sum(running) / len(running))
        assert row.kv_max == max(known(largest(engine, "kv_cache_usage_max_ratio")))
        assert near(row.requests, sum(known(finished(engine))))
        assert row.preemptions == total([engine], "preemptions_total")
        seconds = len(running) * STEP
        assert near(row.generated_per_second, total([engine], "generation_tokens_total") / seconds)


def test_verdicts_say_their_numbers(the_week: Week) -> None:
    chat, code = model(the_week, "chat"), model(the_week, "code")
    assert (chat.verdict, code.verdict) == ("act", "act")
    texts = [f.text for f in chat.findings]
    assert any("25.0 minutes death spiral in 1 incident" in text for text in texts)
    assert any("The peak needs 2 engines; 2 were there: none is spare." in text for text in texts)
    assert any("max_num_seqs" in f.text and f.topic == "settings" for f in chat.findings)
    assert any(f.topic == "objectives" and "left the lengths that it assumes" in f.text for f in code.findings)
    assert SETTINGS.slos_of("code")[0].name in "".join(f.text for f in code.findings)
