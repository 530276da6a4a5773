"""Quantiles, ratios and spreads by hand: small histograms whose answer a person can work out."""

from array import array
from math import inf, nan, sqrt

import pytest

from vllm_vitals.core.distribution import Cut, fit, is_sure, one_cap, without
from vllm_vitals.core.quantile import cv, delta, edges, mean_of, quantile, ratio, share_at_most
from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.snapshot import Reading, absent


def buckets(total: float, *counts: float, bounds: tuple[float, ...] = (1.0, 2.0, 4.0)) -> Histogram:
    """Cumulative counts, the last without an end."""
    return Histogram(bounds, array("d", counts), total)


@pytest.mark.parametrize(
    ("q", "found"),
    [
        (0.5, Reading(1.5, 1.0, 2.0)),
        (0.75, Reading(2.0, 1.0, 2.0)),
        (0.875, Reading(3.0, 2.0, 4.0)),
        (1.0, Reading(4.0, 2.0, 4.0)),
        (0.25, Reading(None, 0.0, 1.0, why="below resolution: inside the first bucket (up to 1)")),
    ],
)
def test_a_quantile_lies_as_far_into_its_bucket_as_its_rank(q: float, found: Reading) -> None:
    assert quantile(buckets(60.0, 10, 30, 40, 40), q) == found


def test_a_quantile_beyond_the_last_bound_has_only_that_and_an_empty_histogram_none() -> None:
    assert quantile(buckets(99.0, 1, 1, 1, 4), 0.5) == Reading(None, 4.0, inf, why="above the last bucket (4)")
    assert quantile(buckets(0.0, 0, 0, 0, 0), 0.5).status == "absent"
    assert edges(buckets(0.0, 0, 0, 0, 0), 3) == (4.0, inf)


@pytest.mark.parametrize(
    ("high", "low", "found"),
    [
        (Reading(2.0, 1.5, 2.5), Reading(1.0, 0.5, 1.0), (2.0, 1.5, 5.0)),
        (Reading(2.0, 1.0, 2.5), Reading(1.5, 0.5, 2.0), (2 / 1.5, 1.0, 5.0)),
        (Reading(2.0, 1.0, 2.0), Reading(1.5, 1.0, 2.0), (None, 1.0, 2.0)),  # one bucket
        (Reading(None, 4.0, inf), Reading(1.0, 0.5, 1.0), (None, 4.0, inf)),
        (Reading(2.0, 1.0, 2.0), Reading(None, 0.0, 0.5), (None, 2.0, inf)),
        (Reading(2.0, 1.0, 2.0), Reading(None, 0.0, 0.0), (None, 1.0, inf)),
        (Reading(None, 4.0, inf), Reading(None, 4.0, inf), (None, 1.0, inf)),
    ],
)
def test_a_ratio_of_quantiles_is_bounded_by_their_buckets(
    high: Reading, low: Reading, found: tuple[float | None, float, float]
) -> None:
    told = ratio(high, low)
    assert told[:3] == (None if found[0] is None else pytest.approx(found[0]), *found[1:])


@pytest.mark.parametrize("gap", [1, 2])
def test_a_ratio_needs_both_bounds_of_both_and_says_whose_are_missing(gap: int) -> None:
    whole = Reading(2.0, 1.0, 3.0)
    part = whole._replace(**{("lower", "upper")[gap - 1]: None})
    for high, low in ((part, whole), (whole, part)):
        assert ratio(high, low).status == "absent"
    assert ratio(absent("no such"), whole).why == "no such"
    assert ratio(whole, absent("no such")).why == "no such"


@pytest.mark.parametrize(
    ("histogram", "found"),
    [
        # four of mean 15 in (10, 20]: all alike; two at each edge; or evenly, as wide as a bucket
        (buckets(60.0, 0, 4, 4, 4, bounds=(10.0, 20.0, 40.0)), (sqrt(25 / 3) / 15, 0.0, 5 / 15)),
        # one in (0, 10], one in (20, 40]: 10 and 25 at the nearest; at the farthest what is left of the sum beyond 0
        # and 20 goes up to 40, 60 of the second moment for each
        (buckets(35.0, 1, 1, 2, 2, bounds=(10.0, 20.0, 40.0)), (None, 7.5 / 17.5, sqrt(1300 / 2 - 17.5**2) / 17.5)),
        (buckets(25.0, 1, 1, 2, 2, bounds=(10.0, 20.0, 40.0)), (None, 7.5 / 12.5, sqrt(700 / 2 - 12.5**2) / 12.5)),
        (buckets(50.0, 1, 1, 2, 2, bounds=(10.0, 20.0, 40.0)), (None, 15 / 25, 15 / 25)),
    ],
)
def test_a_spread_is_between_all_alike_and_all_at_the_edges(
    histogram: Histogram, found: tuple[float | None, float, float]
) -> None:
    told = cv(histogram)
    assert told[1:3] == (pytest.approx(found[1], abs=1e-9), pytest.approx(found[2]))
    assert found[0] is None or told.value == pytest.approx(found[0])
    assert told.value is not None
    assert (told.lower or 0.0) <= told.value <= (told.upper or 0.0)


def test_a_spread_needs_a_positive_mean_and_beyond_the_last_bound_it_is_open() -> None:
    assert cv(buckets(0.0, 2, 2, 2, 2)).status == "invalid"
    assert cv(None).status == cv(buckets(0.0, 0, 0, 0, 0)).status == "absent"
    far = cv(buckets(101.0, 1, 1, 1, 2))
    assert (far.value, far.upper) == (None, inf)
    assert far.lower == pytest.approx(49.5 / 50.5)
    assert cv(buckets(9.0, 1, 1, 1, 3)).upper == inf
    assert cv(buckets(4.0, 1, 1, 1, 2)).upper == 1.0  # nothing is left beyond the lower edges


def test_shares_and_means_are_of_what_was_observed() -> None:
    some, none = buckets(60.0, 10, 30, 40, 40), buckets(0.0, 0, 0, 0, 0)
    assert (share_at_most(some, 1.0), share_at_most(some, 2.0), share_at_most(some, 3.0)) == (0.25, 0.75, None)
    assert share_at_most(none, 1.0) is None
    one = buckets(1.5, 0, 1, 1, 1)
    assert (share_at_most(one, 1.0), share_at_most(one, 2.0), quantile(one, 0.5).value) == (0.0, 1.0, 1.5)
    assert mean_of((4.0, 6.0)).value == 1.5
    assert mean_of((0.5, 6.0)).value == 12.0
    assert mean_of((0.0, 0.0)).status == "absent"


def test_what_came_between_two_scrapes_is_their_difference_and_may_be_nothing() -> None:
    new, old = buckets(9.0, 2, 3, 4, 5), buckets(4.0, 1, 1, 1, 2)
    assert delta(new, old) == buckets(5.0, 1, 2, 3, 3)
    assert delta(new, new) == buckets(0.0, 0, 0, 0, 0)
    assert delta(old, new) is None
    assert delta(new, buckets(4.0, 1, 1, 1, 6)) is None


# distributions


@pytest.mark.parametrize(("count", "cap"), [(10, 64.0), (9, None)])
def test_ten_that_asked_for_the_same_show_one_cap(count: int, cap: float | None) -> None:
    assert one_cap(buckets(64.0 * count, 0, count, count, count, bounds=(50.0, 100.0, 200.0))) == cap


@pytest.mark.parametrize(
    ("asked", "cap"),
    [
        (buckets(1280.0, 0, 20, 20, 20, bounds=(50.0, 64.0, 200.0)), 64.0),  # at its bucket's upper edge
        (buckets(1280.0, 0, 0, 20, 20, bounds=(50.0, 64.0, 200.0)), None),  # and not at its lower one
        (buckets(1290.0, 0, 20, 20, 20, bounds=(50.0, 100.0, 200.0)), None),  # no whole number
        (buckets(1280.0, 1, 20, 20, 20, bounds=(50.0, 100.0, 200.0)), None),  # two buckets
        (buckets(40.0, 20, 20, 20, 20, bounds=(50.0, 100.0, 200.0)), 2.0),  # the first bucket
        (buckets(20_000.0, 0, 0, 0, 20, bounds=(50.0, 100.0, 200.0)), 1000.0),  # beyond the last
    ],
)
def test_a_cap_is_a_whole_number_inside_the_one_bucket_that_all_lie_in(asked: Histogram, cap: float | None) -> None:
    assert one_cap(asked) == cap


def test_strays_are_taken_from_their_bucket_and_no_more_than_it_holds() -> None:
    some = buckets(60.0, 10, 30, 40, 40)
    left = without(some, [(2.0, 5.0), (0.0, 3.0), (1.0, -4.0)])
    assert (list(left.counts), left.sum) == ([7.0, 22.0, 32.0, 32.0], 50.0)
    left = without(some, [(4.0, 99.0)])
    assert (list(left.counts), left.sum) == ([10.0, 30.0, 30.0, 30.0], 20.0)
    assert without(some, [(2.0, 99.0), (4.0, 99.0)]).sum == 0.0
    assert without(some, [(3.9, 40.0)]).sum == pytest.approx(21.0)


@pytest.mark.parametrize(
    ("cut", "taken"),
    [(Cut(4.0, 10.0), True), (Cut(4.0, 10.1), False), (Cut(3.0, 9.0), True), (Cut(2.0, 5.0), False),
     (Cut(4.0, 0.0), False), (Cut(9.0, 1.0), False)],
)  # fmt: skip
def test_a_cap_is_believed_where_its_bucket_is_the_last_and_holds_as_many(cut: Cut, taken: bool) -> None:
    assert (fit(buckets(80.0, 10, 30, 40, 40), cut=cut).cut is not None) is taken


def test_a_cap_in_the_first_bucket_is_believed() -> None:
    for cut in (Cut(1.0, 10.0), Cut(1.0, 1.0)):
        assert fit(buckets(8.0, 10, 10, 10, 10), cut=cut).cut == cut
    assert fit(buckets(8.0, 10, 10, 10, 10), cut=Cut(1.0, 11.0)).cut is None


def test_above_a_cap_there_is_the_cap_and_below_it_no_more_than_that() -> None:
    found = fit(buckets(100.0, 10, 30, 40, 40), cut=Cut(3.0, 8.0))
    assert found.quantile(0.8).upper == 3.0
    assert (found.quantile(0.8).lower or 0.0) < 3.0
    assert found.quantile(0.81)[:3] == (3.0, 3.0, 3.0)
    assert found.uncut(0.8) == found.quantile(0.8)
    assert found.uncut(0.81) == Reading(None, 3.0, inf, why="cut at 3: the full length is unknown")


@pytest.mark.parametrize(
    ("x", "share"),
    [(0.5, (None, 0.75, 1.0)), (1.0, (0.75, 0.75, 0.75)), (1.5, (None, 0.25, 0.75)), (2.0, (0.25, 0.25, 0.25)),
     (4.0, (0.0, 0.0, 0.0)), (9.0, (0.0, 0.0, 0.0))],
)  # fmt: skip
def test_a_share_above_is_exact_at_an_edge_and_between_two_elsewhere(
    x: float, share: tuple[float | None, float, float]
) -> None:
    told = fit(buckets(60.0, 10, 30, 40, 40)).share_above(x)
    assert told[1:3] == share[1:]
    assert told.value == share[0] or (share[0] is None and share[1] < (told.value or 0.0) < share[2])


def test_what_was_not_observed_or_cannot_be_has_no_distribution() -> None:
    missing, empty = fit(None, exclude=[(0.0, 1.0)]), fit(buckets(0.0, 0, 0, 0, 0))
    assert (missing.count, empty.count) == (0.0, 0.0)
    for none in (missing, empty):
        readings = (none.mean(), none.quantile(0.5), none.cv(), none.share_above(1.0))
        assert {reading.status for reading in readings} == {"absent"}
    for total in (nan, inf, -1.0):
        assert fit(buckets(total, 3, 3, 3, 3)).quantile(0.5).status == "invalid"
    assert fit(buckets(0.0, 3, 3, 3, 3)).mean().value == 0.0
    assert fit(buckets(60.0, 10, 30, 40, 40), exclude=[(4.0, 10.0)]).count == 30.0


def test_the_last_of_counts_that_are_not_whole_is_within_its_bucket() -> None:
    told = fit(buckets(60.0, 7.25, 31.5, 40.125, 40.125)).quantile(1.0)
    assert 2.0 < (told.value or 0.0) <= 4.0
    less_than_one = fit(buckets(0.9, 0, 0.6, 0.6, 0.6)).quantile(0.5)
    assert 1.0 < (less_than_one.value or 0.0) <= 2.0


def test_nothing_lies_below_nothing() -> None:
    told = fit(buckets(60.0, 10, 30, 40, 40)).share_above(0.0)
    assert told[1:3] == (0.75, 1.0)
    assert told.value == pytest.approx(1.0)


def test_fewer_than_ten_observations_are_never_sure() -> None:
    edges_of = (50.0, 60.0, 70.0)
    for count, sure in ((10, True), (9, False)):
        found = fit(buckets(55.0 * count, 0, count, count, count, bounds=edges_of))
        assert found.count == count
        assert is_sure(found.quantile(0.5)) is sure
        assert sure or found.quantile(0.5).why == "only 9 were observed"


@pytest.mark.parametrize(
    ("total", "bounds"),
    [
        # the fifth of ten in (10, 20]: five at 20 leave it the rest; five at 10 (and it) the least
        (150.0, (10.0, 10 + 50 / 6)), (110.0, (10.0, 10 + 10 / 6)), (190.0, (18.0, 20.0)), (200.0, (20.0, 20.0)),
        (100.0, (10.0, 10.0)), (99.0, (10.0, 20.0)), (201.0, (10.0, 20.0)),
    ],
)  # fmt: skip
def test_the_sum_narrows_what_the_middle_one_can_be(total: float, bounds: tuple[float, float]) -> None:
    told = fit(buckets(total, 0, 10, 10, bounds=(10.0, 20.0))).quantile(0.5)
    assert told[1:3] == pytest.approx(bounds, rel=1e-6)
