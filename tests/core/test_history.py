"""What an engine remembers: progress, the calm before an episode, its usual values: each limit from both sides."""

from dataclasses import replace
from math import inf

import pytest

from tests.core.sequences import empty, observe
from vllm_vitals.core.history import Episode, Progress, UsefulBaseline, UsualLatency
from vllm_vitals.core.sample import EngineSample, Histogram
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.window import Span, Window

LIMITS = Thresholds()
WORKS = EngineSample(
    running=4.0, waiting=2.0, kv_usage=0.5, generation_tokens=0.0, prompt_tokens=0.0, preemptions=0.0, steps=0.0,
    responses={"stop": 0.0}, histograms={"ttft_seconds": empty("ttft_seconds")},
)  # fmt: skip


def sample(**changes: object) -> EngineSample:
    return replace(WORKS, **changes)  # type: ignore[arg-type]


def times(name: str, number: float, value: float = 0.2) -> dict[str, Histogram]:
    return {name: observe(empty(name), value, number)}


# progress


@pytest.mark.parametrize(
    ("change", "progresses", "speaks", "steps"),
    [
        ({}, False, False, False),
        ({"generation_tokens": 1.0}, True, True, True),
        ({"prompt_tokens": 1.0}, True, False, True),
        ({"responses": {"stop": 1.0}}, True, False, True),
        ({"steps": 1.0}, False, False, True),
        ({"kv_usage": 0.51}, True, False, False),
        ({"kv_usage": 0.5}, False, False, False),
        ({"kv_usage": None}, False, False, False),
        ({"asleep": True}, True, True, True),
        ({"updating_weights": True}, True, True, True),
        ({"running": 0.0, "waiting": 0.0}, True, True, True),
    ],
)
def test_what_counts_as_progress_as_a_token_and_as_a_step(
    change: dict[str, object], progresses: bool, speaks: bool, steps: bool
) -> None:
    memory, now = Progress(), sample(**change)
    memory.feed(0.0, WORKS, None)
    memory.feed(10.0, now, WORKS)
    assert memory.seconds_without_progress(11.0) == (1.0 if progresses else 11.0)
    assert memory.seconds_without_token(11.0) == (1.0 if speaks else 11.0)
    assert memory.still_stepping(11.0, 10.0) is steps


def test_work_that_has_just_come_has_its_patience_from_then() -> None:
    memory, idle = Progress(), sample(running=0.0, waiting=0.0)
    memory.feed(0.0, idle, None)
    memory.feed(100.0, WORKS, idle)
    assert memory.seconds_without_progress(100.0) == 0.0


def test_the_high_water_mark_of_a_prefill_falls_with_each_other_progress() -> None:
    memory, before = Progress(), WORKS
    story = ((0.9, 0.0, 0.0), (0.8, 0.0, 10.0), (0.3, 1.0, 0.0), (0.4, 1.0, 0.0))
    for number, (usage, tokens, waited) in enumerate(story, 1):
        now = sample(kv_usage=usage, generation_tokens=tokens)
        memory.feed(10.0 * number, now, before if number > 1 else None)
        assert memory.seconds_without_progress(10.0 * number) == waited
        before = now


def test_nothing_is_known_before_the_first_sample() -> None:
    memory = Progress()
    assert (memory.seconds_without_progress(1.0), memory.seconds_without_token(1.0)) == (None, None)
    assert not memory.still_stepping(1.0, 45.0)


def test_stepping_is_within_its_limit_and_not_at_it() -> None:
    memory = Progress()
    memory.feed(0.0, WORKS, None)
    assert memory.still_stepping(44.9, 45.0)
    assert not memory.still_stepping(45.0, 45.0)


def test_the_oldest_request_has_made_at_least_its_share_since_the_last_finish() -> None:
    memory = Progress()
    memory.feed(0.0, WORKS, None)
    # 4 ran then and none began since: 6 present are more, so at most a sixth each is sure
    assert memory.inflight_estimate(sample(generation_tokens=1200.0)).value == 200.0
    # 2 are present, but 4 that ran then have made tokens too
    assert memory.inflight_estimate(sample(generation_tokens=1200.0, running=2.0, waiting=0.0)).value == 300.0
    # and so have 8 that began since
    began = times("ttft_seconds", 8.0)
    assert memory.inflight_estimate(sample(generation_tokens=1200.0, running=1.0, histograms=began)).value == 100.0


def test_a_finish_starts_the_count_anew() -> None:
    memory, ended = Progress(), sample(generation_tokens=1000.0, responses={"stop": 1.0})
    memory.feed(0.0, WORKS, None)
    memory.feed(10.0, ended, WORKS)
    assert memory.inflight_estimate(replace(ended, generation_tokens=1600.0)).value == 100.0
    moved = replace(ended, generation_tokens=1600.0)
    memory.feed(20.0, moved, ended)
    assert memory.inflight_estimate(moved).value == 100.0


def test_nothing_is_in_flight_where_nobody_is_present_or_nothing_is_counted() -> None:
    memory = Progress()
    assert memory.inflight_estimate(WORKS).value is None
    memory.feed(0.0, WORKS, None)
    assert memory.inflight_estimate(sample(running=0.0, waiting=0.0)).value is None
    assert memory.inflight_estimate(sample(generation_tokens=None)).value is None
    unknown = Progress()
    unknown.feed(0.0, sample(running=None), None)
    assert unknown.inflight_estimate(sample(generation_tokens=600.0)).value == 100.0


# episodes

LENGTHS = ("request_prompt_tokens", "request_output_tokens", "ttft_seconds")


def grown(seconds: float, preemptions: float = 0.0, rate: float = 100.0, **changes: object) -> EngineSample:
    """An engine after so many seconds at ``rate`` tokens/s, one finish (of 500 and 200 tokens) and one start each."""
    prompt, output = changes.pop("prompt", 500.0), changes.pop("output", 200.0)
    values = zip(LENGTHS, (prompt, output, 0.2), strict=True)
    seen = {name: observe(empty(name), value, seconds) for name, value in values}  # type: ignore[arg-type]
    return sample(
        generation_tokens=seconds * rate, preemptions=preemptions, prompt_tokens=seconds * prompt,  # type: ignore[operator]
        responses={"stop": seconds}, histograms=seen, **changes,
    )  # fmt: skip


def calm(seconds: float, step: float = 5.0, **changes: object) -> tuple[Window, Episode]:
    window, episode = Window(90.0, 600.0), Episode()
    at = 0.0
    while at <= seconds:
        window.push(at, grown(at, **changes))  # type: ignore[arg-type]
        episode.feed(window, LIMITS)
        at += step
    return window, episode


@pytest.mark.parametrize(("seconds", "known"), [(29.0, False), (30.0, True)])
def test_the_calm_before_an_episode_must_have_lasted_half_a_fast_window(seconds: float, known: bool) -> None:
    window, episode = calm(seconds, step=1.0)
    window.push(seconds + 1, grown(seconds + 1, preemptions=1.0))
    episode.feed(window, LIMITS)
    assert (episode.before is not None) is known


def test_the_calm_is_remembered_until_a_window_without_preemption() -> None:
    window, episode = calm(120.0)
    assert episode.before is None
    for at in (125.0, 130.0):
        window.push(at, grown(at, preemptions=(at - 120.0) / 5, rate=100.0))
        episode.feed(window, LIMITS)
        assert episode.before is not None
        assert episode.before.generation == pytest.approx(100.0)
        assert episode.before.work == 6.0
        assert (episode.before.prompt, episode.before.output, episode.before.started) == (500.0, 200.0, 500.0)
    at = 130.0
    while at < 190.0:
        at += 5.0
        window.push(at, grown(at, preemptions=2.0))
        episode.feed(window, LIMITS)
        assert (episode.before is None) is (at >= 190.0)


def test_an_engine_without_counter_tokens_or_gauges_has_no_calm() -> None:
    for change in ({"rate": 0.0}, {"running": None}, {"waiting": None}):
        window, episode = calm(60.0, **change)
        window.push(65.0, grown(65.0, preemptions=3.0, **change))  # type: ignore[arg-type]
        episode.feed(window, LIMITS)
        assert episode.before is None


def span_of(rate: float, prompt: float = 500.0, output: float = 200.0, **changes: object) -> Span:
    """A minute of another pace and other lengths."""
    first, last = grown(0.0), grown(60.0, rate=rate, prompt=prompt, output=output, **changes)
    return Span(120.0, 180.0, first, last)


def before() -> Episode:
    window, episode = calm(60.0)
    window.push(65.0, grown(65.0, preemptions=3.0))
    episode.feed(window, LIMITS)
    return episode


@pytest.mark.parametrize(
    ("span", "work", "share"),
    [
        (span_of(30.0), 6.0, 0.3),
        (span_of(30.0), 5.9, inf),  # less work
        (span_of(30.0), None, None),
        (span_of(30.0, prompt=1000.0), 6.0, 0.3),
        (span_of(30.0, prompt=1001.0), 6.0, inf),
        (span_of(30.0, prompt=250.0), 6.0, 0.3),
        (span_of(30.0, prompt=249.0), 6.0, inf),
        (span_of(30.0, output=400.0), 6.0, 0.3),
        (span_of(30.0, output=401.0), 6.0, inf),
        (span_of(30.0, output=100.0), 6.0, 0.3),
        (span_of(30.0, output=99.0), 6.0, inf),
    ],
)
def test_generation_is_compared_under_no_less_work_and_lengths_within_a_factor_two(
    span: Span, work: float | None, share: float | None
) -> None:
    found = before().generation_vs_baseline(span, work)
    assert found is None if share is None else found == pytest.approx(share)


def test_prompts_that_only_started_show_another_workload_at_once() -> None:
    first = grown(0.0)
    for tokens, share in ((60_000.0, 0.3), (60_100.0, inf), (15_000.0, 0.3), (14_900.0, inf)):
        began = {"ttft_seconds": observe(empty("ttft_seconds"), 0.2, 60.0)}
        last = replace(first, generation_tokens=1800.0, prompt_tokens=tokens, histograms=began)
        found = before().generation_vs_baseline(Span(120.0, 180.0, first, last), 6.0)
        assert found == pytest.approx(share)
        counted = replace(last, recompute_counted=True)  # V0 counts recomputed prompts too
        assert before().generation_vs_baseline(Span(120.0, 180.0, first, counted), 6.0) == pytest.approx(0.3)


def test_without_a_calm_nothing_is_compared() -> None:
    assert Episode().generation_vs_baseline(span_of(30.0), 6.0) is None


# the usual latency

GAPS = "inter_token_latency_seconds"


def gaps(seconds: float, value: float, count: float = 100.0, first: EngineSample | None = None, **more: float) -> Span:
    start = first or sample(histograms={GAPS: empty(GAPS)})
    last = replace(start, histograms={GAPS: observe(start.histograms[GAPS], value, count)}, **more)
    return Span(0.0, seconds, start, last)


def usual(value: float) -> UsualLatency:
    memory = UsualLatency()
    assert memory.feed(0.0, gaps(60.0, value), None, LIMITS) is None
    return memory


@pytest.mark.parametrize(("seconds", "known"), [(29.9, False), (30.0, True)])
def test_half_a_fast_window_makes_a_usual(seconds: float, known: bool) -> None:
    memory = UsualLatency()
    assert memory.feed(0.0, gaps(seconds, 0.03), None, LIMITS) is None
    assert (memory.feed(1.0, gaps(60.0, 0.06), None, LIMITS) is not None) is known


@pytest.mark.parametrize(("count", "known"), [(9_999.0, False), (10_000.0, True)])
def test_a_life_of_ten_thousand_gaps_is_a_usual_at_once(count: float, known: bool) -> None:
    life = sample(histograms={GAPS: observe(empty(GAPS), 0.03, count)})
    found = UsualLatency().feed(0.0, gaps(5.0, 0.06, first=life), None, LIMITS)
    assert found == (pytest.approx(2.0) if known else None)


def test_no_gap_says_nothing() -> None:
    memory = usual(0.03)
    assert memory.feed(5.0, gaps(60.0, 0.03, count=0.0), None, LIMITS) is None
    assert memory.feed(5.0, gaps(60.0, 0.0), None, LIMITS) is None


def test_the_usual_follows_a_slow_window_long_and_no_faster() -> None:
    memory = usual(0.03)
    assert memory.feed(60.0, gaps(60.0, 0.04), None, LIMITS) == pytest.approx(0.04 / 0.03)
    followed = 0.03 + 0.01 * 60.0 / 600.0
    assert memory.feed(60.0, gaps(60.0, 0.04), None, LIMITS) == pytest.approx(0.04 / followed)
    assert memory.feed(10_000.0, gaps(60.0, 0.04), None, LIMITS) == pytest.approx(0.04 / followed)
    assert memory.feed(10_000.0, gaps(60.0, 0.04), None, LIMITS) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gap", "prefill", "preempted", "follows"),
    [
        (0.045, 5.0, 0.0, False),  # 1.5 times the usual while prefill crowds: starved, or about to be
        (0.044, 5.0, 0.0, True),
        (0.045, 4.9, 0.0, True),
        (0.045, None, 0.0, True),
        (0.035, 0.0, 1.0, False),
        (0.035, 0.0, 0.0, True),
    ],
)
def test_the_usual_stands_still_while_decode_is_starved_or_requests_are_evicted(
    gap: float, prefill: float | None, preempted: float, follows: bool
) -> None:
    memory = usual(0.03)
    memory.feed(600.0, gaps(60.0, gap, preemptions=preempted), prefill, LIMITS)
    now = memory.feed(600.0, gaps(60.0, 0.03), None, LIMITS)
    assert now == pytest.approx(0.03 / gap if follows else 1.0)


# the useful rate

LONG = "request_prompt_tokens"


def served(useful: float, prompt: float = 500.0, seconds: float = 60.0, preempted: float = 0.0) -> Span:
    """A window that makes ``useful`` tokens a second, for prompts of one length."""
    start = sample(prompt_tokens_computed=0.0, histograms={LONG: empty(LONG)})
    ended = {LONG: observe(empty(LONG), prompt, 4.0)}
    last = replace(start, generation_tokens=useful * seconds, preemptions=preempted, histograms=ended)
    return Span(0.0, seconds, start, last)


def learned(count: int, **each: float) -> tuple[UsefulBaseline, float]:
    memory, at = UsefulBaseline(), 0.0
    for _ in range(count):
        memory.feed(at, served(1000.0, **each), 8.0, LIMITS)
        at += 60.0
    return memory, at


@pytest.mark.parametrize(("count", "known"), [(29, False), (30, True)])
def test_the_baseline_needs_thirty_windows_like_this_one(count: int, known: bool) -> None:
    memory, at = learned(count)
    assert memory.feed(at, served(700.0), 8.0, LIMITS).value == (1000.0 if known else None)


@pytest.mark.parametrize(
    ("running", "prompt", "alike"),
    [(6.4, 500.0, True), (6.3, 500.0, False), (10.6, 500.0, True), (10.7, 500.0, False), (10.5, 511.0, True),
     (8.0, 512.0, False), (8.0, 256.0, True), (8.0, 255.0, False)],
)  # fmt: skip
def test_windows_are_alike_within_a_quarter_of_running_and_a_factor_two_of_length(
    running: float, prompt: float, alike: bool
) -> None:
    memory, at = learned(30)
    found = memory.feed(at, served(700.0, prompt=prompt), running, LIMITS).value
    assert (found == 1000.0) is alike


@pytest.mark.parametrize(
    ("each", "kept"),
    [({}, True), ({"preempted": 1.0}, False), ({"seconds": 54.0}, True), ({"seconds": 53.9}, False)],
)
def test_only_whole_windows_without_preemption_are_remembered(each: dict[str, float], kept: bool) -> None:
    memory, at = learned(30, **each)
    assert (memory.feed(at, served(700.0), 8.0, LIMITS).value is not None) is kept


def test_the_baseline_is_looked_up_once_a_fast_window() -> None:
    memory, at = learned(30)
    assert memory.feed(at, served(700.0), 8.0, LIMITS).value == 1000.0
    assert memory.feed(at + 59.9, served(700.0), 80.0, LIMITS).value == 1000.0
    assert memory.feed(at + 60.0, served(700.0), 80.0, LIMITS).value is None


def test_a_day_is_remembered_and_no_longer() -> None:
    memory, at = learned(30)
    last = at - 60.0
    assert memory.feed(86_400.0, served(700.0), 8.0, LIMITS).value == 1000.0
    assert memory.feed(86_400.0 + last + 60.0, served(700.0), 8.0, LIMITS).value is None


def test_without_rate_running_or_lengths_there_is_no_baseline() -> None:
    memory, at = learned(30)
    assert memory.feed(at, served(700.0), None, LIMITS).value is None
    assert memory.feed(at + 60.0, served(700.0, prompt=0.0), 8.0, LIMITS).value is None
    blind = replace(served(700.0), last=sample(generation_tokens=None))
    assert memory.feed(at + 120.0, blind, 8.0, LIMITS).value is None
    assert memory.feed(at + 180.0, served(700.0), 8.0, LIMITS).value == 1000.0
    idle, at = UsefulBaseline(), 0.0
    for _ in range(40):
        assert idle.feed(at, served(0.0), 0.0, LIMITS).value is None
        at += 60.0
