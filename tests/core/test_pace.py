"""An engine against its own past: which windows are compared, how many are needed, and what counts as slower."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.sequences import empty, observe
from vllm_vitals.core.derive import WindowView
from vllm_vitals.core.pace import Pace, UsualPace
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.vital_signs import gauges
from vllm_vitals.core.window import Span

LIMITS = Thresholds()
GAPS, TPOT = "inter_token_latency_seconds", "tpot_seconds"
DRAFTED, ACCEPTED = "spec_decode_draft_tokens_total", "spec_decode_accepted_tokens_total"


def view(
    at: float = 0.0,
    gap: float = 0.03,
    running: float = 8.0,
    usage: float = 0.4,
    prefill: float = 100.0,
    *,
    gaps: float = 100.0,
    seconds: float = 60.0,
    preempted: float = 0.0,
    accepted: float | None = None,
    **last: Any,
) -> WindowView:
    """A fast window: mean gap, mean running and usage, prompt tokens a second; ``accepted`` of a hundred drafted."""
    first = EngineSample(
        running=running, waiting=0.0, kv_usage=usage, kv_capacity_tokens=1000.0, generation_tokens=0.0,
        prompt_tokens=0.0, preemptions=0.0, histograms={GAPS: empty(GAPS), TPOT: empty(TPOT)},
        details={} if accepted is None else {DRAFTED: {(): 0.0}, ACCEPTED: {(): 0.0}},
    )  # fmt: skip
    ended = replace(
        first, generation_tokens=gaps, prompt_tokens=prefill * seconds, preemptions=preempted,
        histograms={name: observe(empty(name), gap, gaps) for name in (GAPS, TPOT)},
        details={} if accepted is None else {DRAFTED: {(): 100.0}, ACCEPTED: {(): accepted}},
    )  # fmt: skip
    ended = replace(ended, **last)
    span = Span(at - seconds, at, first, ended)
    return WindowView(at, ended, {}, LIMITS, span, None, span, [first, ended], gauges([first]), None, None, Role.SERVE)


def past(count: int = 30, **each: Any) -> tuple[UsualPace, float]:
    """An engine that has been so for so many windows, and when the next one ends."""
    memory, at = UsualPace(), 0.0
    for _ in range(count):
        memory.feed(view(at, **each), LIMITS)
        at += 60.0
    return memory, at


def judged(now: dict[str, Any], count: int = 30, **each: Any) -> Pace | None:
    return looked(*past(count, **each), **now)


def looked(memory: UsualPace, at: float, **now: Any) -> Pace | None:
    """Three windows in a row: fewer say nothing."""
    return [memory.feed(view(at + 60.0 * number, **now), LIMITS) for number in range(3)][-1]


def test_thirty_windows_make_a_usual() -> None:
    assert judged({"gap": 0.06}, count=29) is None
    pace = judged({"gap": 0.06})
    assert pace is not None
    assert (pace.windows, pace.factor) == (30, pytest.approx(2.0))


@pytest.mark.parametrize(
    ("now", "alike"),
    [
        ({"running": 10.0}, True),  # a quarter of it more or less
        ({"running": 10.7}, False),
        ({"running": 6.4}, True),
        ({"running": 6.3}, False),
        ({"usage": 0.53}, True),
        ({"usage": 0.54}, False),
        ({"usage": 0.32}, True),
        ({"usage": 0.31}, False),
        ({"prefill": 5000.0}, False),  # more prefill than any of them had
    ],
)
def test_windows_are_compared_at_equal_running_and_kv_and_no_more_prefill(now: dict[str, float], alike: bool) -> None:
    assert (judged({"gap": 0.06, **now}) is not None) is alike


@pytest.mark.parametrize(
    ("odd", "counts"),
    [({}, True), ({"gaps": 50.0}, True), ({"gaps": 49.0}, False), ({"seconds": 54.0}, True), ({"seconds": 53.9}, False),
     ({"preempted": 1.0}, False), ({"preemptions": None}, False), ({"gap": 0.0}, False),
     ({"generation_tokens": 0.0}, False), ({"prompt_tokens": None}, False)],
)  # fmt: skip
def test_a_window_that_says_too_little_neither_judges_nor_counts(odd: dict[str, Any], counts: bool) -> None:
    assert (judged({"gap": 0.06, **odd}) is not None) is (counts and odd.get("gap") != 0.0)
    assert (judged({"gap": 0.06}, **odd) is not None) is counts


@pytest.mark.parametrize(("gap", "slower"), [(0.0376, True), (0.0374, False)])
def test_it_is_slower_from_half_of_what_degrades_on_and_then_the_past_stands_still(gap: float, slower: bool) -> None:
    memory, at = past()
    first = looked(memory, at, gap=gap)
    assert first is not None
    assert first.since == (at - 60.0 if slower else None)
    at += 120.0
    for _ in range(40):
        at += 60.0
        last = memory.feed(view(at, gap=gap), LIMITS)
    assert last is not None
    assert last.since == first.since
    assert last.usual == pytest.approx(0.03 if slower else gap, rel=1e-3)


def test_it_is_looked_up_once_a_window_and_stale_after_ten_minutes() -> None:
    memory, at = past()
    at += 120.0
    first = looked(memory, at - 120.0, gap=0.06)
    assert first is not None
    assert memory.feed(view(at + 59.9, gap=0.03), LIMITS) is first
    assert memory.feed(view(at + 600.0, gaps=1.0), LIMITS) is first
    assert memory.feed(view(at + 600.1, gaps=1.0), LIMITS) is None


def test_what_it_was_is_forgotten_after_a_week_without_a_usual_window() -> None:
    memory, _ = past()
    assert looked(memory, 2 * 86_400.0, gap=0.06) is not None
    memory, _ = past()
    assert looked(memory, 8 * 86_400.0, gap=0.06) is None


@pytest.mark.parametrize(("accepted", "rejected"), [(39.0, True), (41.0, False)])
def test_less_than_half_of_the_usual_acceptance_is_slower_too(accepted: float, rejected: bool) -> None:
    pace = judged({"accepted": accepted}, accepted=80.0)
    assert pace is not None
    assert pace.rejected is rejected
    assert (pace.acceptance, pace.usual_acceptance) == (pytest.approx(accepted / 100), pytest.approx(0.8))
    assert (pace.since is not None) is rejected


def test_an_engine_that_does_not_speculate_rejects_nothing() -> None:
    pace = judged({})
    assert pace is not None
    assert (pace.rejected, pace.acceptance) == (False, None)
    assert not Pace(0.0, 0.03, 0.03, 30, acceptance=0.1).rejected


def test_a_slow_engine_is_compared_with_windows_of_as_much_prefill_a_second() -> None:
    memory, at = past(30, gap=0.03, prefill=100.0)
    for _ in range(30):  # five times as much a second, and faster for other reasons
        memory.feed(view(at, gap=0.02, prefill=1000 / 3), LIMITS)
        at += 60.0
    pace = looked(memory, at, gap=0.06, prefill=200.0)
    assert pace is not None
    assert (pace.usual, pace.windows) == (pytest.approx(0.03), 30)


def line(*runs: float, noise: float = 0.0) -> UsualPace:
    """Thirty windows of a batch: 10 ms and 5 ms a running request, KV in proportion."""
    memory = UsualPace()
    for number in range(30):
        running = runs[number % len(runs)]
        gap = 0.01 + 0.005 * running + (noise if number % 4 < 2 else -noise)
        memory.feed(view(number * 60.0, gap, running, 0.05 * running), LIMITS)
    return memory


def three(memory: UsualPace, gap: float, running: float, usage: float) -> Pace | None:
    """Three windows after the thirty."""
    return looked(memory, 1800.0, gap=gap, running=running, usage=usage)


@pytest.mark.parametrize(
    ("running", "gap", "factor"),
    [
        (12.0, 0.07, 1.0),
        (12.0, 0.14, 2.0),
        (15.0, 0.17, 2.0),
        (15.1, 0.171, None),  # beyond two and a half times the most that ever ran
        (2.0, 0.06, 2.0),  # below the least that ran it is taken for that: 4 run in 30 ms
    ],
)
def test_more_requests_than_ever_are_compared_with_the_line_through_the_past(
    running: float, gap: float, factor: float | None
) -> None:
    pace = three(line(4.0, 6.0), gap, running, min(1.0, 0.05 * running))
    assert (None if pace is None else pytest.approx(pace.factor, rel=1e-3)) == factor
    assert pace is None or pace.windows >= 30


@pytest.mark.parametrize(("other", "known"), [(4.61, True), (4.59, False)])
def test_a_line_needs_a_spread_of_what_ran(other: float, known: bool) -> None:
    # two values as far apart as that have a standard deviation of 0.3
    assert (three(line(4.0, other), 0.2, 10.0, 0.5) is not None) is known


def test_less_kv_a_request_than_the_past_held_is_no_comparison_on_the_line() -> None:
    # the past held 50 tokens a request: at least three quarters of what is held now
    for usage, known in ((0.79, True), (0.81, False)):
        assert (three(line(4.0, 6.0), 0.2, 12.0, usage) is not None) is known
