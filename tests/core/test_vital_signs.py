"""Each vital sign on a span whose numbers are the test's: its value, its limits from both sides, and what it needs."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from tests.core.sequences import empty, observe
from vllm_vitals.core import outcomes, recompute_tax, vital_signs
from vllm_vitals.core.inferred_role import infer_role
from vllm_vitals.core.outcomes import Completions, Finishes
from vllm_vitals.core.recompute_tax import Context, LostShare
from vllm_vitals.core.sample import EngineSample, Histogram
from vllm_vitals.core.snapshot import Reading, Role
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.vital_signs import Gauges
from vllm_vitals.core.window import Span, Window

LIMITS = Thresholds()
ZERO = EngineSample(
    running=2.0, waiting=0.0, kv_usage=0.5, generation_tokens=0.0, prompt_tokens=0.0, preemptions=0.0,
    responses={"stop": 0.0}, prefix_cache_queries=0.0, prefix_cache_hits=0.0,
)  # fmt: skip
Seen = dict[str, list[tuple[float, float]]]  # (value, times) by family


def histograms(seen: Seen) -> dict[str, Histogram]:
    built = {}
    for name, rows in seen.items():
        one = empty(name)
        for value, times in rows:
            one = observe(one, value, times)
        built[name] = one
    return built


def span(seen: Seen | None = None, seconds: float = 60.0, first: EngineSample = ZERO, **last: Any) -> Span:
    start = replace(first, histograms={name: empty(name) for name in seen or {}})
    return Span(0.0, seconds, start, replace(start, histograms=histograms(seen or {}), **last))


# counted beyond chance


@pytest.mark.parametrize(
    ("events", "completions", "level", "at_least", "beyond"),
    [
        (33, 50, 0.5, 10, True),  # 25 + 1.28 * sqrt(37.5) = 32.84
        (32.8, 50, 0.5, 10, False),
        (73, 60, 1.0, 10, True),  # 60 + 1.28 * sqrt(90) = 72.14
        (72, 60, 1.0, 10, False),
        (10, 0, 0.5, 10, True),
        (9, 0, 0.5, 10, False),
    ],
)
def test_a_count_exceeds_a_level_beyond_chance(
    events: float, completions: float, level: float, at_least: float, beyond: bool
) -> None:
    assert outcomes.exceeds(events, completions, level, at_least) is beyond


def test_ratios_are_over_completions_and_absent_without_their_counter() -> None:
    one = Completions(span(), 40.0, 10.0, 4.0)
    assert (one.ratio, one.repeat_ratio) == (0.25, 0.1)
    none = Completions(span(), 40.0, None, None)
    assert (none.ratio, none.repeat_ratio) == (None, None)


def test_repeats_are_those_with_two_preemptions_or_more() -> None:
    window = Window(90.0, 600.0)
    first = replace(ZERO, histograms={"request_preemptions": empty("request_preemptions")})
    seen = histograms({"request_preemptions": [(0.0, 10.0), (1.0, 6.0), (2.0, 3.0), (9.0, 1.0)]})
    for at, sample in ((0.0, first), (60.0, replace(first, responses={"stop": 20.0}, histograms=seen))):
        window.push(at, sample)
    found = outcomes.completions(window, LIMITS)
    assert found is not None
    assert (found.completions, found.repeated) == (20.0, 4.0)


def ended(window_s: float = 60.0, **counts: float) -> Finishes | None:
    window = Window(90.0, 600.0)
    last = replace(ZERO, responses={"stop": 0.0, **counts})
    for at, sample in ((0.0, ZERO), (window_s, last)):
        window.push(at, sample)
    slow = window.span(600.0)
    assert slow is not None
    return outcomes.finishes(window, slow, LIMITS)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({"stop": 9.0, "error": 1.0}, Finishes(60.0, 9.0, 1.0, 0.0)),
        ({"stop": 8.0, "error": 1.0}, Finishes(60.0, 8.0, 1.0, 0.0)),
        ({"stop": 9.0, "abort": 1.0}, Finishes(60.0, 9.0, 0.0, 1.0)),
        ({"stop": 4.0, "error": 3.0, "abort": 3.0}, Finishes(60.0, 4.0, 3.0, 3.0)),
        ({"stop": 99.0}, None),
        ({"stop": 9.0, "repetition": 1.0}, Finishes(60.0, 10.0, 0.0, 0.0, 1.0)),
    ],
)
def test_ends_are_told_apart_where_any_was_not_whole(counts: dict[str, float], found: Finishes | None) -> None:
    assert ended(**counts) == found


def test_ends_are_over_the_shortest_span_that_holds_ten_of_them() -> None:
    window = Window(90.0, 600.0)
    counts = {0.0: (0, 0), 60.0: (50, 0), 120.0: (54, 5), 180.0: (55, 10)}
    for at, (stop, error) in counts.items():
        window.push(at, replace(ZERO, responses={"stop": float(stop), "error": float(error)}))
    slow = window.span(600.0)
    assert slow is not None
    assert outcomes.finishes(window, slow, LIMITS) == Finishes(120.0, 5.0, 10.0, 0.0)


def test_a_small_share_of_errors_is_over_the_shortest_span_that_holds_200_finishes() -> None:
    window = Window(90.0, 600.0)
    # 38 finishes and 2 errors a minute: ten in the fast window, 200 in five minutes
    for minute in range(11):
        counts = {"stop": 38.0 * minute, "error": 2.0 * minute}
        window.push(60.0 * minute, replace(ZERO, responses=counts))
    slow = window.span(600.0)
    assert slow is not None
    assert outcomes.finishes(window, slow, LIMITS) == Finishes(60.0, 38.0, 2.0, 0.0)
    assert outcomes.some_errors(window, slow, LIMITS) == Finishes(300.0, 190.0, 10.0, 0.0)


@pytest.mark.parametrize(("errors", "found"), [(9.0, Finishes(600.0, 100.0, 9.0, 0.0)), (0.0, None)])
def test_where_too_few_finish_the_errors_are_those_of_the_slow_window(errors: float, found: Finishes | None) -> None:
    window = Window(90.0, 600.0)
    window.push(0.0, ZERO)
    window.push(540.0, replace(ZERO, responses={"stop": 90.0, "error": errors}))
    window.push(600.0, replace(ZERO, responses={"stop": 100.0, "error": errors}))
    slow = window.span(600.0)
    assert slow is not None
    assert outcomes.some_errors(window, slow, LIMITS) == found


def test_shares_of_ends_are_of_all_and_none_of_none() -> None:
    one = Finishes(60.0, 5.0, 3.0, 2.0)
    assert (one.all, one.error_share, one.abort_share, one.repetition) == (10.0, 0.3, 0.2, 0.0)
    none = Finishes(60.0, 0.0, 0.0, 0.0)
    assert (none.error_share, none.abort_share) == (0.0, 0.0)


# rates and means


def test_means_are_over_what_is_known() -> None:
    known, unknown = replace(ZERO, running=4.0, waiting=3.0, kv_usage=0.2), EngineSample()
    means = vital_signs.gauges([known, unknown, replace(known, running=8.0)])
    assert means == Gauges(6.0, 3.0, 0.2)
    assert means.work == 9.0
    assert vital_signs.gauges([unknown]).work is None
    assert Gauges(1.0, None, None).work is None
    assert Gauges(None, 1.0, None).work is None


@pytest.mark.parametrize(
    ("last", "rate"),
    [
        ({"generation_tokens": 60.0, "prompt_tokens": 120.0}, 3.0),
        ({"generation_tokens": 60.0, "prompt_tokens": 120.0, "prefix_cache_hits": 60.0}, 2.0),
        ({"generation_tokens": 60.0, "prompt_tokens": 120.0, "prefix_cache_hits": 600.0}, 1.0),
        ({"generation_tokens": 60.0, "prompt_tokens": 120.0, "prefix_cache_hits": None}, 3.0),
        ({"generation_tokens": None, "prompt_tokens": 120.0}, None),
        ({"generation_tokens": 60.0, "prompt_tokens": None}, None),
    ],
)
def test_useful_tokens_are_generated_and_computed_ones(last: dict[str, Any], rate: float | None) -> None:
    assert vital_signs.useful_rate(span(**last)) == rate


def test_computed_prompts_are_counted_exactly_where_vllm_does() -> None:
    first = replace(ZERO, prompt_tokens_computed=0.0)
    last = {"prompt_tokens": 120.0, "prompt_tokens_computed": 30.0, "prefix_cache_hits": 60.0}
    assert vital_signs.computed_prompt_tokens(span(first=first, **last)) == 30.0
    assert vital_signs.useful_rate(span(seconds=0.0, generation_tokens=1.0)) is None


# what is recomputed

LENGTHS: Seen = {"request_prompt_tokens": [(100.0, 4.0)], "request_output_tokens": [(60.0, 4.0)]}
LONG: Seen = {"request_prompt_tokens": [(3000.0, 4.0)], "request_output_tokens": [(600.0, 4.0)]}


@pytest.mark.parametrize(
    ("means", "capacity", "seen", "trusted", "context"),
    [
        (Gauges(4.0, 0.0, 0.5), 1000.0, LENGTHS, True, Context(125.0, 125.0, 125.0)),
        (Gauges(0.5, 0.0, 0.5), 1000.0, LENGTHS, True, Context(500.0, 500.0, 500.0)),  # over one request at least
        (Gauges(4.0, 0.0, 0.5), None, LENGTHS, True, Context(130.0, 130.0, 130.0)),
        (Gauges(0.0, 0.0, 0.5), 1000.0, LENGTHS, True, Context(130.0, 130.0, 130.0)),
        (Gauges(4.0, 0.0, None), 1000.0, LENGTHS, True, Context(130.0, 130.0, 130.0)),
        (Gauges(4.0, 0.0, 0.5), 1000.0, LENGTHS, False, Context(130.0, 125.0, 130.0)),
        (Gauges(4.0, 0.0, 0.5), 1000.0, {}, False, Context(125.0, 125.0, 125.0)),
        (Gauges(4.0, 0.0, 0.5), None, {}, True, None),
    ],
)
def test_a_request_holds_usage_times_capacity_or_prompt_and_half_its_output(
    means: Gauges, capacity: float | None, seen: Seen, trusted: bool, context: Context | None
) -> None:
    assert recompute_tax.resident_context(means, capacity, span(seen), trusted=trusted) == context


CACHES = replace(ZERO, prefix_caching=True)


def lost(sample: EngineSample = CACHES, ratio: float | None = 2.0, context: float | None = 130.0,
         block: float | None = 16.0, seen: Seen | None = LENGTHS) -> LostShare:  # fmt: skip
    finished = None
    if seen is not None:
        finished = Completions(span(seen), 10.0, None if ratio is None else 10.0 * ratio, None)
    return recompute_tax.lost_share(sample, finished, context, block, LIMITS)


def test_a_victim_without_prefix_caching_loses_four_tenths() -> None:
    assert lost(replace(ZERO, prefix_caching=False)) == LostShare(0.4, pytest.approx(0.16))
    assert lost(ZERO) == LostShare(0.2, 0.05, sure=False)
    assert lost(replace(CACHES, kv_restored=True)) == LostShare(0.0, 0.0, 0.0)


@pytest.mark.parametrize("unknown", [{"seen": None}, {"ratio": None}, {"ratio": 0.0}, {"context": None},
                                     {"seen": {"request_prompt_tokens": [(100.0, 4.0)]}}])  # fmt: skip
def test_with_prefix_caching_a_tenth_is_lost_where_lengths_are_not_known(unknown: dict[str, Any]) -> None:
    assert lost(**unknown) == LostShare(0.1, pytest.approx(0.04))


@pytest.mark.parametrize(
    ("given", "share"),
    [
        # 0.9 x 60 / 100 / 2 = 0.27 of them decode and lose 60 tokens, the others half an output: of 130
        ({}, (0.73 * 30 + 0.27 * 60) / 130),
        ({"block": 64.0}, (0.73 * 64 + 0.27 * 60) / 130),  # a block where that is more
        ({"block": None}, (0.73 * 32 + 0.27 * 60) / 130),
        ({"ratio": 0.1}, 60 / 130),  # more than all cannot decode
        ({"context": 100.0}, (0.73 * 30 + 0.27 * 50) / 100),  # half the context at most
        ({"seen": LONG, "context": 4000.0}, (0.91 * 120 + 0.09 * 600) / 4000),  # long answers leave no more than 120
        ({"context": 10.0}, (0.73 * 10 + 0.27 * 5) / 10),
    ],
)
def test_with_prefix_caching_it_follows_from_lengths_and_how_many_decode(given: dict[str, Any], share: float) -> None:
    found = lost(**given)
    assert found.estimate == pytest.approx(share)
    assert found.least == pytest.approx(0.4 * share)
    assert (found.most, found.sure) == (1.0, True)


@pytest.mark.parametrize(
    ("rate", "useful", "context", "tax"),
    [
        (2.0, 100.0, Context(100.0, 50.0, 200.0), (80 / 180, 10 / 110, 400 / 500)),
        (0.002, 0.5, Context(100.0, 50.0, 200.0), (0.08 / 0.58, 0.01 / 0.51, 0.4 / 0.9)),  # a token every other second
        (0.0, 100.0, None, (0.0, 0.0, 0.0)),
        (2.0, 0.0, Context(100.0, 50.0, 200.0), (1.0, 1.0, 1.0)),
        (2.0, 0.0, Context(0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
        (None, 100.0, Context(100.0, 50.0, 200.0), (None, None, None)),
        (2.0, None, Context(100.0, 50.0, 200.0), (None, None, None)),
        (2.0, 100.0, None, (None, None, None)),
    ],
)
def test_the_tax_is_what_is_computed_again_of_all_that_is_computed(
    rate: float | None, useful: float | None, context: Context | None, tax: tuple[float | None, ...]
) -> None:
    found = recompute_tax.recompute_tax(rate, useful, context, LostShare(0.4, 0.1))
    assert (found.value, found.lower, found.upper) == pytest.approx(tax)


# gauges and shares


def test_the_largest_usage_is_of_the_samples_that_have_one() -> None:
    rows = [replace(ZERO, kv_usage=usage) for usage in (0.4, 0.7, None, 0.5)]
    assert vital_signs.largest_usage(rows).value == 0.7
    none = replace(ZERO, kv_usage=None)
    assert vital_signs.largest_usage([none]).status == "absent"
    assert vital_signs.largest_usage([]).status == "absent"
    impossible = replace(none, unusable=frozenset({"kv_cache_usage_ratio"}))
    assert vital_signs.largest_usage([none, impossible]).status == "invalid"
    assert vital_signs.largest_usage([impossible, none]).status == "absent"
    assert vital_signs.largest_usage([ZERO, impossible]).value == 0.5


@pytest.mark.parametrize(
    ("means", "demand"),
    [(Gauges(4.0, 2.0, 0.5), 0.75), (Gauges(1.0, 2.0, 0.5), 1.5), (Gauges(0.9, 2.0, 0.5), None),
     (Gauges(None, 2.0, 0.5), None), (Gauges(4.0, None, 0.5), None), (Gauges(4.0, 2.0, None), None)],
)  # fmt: skip
def test_demand_is_usage_if_all_that_wait_ran(means: Gauges, demand: float | None) -> None:
    assert vital_signs.demand(means).value == demand


def test_full_windows_are_capacity_over_length_or_as_the_server_says() -> None:
    known = replace(ZERO, kv_capacity_tokens=1000.0)
    assert vital_signs.full_windows(known, {"max_model_len": "250"}).value == 4.0
    assert vital_signs.full_windows(known, {"max_model_len": "0", "kv_cache_max_concurrency": "7.5"}).value == 7.5
    assert vital_signs.full_windows(ZERO, {"max_model_len": "250"}).value is None
    assert vital_signs.setting({"a": "x"}, "a") is None


def test_stalled_gaps_are_longer_than_a_second() -> None:
    gaps: Seen = {"inter_token_latency_seconds": [(0.5, 10.0), (1.0, 5.0), (1.1, 3.0)]}
    assert vital_signs.stall_gaps(span(gaps)).value == 3.0 / 60.0
    assert vital_signs.stall_gaps(span()).value is None
    edges = {"inter_token_latency_seconds": Histogram((0.5, 2.0), array("d", [0.0, 0.0, 0.0]), 0.0)}
    assert (
        vital_signs.stall_gaps(Span(0.0, 60.0, replace(ZERO, histograms=edges), replace(ZERO, histograms=edges))).value
        is None
    )


@pytest.mark.parametrize(
    ("responses", "role", "share"),
    [
        ({"stop": 6.0, "length": 2.0}, Role.SERVE, 0.25),
        ({"stop": 6.0, "length": 2.0, "error": 5.0, "abort": 3.0}, Role.SERVE, 0.25),
        ({"stop": 0.0, "error": 5.0}, Role.SERVE, None),
        ({"stop": 8.0}, Role.SERVE, 0.0),
        ({"stop": 6.0, "length": 2.0}, Role.PREFILL, None),
        ({"stop": 6.0, "length": 2.0}, Role.POOLING, None),
        (None, Role.SERVE, None),
    ],
)
def test_truncated_is_the_share_of_whole_answers_that_ended_by_length(
    responses: dict[str, float] | None, role: Role, share: float | None
) -> None:
    assert vital_signs.truncated(span(responses=responses), role).value == share


DRAFTED, ACCEPTED = "spec_decode_draft_tokens_total", "spec_decode_accepted_tokens_total"


@pytest.mark.parametrize(
    ("first", "last", "share"),
    [
        ({DRAFTED: 10.0, ACCEPTED: 10.0}, {DRAFTED: 110.0, ACCEPTED: 70.0}, 0.6),
        ({DRAFTED: 10.0, ACCEPTED: 10.0}, {DRAFTED: 10.0, ACCEPTED: 10.0}, None),
        ({DRAFTED: 10.0}, {DRAFTED: 110.0}, None),
        ({}, {DRAFTED: 110.0, ACCEPTED: 70.0}, None),
        ({DRAFTED: 10.0, ACCEPTED: 10.0}, {}, None),
    ],
)
def test_acceptance_is_of_drafted_tokens(first: dict[str, float], last: dict[str, float], share: float | None) -> None:
    def details(counts: dict[str, float]) -> dict[str, dict[tuple[str, ...], float]]:
        return {name: {(): value} for name, value in counts.items()}

    start = replace(ZERO, details=details(first))
    assert vital_signs.acceptance(Span(0.0, 60.0, start, replace(start, details=details(last)))) == share


@pytest.mark.parametrize(
    ("looked", "found", "share"),
    [(100.0, 25.0, 0.25), (100.0, 101.0, 1.0), (0.0, 0.0, None), (None, 25.0, None), (100.0, None, None)],
)
def test_hits_are_of_what_was_looked_up(looked: float | None, found: float | None, share: float | None) -> None:
    assert vital_signs.prefix_hit_ratio(span(prefix_cache_queries=looked, prefix_cache_hits=found)).value == share


@pytest.mark.parametrize(
    ("started", "last", "rate"),
    [
        (30.0, {"responses": {"stop": 12.0}}, 18.0),
        (30.0, {"responses": {"stop": 12.0}, "running": 5.0}, 15.0),
        (30.0, {"responses": {"stop": 12.0}, "running": 0.0}, 20.0),
        (30.0, {"responses": {"stop": 40.0}}, 0.0),
        (30.0, {"responses": {"stop": 12.0}, "preemptions": 4.0, "waiting": 3.0}, 15.0),  # as many as wait
        (30.0, {"responses": {"stop": 12.0}, "preemptions": 2.0, "waiting": 3.0}, 16.0),  # as many as were evicted
        (30.0, {"responses": {"stop": 12.0}, "preemptions": None, "waiting": 3.0}, 18.0),
        (30.0, {"responses": {"stop": 12.0}, "running": None}, None),
        (30.0, {"responses": None}, None),
    ],
)
def test_who_left_began_and_neither_finished_nor_runs_nor_waits_to_resume(
    started: float, last: dict[str, Any], rate: float | None
) -> None:
    found = vital_signs.abandoned(span({"ttft_seconds": [(0.2, started)]}, **last)).value
    assert found == (None if rate is None else pytest.approx(rate / 60.0))
    assert vital_signs.abandoned(span(**last)).value is None


def test_a_queue_that_shrank_hides_no_one_who_left() -> None:
    queued = replace(ZERO, waiting=5.0)
    last = {"responses": {"stop": 12.0}, "preemptions": 4.0, "waiting": 2.0}
    found = vital_signs.abandoned(span({"ttft_seconds": [(0.2, 30.0)]}, first=queued, **last)).value
    assert found == pytest.approx(18.0 / 60.0)


# tails and lengths


def test_failed_requests_are_taken_off_the_first_bucket() -> None:
    seen: Seen = {"tpot_seconds": [(0.001, 5.0), (0.04, 10.0)]}
    for errors, left in ((0.0, 15.0), (3.0, 12.0), (5.0, 10.0), (9.0, 10.0)):
        first = replace(ZERO, responses={"stop": 0.0, "error": 0.0})
        ended = {"stop": 10.0, "error": errors}
        found = vital_signs.of_answers(span(seen, first=first, responses=ended), "tpot_seconds")
        assert found is not None
        assert found.count == left
        assert found.counts[0] == max(0.0, 5.0 - errors)
    assert vital_signs.of_answers(span(), "tpot_seconds") is None


def test_tails_are_quantiles_and_only_of_what_decodes() -> None:
    seen: Seen = {
        "tpot_seconds": [(0.02, 60.0), (0.3, 40.0)], "inter_token_latency_seconds": [(0.04, 60.0), (0.6, 40.0)],
        "ttft_seconds": [(0.2, 98.0), (4.0, 2.0)],
    }  # fmt: skip
    told = vital_signs.tails(span(seen), Role.SERVE)
    bounds = {name: (reading.lower, reading.upper) for name, reading in told.items()}
    assert bounds["tpot_p50_seconds"] == (0.01, 0.025)
    assert bounds["tpot_p99_seconds"] == (0.2, 0.3)
    assert bounds["tpot_p50_seconds.inter_token"] == (0.025, 0.05)
    assert bounds["tpot_p99_seconds.inter_token"] == (0.5, 0.75)
    assert bounds["ttft_p99_seconds"] == (2.5, 5.0)
    for role in (Role.PREFILL, Role.POOLING):
        told = vital_signs.tails(span(seen), role)
        assert told["tpot_p50_seconds"].status == told["tpot_p99_p50_ratio.inter_token"].status == "absent"
        assert told["ttft_p99_seconds"].value is not None


def test_failed_requests_leave_the_tails_of_their_own_time_a_token_and_not_those_of_gaps() -> None:
    seen: Seen = {family: [(0.001, 5.0), (0.04, 5.0)] for family in ("tpot_seconds", "inter_token_latency_seconds")}
    first = replace(ZERO, responses={"stop": 0.0, "error": 0.0})
    told = vital_signs.tails(span(seen, first=first, responses={"stop": 5.0, "error": 5.0}), Role.SERVE)
    assert told["tpot_p50_seconds"].lower == 0.025
    assert told["tpot_p50_seconds.inter_token"].upper == 0.01


def test_lengths_have_their_spread_only_where_answers_have_lengths() -> None:
    seen: Seen = {"request_prompt_tokens": [(500.0, 10.0)], "request_output_tokens": [(50.0, 9.0), (5000.0, 1.0)]}
    told = vital_signs.lengths(span(seen), Role.SERVE)
    assert told["prompt_tokens_mean"].value == 500.0
    assert told["output_tokens_mean"].value == 545.0
    assert told["output_tokens_p90"].upper == 100.0
    straggler = told["output_tokens_straggler_ratio"]
    assert (straggler.lower, straggler.upper) == (pytest.approx(1000 / 545), pytest.approx(10_000 / 545))
    for role in (Role.PREFILL, Role.POOLING):
        assert vital_signs.lengths(span(seen), role)["output_tokens_cv"].status == "absent"


def test_a_straggler_ratio_needs_both() -> None:
    assert vital_signs.straggler_ratio(Reading(100.0, 50.0, 200.0), Reading(50.0)) == Reading(2.0, 1.0, 4.0)
    assert vital_signs.straggler_ratio(Reading(None, 50.0, 200.0), Reading(50.0)).value is None
    assert vital_signs.straggler_ratio(Reading(100.0, 50.0, 200.0), Reading(0.0)).status == "absent"
    assert vital_signs.straggler_ratio(Reading(100.0, None, 200.0), Reading(50.0)).status == "absent"
    assert vital_signs.straggler_ratio(Reading(100.0, 50.0, None), Reading(50.0)).status == "absent"


# roles

OUT = "request_output_tokens"


@pytest.mark.parametrize(
    ("last", "seen", "role"),
    [
        ({"responses": {"stop": 20.0}, "generation_tokens": 20.0}, {OUT: [(1.0, 19.0), (9.0, 1.0)]}, Role.PREFILL),
        ({"responses": {"stop": 20.0}, "generation_tokens": 20.0}, {OUT: [(1.0, 18.0), (9.0, 2.0)]}, Role.SERVE),
        ({"responses": {"stop": 20.0}, "generation_tokens": 20.0}, {OUT: [(1.0, 1.0)]}, Role.PREFILL),
        ({"responses": {"stop": 19.0}, "generation_tokens": 20.0}, {OUT: [(1.0, 19.0)]}, None),
        ({"responses": {"stop": 20.0}, "prompt_tokens": 9.0}, {}, Role.POOLING),
        ({"responses": {"stop": 20.0}, "prompt_tokens": 0.0}, {}, Role.SERVE),
        ({"responses": {"stop": 20.0}, "prompt_tokens": None}, {}, Role.SERVE),
        ({"responses": {"stop": 20.0}, "prompt_tokens": 9.0, "generation_tokens": 1.0}, {}, Role.SERVE),
        ({"responses": None}, {}, None),
    ],
)
def test_a_role_follows_from_twenty_finishes(last: dict[str, Any], seen: Seen, role: Role | None) -> None:
    assert infer_role(span(seen, **last), LIMITS) is role


def test_failed_requests_have_no_output_and_make_no_prefill_engine() -> None:
    first = replace(ZERO, responses={"stop": 0.0, "error": 0.0})
    seen: Seen = {OUT: [(1.0, 1.0), (0.5, 400.0), (50.0, 20.0)]}
    last = {"responses": {"stop": 21.0, "error": 400.0}, "generation_tokens": 1000.0}
    assert infer_role(span(seen, first=first, **last), LIMITS) is Role.SERVE


def test_where_too_few_finished_lately_all_that_ever_did_tell() -> None:
    ever = replace(
        ZERO, responses={"stop": 100.0}, generation_tokens=100.0, histograms=histograms({OUT: [(1.0, 100.0)]})
    )
    last = replace(
        ever, responses={"stop": 105.0}, generation_tokens=600.0,
        histograms=histograms({OUT: [(1.0, 100.0), (99.0, 5.0)]}),
    )  # fmt: skip
    assert infer_role(Span(0.0, 60.0, ever, last), LIMITS) is Role.PREFILL
    blind = replace(last, histograms={})
    assert infer_role(Span(0.0, 60.0, ever, blind), LIMITS) is Role.SERVE
