"""The window's edges: which sample a span begins with, how far back each search goes, and what is thinned when."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

import pytest

from tests.core.sequences import empty, observe
from vllm_vitals.core.sample import EngineSample, Histogram
from vllm_vitals.core.window import Span, Window, increase

ZERO = EngineSample(generation_tokens=0.0, preemptions=0.0, running=1.0, waiting=0.0, responses={"stop": 0.0})


def window(times: Sequence[float], **columns: Sequence[float]) -> Window:
    """Samples at these times; ``finished``, ``preempted`` and ``running`` by column."""
    kept = Window(fine=1e9, reach=1e9)
    for number, at in enumerate(times):
        row = {name: values[number] for name, values in columns.items()}
        kept.push(at, replace(
            ZERO, responses={"stop": row.get("finished", 0.0)}, preemptions=row.get("preempted", 0.0),
            running=row.get("running", 1.0),
        ))  # fmt: skip
    return kept


def ends(span: Span | None) -> tuple[float, float] | None:
    return None if span is None else (span.start, span.end)


def test_an_increase_is_no_fall_and_no_guess() -> None:
    assert increase(5.0, 5.0) == 0.0
    assert increase(7.0, 5.0) == 2.0
    assert increase(4.9, 5.0) is None
    assert increase(None, 5.0) is None
    assert increase(5.0, None) is None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(20.0, (10.0, 30.0)), (19.0, (10.0, 30.0)), (21.0, (0.0, 30.0)), (10.0, (20.0, 30.0)), (0.0, (20.0, 30.0)),
     (99.0, (0.0, 30.0))],
)  # fmt: skip
def test_a_span_begins_with_the_newest_sample_that_is_old_enough(seconds: float, expected: tuple[float, float]) -> None:
    assert ends(window([0.0, 10.0, 20.0, 30.0]).span(seconds)) == expected
    assert window([0.0]).span(seconds) is None
    assert window([]).span(seconds) is None


def test_a_rate_needs_time_and_its_counter() -> None:
    assert Span(0.0, 0.0, ZERO, ZERO).rate("preemptions") is None
    assert Span(0.0, 4.0, ZERO, replace(ZERO, preemptions=8.0)).rate("preemptions") == 2.0
    assert Span(0.0, 4.0, ZERO, replace(ZERO, preemptions=None)).rate("preemptions") is None


COMPLETIONS = attrgetter("completions")
TIMES = [0.0, 30.0, 60.0, 90.0, 120.0]


@pytest.mark.parametrize(
    ("finished", "shortest", "longest", "expected"),
    [
        ((0, 0, 0, 10, 20), 60.0, 600.0, (60.0, 120.0)),
        ((0, 0, 0, 10, 20), 61.0, 600.0, (30.0, 120.0)),
        ((0, 0, 0, 10, 19), 60.0, 600.0, None),
        ((0, 5, 10, 15, 20), 60.0, 600.0, (0.0, 120.0)),
        ((0, 5, 10, 15, 20), 60.0, 90.0, (0.0, 120.0)),  # one step beyond the longest at most
        ((0, 5, 10, 15, 20), 60.0, 89.0, None),
        ((0, 0, 0, 0, 20), 0.0, 600.0, (90.0, 120.0)),
        ((0, 0, 0, 0, 20), 999.0, 999.0, (0.0, 120.0)),
    ],
)
def test_the_shortest_span_with_enough_is_found(
    finished: Sequence[float], shortest: float, longest: float, expected: tuple[float, float] | None
) -> None:
    assert ends(window(TIMES, finished=finished).span_with(20.0, shortest, longest, COMPLETIONS)) == expected


def test_a_span_with_enough_needs_two_samples_and_the_counter() -> None:
    assert window([0.0]).span_with(0.0, 0.0, 9.0, COMPLETIONS) is None
    assert window([0.0, 10.0], finished=(0, 5)).span_with(5.0, 5.0, 99.0, COMPLETIONS) is not None
    assert window([0.0, 10.0], finished=(0, 5)).span_with(5.0, 5.0, 99.0, lambda _: None) is None


@pytest.mark.parametrize(
    ("running", "longest", "expected"),
    [
        ((1, 1, 1, 1, 1), 600.0, (0.0, 120.0)),
        ((1, 0, 1, 1, 1), 600.0, (60.0, 120.0)),
        ((1, 1, 1, 0, 1), 600.0, None),
        ((1, 1, 1, 1, 0), 600.0, (0.0, 120.0)),
        ((1, 1, 1, 1, 1), 60.0, (30.0, 120.0)),  # and one step more
        ((1, 1, 1, 1, 1), 59.0, (60.0, 120.0)),
        ((1, 1, 1, 1, 1), 90.0, (0.0, 120.0)),
    ],
)
def test_working_reaches_back_as_far_as_there_was_work(
    running: Sequence[float], longest: float, expected: tuple[float, float] | None
) -> None:
    assert ends(window(TIMES, running=running).working(longest)) == expected
    assert window([]).working(longest) is None


@pytest.mark.parametrize(
    ("preempted", "longest", "expected"),
    [
        ((0, 0, 0, 0, 3), 600.0, (0.0, 90.0)),
        ((0, 0, 0, 3, 6), 600.0, (0.0, 60.0)),
        ((0, 2, 2, 2, 3), 600.0, (30.0, 90.0)),
        ((0, 1, 2, 3, 4), 600.0, None),
        ((0, 0, 0, 0, 0), 600.0, (0.0, 120.0)),
        ((0, 0, 0, 0, 3), 60.0, (30.0, 90.0)),
        ((0, 0, 0, 0, 3), 59.0, (60.0, 90.0)),
        ((0, 0, 0, 0, 3), 29.0, None),
    ],
)
def test_calm_is_the_time_before_the_newest_preemptions(
    preempted: Sequence[float], longest: float, expected: tuple[float, float] | None
) -> None:
    found = window(TIMES, preempted=preempted).calm(longest)
    assert (None if found is None else ends(found[0])) == expected
    if found is not None:
        assert len(found[1]) == 1 + (found[0].end - found[0].start) / 30.0
    assert window([]).calm(longest) is None


@pytest.mark.parametrize(("seconds", "count"), [(30.0, 2), (29.9, 1), (0.0, 1), (60.0, 3), (999.0, 5)])
def test_within_holds_the_sample_at_its_edge(seconds: float, count: int) -> None:
    assert len(window(TIMES).within(seconds)) == count
    assert window([]).within(seconds) == []


def test_the_previous_sample_is_the_one_before_the_newest() -> None:
    kept = window([0.0, 10.0], running=(3.0, 4.0))
    assert kept.previous is not None
    assert kept.previous.running == 3.0
    assert window([0.0]).previous is None


def kept_times(fine: float, reach: float, times: Sequence[float], step: float = 30.0) -> list[float]:
    kept = Window(fine, reach, step)
    for at in times:
        kept.push(at, replace(ZERO, started_at=1.0))
    return kept._times


def test_what_lies_beyond_reach_is_dropped_but_for_the_sample_that_reaches_it() -> None:
    times = [float(at) for at in range(0, 301, 100)]
    assert kept_times(1e9, 200.0, times) == [100.0, 200.0, 300.0]
    assert kept_times(1e9, 201.0, times) == times
    assert kept_times(1e9, 0.0, [0.0, 100.0]) == [0.0, 100.0]
    assert kept_times(1e9, 0.0, [0.0, 100.0, 200.0]) == [100.0, 200.0]


def test_beyond_the_fine_part_a_sample_between_two_within_a_step_is_dropped() -> None:
    assert kept_times(30.0, 1e9, [0.0, 15.0, 30.0, 60.0]) == [0.0, 30.0, 60.0]
    assert kept_times(30.0, 1e9, [0.0, 15.0, 31.0, 61.0]) == [0.0, 15.0, 31.0, 61.0]  # 31 s apart
    assert kept_times(31.0, 1e9, [0.0, 15.0, 30.0, 60.0]) == [0.0, 15.0, 30.0, 60.0]  # still fine
    assert kept_times(30.0, 1e9, [0.0, 15.0, 30.0, 60.0], step=29.0) == [0.0, 15.0, 30.0, 60.0]


@pytest.mark.parametrize(("started", "anew"), [(101.0, False), (101.1, True), (99.0, False), (98.9, True)])
def test_another_start_time_beyond_a_second_is_a_new_life(started: float, anew: bool) -> None:
    kept = Window(90.0, 600.0)
    kept.push(0.0, replace(ZERO, started_at=100.0))
    assert kept.push(5.0, replace(ZERO, started_at=started)) is anew


def test_the_first_sample_is_no_new_life_and_one_at_the_same_time_is_ignored() -> None:
    kept = Window(90.0, 600.0)
    assert kept.push(0.0, ZERO) is False
    assert kept.push(0.0, replace(ZERO, running=9.0)) is False
    assert kept.previous is None


@pytest.mark.parametrize("counter", ["generation_tokens", "prompt_tokens", "preemptions", "steps"])
def test_any_counter_that_falls_is_a_new_life(counter: str) -> None:
    kept = Window(90.0, 600.0)
    kept.push(0.0, replace(ZERO, **{counter: 5.0}))  # type: ignore[arg-type]
    assert kept.push(5.0, replace(ZERO, **{counter: 5.0})) is False  # type: ignore[arg-type]
    assert kept.push(10.0, replace(ZERO, **{counter: 4.0})) is True  # type: ignore[arg-type]


def test_finishes_and_errors_that_fall_are_a_new_life() -> None:
    for reason in ("stop", "error"):
        kept = Window(90.0, 600.0)
        kept.push(0.0, replace(ZERO, responses={reason: 5.0}))
        assert kept.push(5.0, replace(ZERO, responses={reason: 4.0})) is True


def span(old: Histogram | None, new: Histogram | None) -> Span:
    samples = [replace(ZERO, histograms={} if one is None else {"f": one}) for one in (old, new)]
    return Span(0.0, 60.0, *samples)


def test_observations_within_a_span_are_the_difference_of_equal_buckets() -> None:
    old = observe(empty("request_preemptions"), 0.0, 2.0)
    new = observe(observe(old, 1.0, 3.0), 5.0, 1.0)
    both = span(old, new)
    assert both.observed("f") == (4.0, 8.0)
    assert both.mean("f") == 2.0
    assert (both.observed_at_most("f", 1.0), both.observed_at_most("f", 5.0)) == (3.0, 4.0)
    assert both.observed_at_most("f", 3.0) is None
    assert span(new, new).observed("f") == (0.0, 0.0)
    assert span(new, new).mean("f") is None


def test_observations_are_absent_where_buckets_differ_counts_fall_or_either_is_missing() -> None:
    one = observe(empty("request_preemptions"), 0.0, 2.0)
    other = Histogram((1.0, 2.0), array("d", [5.0, 5.0, 5.0]), 1.0)
    fallen = empty("request_preemptions")
    for broken in (span(one, other), span(one, None), span(None, one)):
        assert broken.observed("f") is None
        assert broken.observed_at_most("f", 1.0) is None
        assert broken.histogram("f") is None
        assert broken.mean("f") is None
    assert span(one, fallen).observed("f") is None
    assert span(one, fallen).observed_at_most("f", 1.0) is None


def test_responses_are_counted_by_reason_from_when_they_appear() -> None:
    first, last = replace(ZERO, responses={"stop": 5.0}), replace(ZERO, responses={"stop": 7.0, "length": 3.0})
    assert Span(0.0, 1.0, first, last).responses() == {"stop": 2.0, "length": 3.0}
    assert Span(0.0, 1.0, replace(ZERO, responses=None), last).responses() == {"stop": 7.0, "length": 3.0}
    assert Span(0.0, 1.0, last, first).responses() == {"stop": 0.0}
    assert Span(0.0, 1.0, first, replace(ZERO, responses=None)).responses() is None
