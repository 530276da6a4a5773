"""The window keeps one life of an engine, bounded, and takes no increase across a restart."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from exporter.core.sample import EngineSample
from exporter.core.window import Window, restarted

ZERO = EngineSample(generation_tokens=0.0, preemptions=0.0, running=0.0, responses={"stop": 0.0})


def filled(counts: list[float], every: float = 2.0) -> Window:
    window = Window(fine=90, reach=600)
    for index, count in enumerate(counts):
        window.push(index * every, replace(ZERO, generation_tokens=count))
    return window


def test_a_rate_is_the_increase_over_the_time_that_really_passed() -> None:
    span = filled([0, 10, 20, 30, 40]).span(4)
    assert span is not None
    assert (span.seconds, span.increase("generation_tokens"), span.rate("generation_tokens")) == (4, 20, 5)


def test_a_young_window_answers_from_what_it_has() -> None:
    window = filled([0, 10])
    span = window.span(60)
    assert span is not None
    assert span.seconds == 2
    assert filled([5]).span(60) is None


def test_a_counter_that_falls_begins_a_new_life_and_nothing_is_counted_across_it() -> None:
    window = filled([0, 100, 200])
    assert window.push(6, replace(ZERO, generation_tokens=7.0)) is True
    assert window.span(60) is None
    window.push(8, replace(ZERO, generation_tokens=9.0))
    span = window.span(60)
    assert span is not None
    assert span.increase("generation_tokens") == 2


def test_a_later_start_time_is_a_restart_even_when_counters_have_caught_up() -> None:
    old, new = replace(ZERO, started_at=100.0), replace(ZERO, generation_tokens=5.0, started_at=500.0)
    assert restarted(new, old)
    assert not restarted(replace(new, started_at=100.5), old)


def test_an_absent_counter_is_no_restart() -> None:
    assert not restarted(replace(ZERO, generation_tokens=None), replace(ZERO, generation_tokens=50.0))


def test_a_sample_not_later_than_the_last_is_ignored() -> None:
    window = filled([0, 10, 20])
    assert window.push(4, replace(ZERO, generation_tokens=30.0)) is False
    assert window.push(1, replace(ZERO, generation_tokens=30.0)) is False
    span = window.span(60)
    assert span is not None
    assert span.increase("generation_tokens") == 20


@given(st.floats(min_value=0.5, max_value=20), st.integers(min_value=2, max_value=2000))
def test_memory_is_bounded_whatever_the_scrape_rate_and_the_fast_window_is_whole(every: float, n: int) -> None:
    window = filled([float(i) for i in range(n)], every)
    kept = len(window.within(1e9))
    assert kept <= 90 / every + 2 * 600 / 15 + 5
    assert len(window.within(60)) == min(n, int(60 / every + 1e-6) + 1)


@given(st.lists(st.integers(min_value=0, max_value=50), min_size=3, max_size=100))
def test_increase_is_additive_and_never_negative(steps: list[int]) -> None:
    counts, total = [], 0.0
    for step in steps:
        total += step
        counts.append(total)
    span = filled(counts).span(1e9)
    assert span is not None
    risen = span.increase("generation_tokens")
    assert risen == counts[-1] - counts[0] or span.seconds < 2.0 * (len(steps) - 1)
    assert risen is not None
    assert risen >= 0


def test_calm_ends_where_the_newest_preemptions_begin() -> None:
    window = Window(fine=90, reach=600)
    for at, preempted in ((0, 0), (10, 0), (20, 0), (30, 0), (40, 3), (50, 9)):
        window.push(at, replace(ZERO, preemptions=float(preempted), generation_tokens=float(at)))
    calm = window.calm(600)
    assert calm is not None
    span, samples = calm
    assert (span.start, span.end, len(samples)) == (0, 30, 4)
