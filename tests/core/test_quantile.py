"""Quantiles and spreads carry the bounds that the buckets allow, and the truth lies within them."""

from array import array
from bisect import bisect_left
from math import inf, isclose, sqrt
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vitals.core.quantile import cv, delta, mean, quantile, ratio, share_at_most
from vllm_vitals.core.sample import Histogram

EDGES = (0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 2.5)


def histogram(values: list[float], bounds: tuple[float, ...] = EDGES) -> Histogram:
    counts = [0.0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    running, cumulative = 0.0, []
    for count in counts:
        running += count
        cumulative.append(running)
    return Histogram(bounds, array("d", cumulative), sum(values))


finite = st.lists(st.floats(min_value=0.0001, max_value=2.5), min_size=1, max_size=200)
any_size = st.lists(st.floats(min_value=0.0001, max_value=100), min_size=1, max_size=200)


@given(any_size, st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_lies_within_its_bounds(values: list[float], q: float) -> None:
    reading = quantile(histogram(values), q)
    rank = max(1, -int(-q * len(values) // 1))
    truth = sorted(values)[rank - 1]
    assert reading.lower is not None
    assert reading.upper is not None
    assert reading.lower <= truth <= reading.upper
    if reading.value is not None:
        assert reading.lower <= reading.value <= reading.upper < inf


@given(any_size)
def test_a_quantile_never_falls_as_q_rises(values: list[float]) -> None:
    lowers = [quantile(histogram(values), q).lower or 0.0 for q in (0.1, 0.5, 0.9, 0.99)]
    assert lowers == sorted(lowers)


@given(any_size)
def test_the_spread_lies_within_its_bounds(values: list[float]) -> None:
    reading, truth = cv(histogram(values)), pstdev(values) / fmean(values)
    assert reading.lower is not None
    assert reading.upper is not None
    assert reading.lower <= truth + 1e-6
    assert truth <= reading.upper + 1e-6


@given(finite)
def test_the_ratio_of_two_quantiles_lies_within_its_bounds(values: list[float]) -> None:
    h = histogram(values)
    ordered = sorted(values)
    truth = ordered[max(1, -int(-0.99 * len(values) // 1)) - 1] / ordered[max(1, -int(-0.5 * len(values) // 1)) - 1]
    reading = ratio(quantile(h, 0.99), quantile(h, 0.5))
    assert reading.lower is not None
    assert reading.upper is not None
    assert reading.lower <= truth * (1 + 1e-9)
    assert truth <= reading.upper * (1 + 1e-9)


def test_a_constant_5_ms_has_no_ratio_where_interpolation_would_say_1_98() -> None:
    h = histogram([0.005] * 1000)
    reading = ratio(quantile(h, 0.99), quantile(h, 0.5))
    assert reading.value is None
    assert reading.lower == 1.0
    assert "below resolution" in reading.why


def test_nothing_is_interpolated_into_the_last_bucket() -> None:
    reading = quantile(histogram([60.0] * 10), 0.5)
    assert (reading.value, reading.lower, reading.upper) == (None, 2.5, inf)


def test_an_interpolated_quantile_agrees_with_prometheus() -> None:
    # histogram_quantile(0.5, ...) over 10 in (0.025, 0.05] and 10 in (0.05, 0.1] is the edge between them
    assert quantile(histogram([0.03] * 10 + [0.07] * 10), 0.5).value == pytest.approx(0.05)


def test_the_mean_is_exact_and_an_empty_histogram_has_none() -> None:
    assert mean(histogram([0.1, 0.3])).value == pytest.approx(0.2)
    assert mean(histogram([])).status == "absent"
    assert quantile(histogram([]), 0.5).status == "absent"
    assert cv(histogram([])).status == "absent"
    assert quantile(None, 0.5).status == "absent"


def test_a_constant_length_may_have_no_spread_at_all() -> None:
    reading = cv(histogram([0.06] * 50))
    assert isclose(reading.lower or 0.0, 0.0, abs_tol=1e-6)
    assert reading.upper == pytest.approx(sqrt(0.01 * 0.04) / 0.06, rel=1e-3)


def test_a_share_is_only_said_at_a_bucket_edge() -> None:
    h = histogram([0.02, 0.2, 0.7, 2.0])
    assert share_at_most(h, 1.0) == 0.75
    assert share_at_most(h, 0.9) is None


def test_a_delta_across_other_buckets_or_a_fallen_count_is_refused() -> None:
    new, old = histogram([0.02, 0.2]), histogram([0.02])
    assert delta(new, old) is not None
    assert delta(old, new) is None
    assert delta(new, histogram([0.02], bounds=(0.01, 1.0))) is None
