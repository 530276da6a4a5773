"""Answers from histograms are near the truth, on real phases and synthetic shapes; their bounds always hold it."""

from array import array
from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.distributions import REQUIRED, WITHIN, judge
from tests.core.phases import ONE_TWO_FIVE, RECORDINGS, TTFT, Case, answers, histogram, recorded, synthetic
from vllm_vitals.core.distribution import Cut, fit, is_sure, one_cap, without
from vllm_vitals.core.sample import Histogram

waits = st.lists(st.floats(min_value=0.0005, max_value=5000.0), min_size=1, max_size=150)


@pytest.fixture(scope="module")
def real() -> list[Case]:
    return [case for folder in sorted(RECORDINGS.iterdir()) for case in recorded(folder)]


def near(cases: list[Case], question: str) -> float:
    judged = [judge(case)[question][0] for case in cases]
    return sum(judged) / len(judged)


def test_output_lengths_of_real_servers_are_told_within_a_sixth(real: list[Case]) -> None:
    lengths = [case for case in real if case.family == "request_output_tokens"]
    assert len(lengths) >= 15
    assert all(near(lengths, question) >= REQUIRED for question in WITHIN)


def test_real_latencies_are_told_as_well_where_the_client_measured_the_same(real: list[Case]) -> None:
    assert len(real) >= 50
    assert all(near(real, question) >= REQUIRED for question in ("p50", "p90", "p99"))


def test_no_wrong_spread_of_output_lengths_is_called_sure_more_than_once_in_five(real: list[Case]) -> None:
    judged = [judge(case)["CV"] for case in real if case.family == "request_output_tokens"]
    assert sum(sure and not right for right, sure, _ in judged) <= (1 - REQUIRED) * len(judged)


@pytest.mark.parametrize("question", WITHIN)
def test_shapes_that_no_server_showed_us_are_told_too(question: str) -> None:
    assert near(list(synthetic()), question) >= REQUIRED


def test_bounds_hold_the_truth_of_every_shape() -> None:
    assert all(held for case in synthetic() for _, _, held in judge(case).values())


@given(waits)
@settings(max_examples=150, deadline=None)
def test_bounds_hold_the_truth_of_anything(values: list[float]) -> None:
    truth, found = answers(sorted(values)), fit(histogram(values, TTFT))
    for question in ("p50", "p90", "p99"):
        reading = found.quantile(int(question[1:]) / 100)
        assert reading.lower is not None
        assert reading.upper is not None
        assert reading.lower <= truth[question] * (1 + 1e-6)
        assert truth[question] <= reading.upper * (1 + 1e-6)
        assert reading.value is not None
        assert reading.lower <= reading.value <= reading.upper
        assert reading.value < inf
    spread = found.cv()
    assert (spread.lower or 0.0) <= truth["CV"] + 1e-6 <= (spread.upper or 0.0) + 2e-6


@given(waits)
@settings(max_examples=80, deadline=None)
def test_a_quantile_never_falls_as_q_rises_and_shares_agree_with_it(values: list[float]) -> None:
    found = fit(histogram(values, TTFT))
    told = [found.quantile(q).value or 0.0 for q in (0.05, 0.3, 0.5, 0.9, 0.99)]
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(told))
    above = [found.share_above(x).value or 0.0 for x in (0.01, 0.3, 3.0, 30.0)]
    assert above == sorted(above, reverse=True)
    assert found.share_above(1.0).value == pytest.approx(sum(value > 1.0 for value in values) / len(values))


def test_answers_cut_at_a_cap_are_told_as_the_cap() -> None:
    values = [float(min(256, 40 + 7 * i)) for i in range(100)]
    cut = Cut(256, values.count(256))
    found = fit(histogram(values, ONE_TWO_FIVE), cut=cut)
    assert found.quantile(0.9)[:3] == (256, 256, 256)
    natural = found.uncut(0.9)
    assert (natural.value, natural.lower, natural.upper) == (None, 256, inf)
    assert "cut at 256" in natural.why
    assert found.uncut(0.2).value is not None


def test_a_cap_that_the_buckets_contradict_is_ignored() -> None:
    values = [100.0, 150.0, 300.0, 700.0]
    assert fit(histogram(values, ONE_TWO_FIVE), cut=Cut(256, 3)).cut is None


@pytest.mark.parametrize(
    ("asked", "cap"),
    [([64.0] * 40, 64), ([64.0] * 40 + [65.0], None), ([64.0] * 3, None), ([64.0] * 40 + [256.0] * 40, None)],
)
def test_one_cap_is_seen_where_all_asked_for_the_same(asked: list[float], cap: float | None) -> None:
    assert one_cap(histogram(asked, ONE_TWO_FIVE)) == cap
    assert one_cap(None) is None


def test_failed_requests_and_canaries_are_taken_out() -> None:
    users = [60.0 + i for i in range(50)]
    everything = histogram([*users, *[0.0] * 30, *[5.0] * 7], ONE_TWO_FIVE)
    left = without(everything, [(0.0, 30), (5.0, 7)])
    assert (list(left.counts), left.sum) == (list(histogram(users, ONE_TWO_FIVE).counts), sum(users))
    assert fit(everything, exclude=[(0.0, 30), (5.0, 7)]).quantile(0.5).value == pytest.approx(84, rel=0.05)


def test_no_more_is_taken_out_than_there_is() -> None:
    assert without(histogram([3.0, 40.0], ONE_TWO_FIVE), [(3.0, 9)]).count == 1


def test_few_observations_and_wide_buckets_are_not_sure() -> None:
    assert not is_sure(fit(histogram([40.0, 60.0, 90.0], ONE_TWO_FIVE)).quantile(0.9))
    one_bucket = fit(histogram([210.0 + i for i in range(60)], ONE_TWO_FIVE))
    assert not is_sure(one_bucket.cv())
    assert "leave it open" in one_bucket.cv().why


def test_what_cannot_be_known_is_absent_or_invalid() -> None:
    assert fit(None).quantile(0.5).status == "absent"
    assert fit(histogram([], TTFT)).cv().status == "absent"
    assert fit(Histogram((1.0,), array("d", [3, 3]), nan)).quantile(0.5).status == "invalid"
    assert fit(Histogram((1.0,), array("d", [3, 3]), -5.0)).mean().status == "invalid"
    assert fit(histogram([0.0] * 20, TTFT)).cv().status == "invalid"


def test_a_sum_that_the_buckets_contradict_leaves_the_buckets_bounds() -> None:
    reading = fit(Histogram((1.0, 2.0), array("d", [0, 20, 20]), 900.0)).quantile(0.5)
    assert (reading.lower, reading.upper) == (1.0, 2.0)
