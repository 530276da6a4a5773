"""The window keeps one life of an engine, bounded, and takes no increase across a restart."""

from array import array
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from vllm_vitals.core.sample import EngineSample, Histogram
from vllm_vitals.core.window import Window

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
    for later, reborn in ((new, True), (replace(new, started_at=100.5), False)):
        window = Window(fine=90, reach=600)
        window.push(0, old)
        window.push(2, replace(old, started_at=None))
        assert window.push(4, later) is reborn


def test_an_absent_counter_is_no_restart_but_one_that_comes_back_lower_is() -> None:
    window = filled([0, 50])
    assert window.push(4, replace(ZERO, generation_tokens=None)) is False
    assert window.push(6, replace(ZERO, generation_tokens=60.0)) is False
    assert window.push(8, replace(ZERO, generation_tokens=None)) is False
    assert window.push(10, replace(ZERO, generation_tokens=40.0)) is True


def test_what_a_life_shows_late_was_zero_until_then() -> None:
    window, bare = Window(fine=90, reach=600), EngineSample(running=1.0)
    gaps = Histogram((0.1, 1.0), array("d", [2.0, 3.0, 3.0]), 1.5)
    shown = EngineSample(
        running=1.0, generation_tokens=7.0, prompt_tokens=90.0, preemptions=4.0, responses={"stop": 2.0},
        histograms={"ttft_seconds": gaps},
    )  # fmt: skip
    for at, sample in ((0, bare), (5, bare), (10, shown)):
        window.push(at, sample)
    span = window.span(60)
    assert span is not None
    risen = [span.increase(name) for name in ("generation_tokens", "prompt_tokens", "preemptions", "completions")]
    assert risen == [7, 90, 4, 2]
    assert span.histogram("ttft_seconds") == gaps
    assert (span.observed("ttft_seconds"), span.observed_at_most("ttft_seconds", 0.1)) == ((3, 1.5), 2)
    assert span.increase("steps") is None


def test_what_was_shown_before_or_dropped_as_impossible_is_no_zero() -> None:
    window = filled([0, 50])
    window.push(4, replace(ZERO, generation_tokens=None))
    window.push(6, replace(ZERO, generation_tokens=60.0))
    span = window.span(1)
    assert span is not None
    assert span.increase("generation_tokens") is None
    window = Window(fine=90, reach=600)
    window.push(0, EngineSample(unusable=frozenset({"preemptions_total"})))
    window.push(5, EngineSample(preemptions=900.0, generation_tokens=5.0))
    span = window.span(60)
    assert span is not None
    assert (span.increase("preemptions"), span.increase("generation_tokens")) == (None, 5)


def test_until_a_cache_is_first_hit_all_prompt_tokens_were_computed() -> None:
    window = Window(fine=90, reach=600)
    window.push(0, EngineSample(prompt_tokens=1000.0))
    window.push(5, EngineSample(prompt_tokens=1100.0, prompt_tokens_computed=1090.0))
    span = window.span(60)
    assert span is not None
    assert span.increase("prompt_tokens_computed") == 90


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
