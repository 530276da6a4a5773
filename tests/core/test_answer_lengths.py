"""Lengths of answers for a cap: from the smooth shape, worked out rarely, with what was cut taken as cut."""

import random
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import pytest

from vllm_vitals.core.answer_lengths import AGAIN_S, AnswerLengths
from vllm_vitals.core.quantile import cv, quantile
from vllm_vitals.core.sample import EngineSample, Histogram
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.core.window import Span

BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)


def histogram(values: Sequence[float]) -> Histogram:
    own = [0.0] * (len(BOUNDS) + 1)
    for value in values:
        own[bisect_left(BOUNDS, value)] += 1
    return Histogram(BOUNDS, array("d", accumulate(own)), float(sum(values)))


def seen(answers: Sequence[float], asked: Sequence[float] = ()) -> tuple[Span, dict[str, Reading]]:
    """The slow window, and what the buckets alone say of it."""
    made = histogram(answers)
    both = {"request_output_tokens": made, **({"request_max_tokens": histogram(asked)} if asked else {})}
    empty = {name: Histogram(BOUNDS, array("d", [0.0] * (len(BOUNDS) + 1)), 0.0) for name in both}
    span = Span(0.0, 600.0, EngineSample(histograms=empty), EngineSample(histograms=both))
    buckets = {"output_tokens_p90": quantile(made, 0.9), "output_tokens_cv": cv(made), "truncated_ratio": Reading(0.08)}
    return span, buckets


_random = random.Random(3)
ANSWERS = [_random.lognormvariate(5.4, 0.28) for _ in range(400)]  # mean 230, CV 0.29, p90 317


def test_the_shape_is_near_where_buckets_alone_choose_the_wrong_rule() -> None:
    span, buckets = seen(ANSWERS)
    found = AnswerLengths().feed(0.0, span, buckets, 0.05)
    assert buckets["output_tokens_cv"].value == pytest.approx(0.45, abs=0.1)
    assert found["output_tokens_cv"].value == pytest.approx(0.29, rel=0.2)
    assert found["output_tokens_p90"].value == pytest.approx(317, rel=0.15)
    assert (found["output_tokens_p90"].lower, found["output_tokens_p90"].upper) == (200.0, 500.0)


def test_where_hardly_any_is_cut_nothing_is_worked_out() -> None:
    span, buckets = seen(ANSWERS)
    assert AnswerLengths().feed(0.0, span, {**buckets, "truncated_ratio": Reading(0.04)}, 0.05) == {}
    assert AnswerLengths().feed(0.0, span, {**buckets, "truncated_ratio": Reading(None)}, 0.05) == {}


def test_the_number_stays_until_answers_doubled_or_minutes_passed() -> None:
    lengths, (first, buckets), (later, more) = AnswerLengths(), seen(ANSWERS), seen([*ANSWERS, *[210.0] * 200])
    value = lengths.feed(0.0, first, buckets, 0.05)["output_tokens_p90"].value
    assert lengths.feed(10.0, later, more, 0.05)["output_tokens_p90"].value == value
    assert lengths.feed(AGAIN_S, later, more, 0.05)["output_tokens_p90"].value != value
    twice, most = seen([*ANSWERS, *[210.0] * 900])
    assert lengths.feed(AGAIN_S + 1, twice, most, 0.05)["output_tokens_p90"].value < value  # type: ignore[operator]


def test_a_number_that_the_buckets_contradict_goes_at_once() -> None:
    lengths, (first, buckets), (other, others) = AnswerLengths(), seen(ANSWERS), seen([30.0] * 399)
    lengths.feed(0.0, first, buckets, 0.05)
    found = lengths.feed(5.0, other, others, 0.05)["output_tokens_p90"]
    assert found.value is not None
    assert found.value <= 50


def test_the_one_cap_that_all_asked_for_is_known() -> None:
    lengths = AnswerLengths()
    lengths.feed(0.0, *seen([min(each, 300.0) for each in ANSWERS], [300.0] * 400), 0.05)
    assert lengths.cap == 300
    lengths.feed(AGAIN_S, *seen(ANSWERS, [100.0, 900.0] * 200), 0.05)
    assert lengths.cap is None
