"""What one look at the windows says: each limit from both sides, on samples whose numbers are the test's."""

from dataclasses import replace

import pytest

from vllm_vitals.core import derive
from vllm_vitals.core.derive import WindowView
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.vital_signs import gauges
from vllm_vitals.core.window import Span, Window

LIMITS = Thresholds()
ZERO = EngineSample(
    running=0.0, waiting=0.0, kv_usage=0.0, kv_capacity_tokens=1000.0, generation_tokens=0.0, prompt_tokens=0.0,
    responses={"stop": 0.0},
)  # fmt: skip


def view(*samples: EngineSample, every: float = 10.0) -> WindowView:
    """What is seen of samples so many seconds apart, where all lie within the fast window."""
    times = [every * number for number in range(len(samples))]
    fast = Span(times[0], times[-1], samples[0], samples[-1])
    half = len(samples) // 2
    later = Span(times[half], times[-1], samples[half], samples[-1])
    return WindowView(
        times[-1], samples[-1], {}, LIMITS, fast, later, fast, list(samples), gauges(samples), None, fast, Role.SERVE
    )


def queue(*waiting: float | None) -> WindowView:
    return view(*(replace(ZERO, waiting=number) for number in waiting))


@pytest.mark.parametrize(
    ("waiting", "drains"),
    [
        ((10.0, 10.0, 8.9, 9.0), True),
        ((10.0, 10.0, 9.0, 9.0), False),  # exactly a tenth less is not more than a tenth
        ((10.0, 10.0, 10.0, 10.0), False),
        ((10.0, 8.9), True),
        ((8.9, 10.0), False),
        ((10.0, None), None),
        ((None, 10.0), None),
        ((10.0, 9.0, 9.0), False),  # the later half of three are two
    ],
)
def test_a_queue_drains_where_its_later_half_is_below_nine_tenths_of_the_earlier(
    waiting: tuple[float | None, ...], drains: bool | None
) -> None:
    assert derive.draining(queue(*waiting)) is drains


@pytest.mark.parametrize(
    ("waiting", "share"),
    [((1.0, 0.0), 0.5), ((0.9, 0.9), 0.0), ((1.0, 2.0), 1.0), ((1.0,), None), ((1.0, None), 1.0), ((None, None), None)],
)
def test_the_share_of_scrapes_with_a_queue_counts_one_that_waits(
    waiting: tuple[float | None, ...], share: float | None
) -> None:
    assert derive.queued_share(queue(*waiting)) == share


def test_running_while_full_is_of_scrapes_at_ninety_percent() -> None:
    rows = ((4.0, 0.89), (6.0, 0.9), (8.0, 1.0), (2.0, None))
    assert derive.running_full(view(*(replace(ZERO, running=r, kv_usage=u) for r, u in rows))) == 7.0
    assert derive.running_full(view(replace(ZERO, running=4.0, kv_usage=0.5), ZERO)) is None


@pytest.mark.parametrize(
    ("first", "last", "busy"),
    [
        ({}, {}, False),
        ({}, {"generation_tokens": 1.0}, True),
        ({}, {"prompt_tokens": 1.0}, True),
        ({}, {"responses": {"stop": 1.0}}, True),
        ({"running": 0.1}, {}, True),
        ({"waiting": 1.0}, {}, True),
    ],
)
def test_busy_is_work_or_progress_anywhere(first: dict[str, float], last: dict[str, float], busy: bool) -> None:
    assert derive.busy(view(replace(ZERO, **first), replace(ZERO, **last))) is busy  # type: ignore[arg-type]


def span(**last: float | None) -> Span:
    return Span(0.0, 60.0, replace(ZERO, kv_usage=0.1), replace(ZERO, **{"kv_usage": 0.1, **last}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("last", "factor"),
    [
        ({"prompt_tokens": 50.0, "generation_tokens": 10.0}, 5.0),
        ({"prompt_tokens": 50.0}, 50.0),  # over one token at least
        ({"prompt_tokens": 50.0, "generation_tokens": 0.5}, 50.0),
        ({"prompt_tokens": 50.0, "generation_tokens": 10.0, "kv_usage": 0.3}, (50 + 200 - 10 - 50) / 10),
        ({"prompt_tokens": 50.0, "generation_tokens": 10.0, "kv_usage": 0.16}, 5.0),  # 60 tokens more: both explain it
        ({"prompt_tokens": 50.0, "generation_tokens": 10.0, "kv_usage": 0.0}, 5.0),
        ({"prompt_tokens": 50.0, "generation_tokens": 10.0, "kv_usage": 0.3, "kv_capacity_tokens": None}, 5.0),
        ({"prompt_tokens": 50.0, "generation_tokens": 10.0, "kv_usage": None}, 5.0),
        ({"prompt_tokens": None}, None),
        ({"generation_tokens": None}, None),
    ],
)
def test_prefill_over_generation_counts_kv_growth_that_neither_explains(
    last: dict[str, float | None], factor: float | None
) -> None:
    found = derive.prefill_factor(span(**last))
    assert found is None if factor is None else found == pytest.approx(factor)


@pytest.mark.parametrize(
    ("halves", "lasts"),
    [((25.0, 25.0), True), ((24.0, 25.0), False), ((25.0, 24.0), False), ((None, 25.0), None)],
)
def test_prefill_lasts_where_both_halves_have_half_of_what_starves(
    halves: tuple[float | None, float], lasts: bool | None
) -> None:
    earlier, later = halves
    middle = None if earlier is None else earlier
    samples = (
        replace(ZERO, prompt_tokens=0.0 if earlier is not None else None),
        replace(ZERO, prompt_tokens=middle, generation_tokens=10.0),
        replace(ZERO, prompt_tokens=(earlier or 0.0) + later, generation_tokens=20.0),
    )
    assert derive.prefill_lasts(view(*samples)) is lasts


def test_a_window_without_two_halves_says_nothing_of_how_long_prefill_lasts() -> None:
    seen = view(ZERO, ZERO)
    assert derive.prefill_lasts(replace(seen, later=None)) is None
    assert derive.prefill_lasts(replace(seen, later=seen.fast)) is None


def test_the_wait_is_the_queue_over_the_pace_of_finishes() -> None:
    ended = replace(ZERO, waiting=6.0, responses={"stop": 5.0})
    assert derive.expected_wait(view(replace(ZERO, waiting=6.0), ended)).value == pytest.approx(6.0 / (5.0 / 10.0))
    assert derive.expected_wait(view(ZERO, replace(ended, waiting=0.0))).value == 0.0
    assert derive.expected_wait(view(ZERO, replace(ended, waiting=1.0))).value == pytest.approx(2.0)
    assert derive.expected_wait(view(ZERO, replace(ended, waiting=None))).value is None
    assert derive.expected_wait(view(ZERO, replace(ZERO, waiting=6.0))).value is None
    assert derive.expected_wait(replace(view(ZERO, ended), paced=None)).value is None


def test_a_window_says_nothing_before_five_seconds() -> None:
    for seconds, seen in ((4.9, False), (5.0, True)):
        window = Window(90.0, 600.0)
        window.push(0.0, ZERO)
        window.push(seconds, ZERO)
        assert (derive.view_at(seconds, ZERO, {}, window, LIMITS) is not None) is seen
    window = Window(90.0, 600.0)
    window.push(0.0, ZERO)
    assert derive.view_at(0.0, ZERO, {}, window, LIMITS) is None


def test_a_view_spans_the_fast_window_its_later_half_and_the_slow_one() -> None:
    window = Window(90.0, 600.0)
    for at in range(0, 901, 5):
        window.push(float(at), ZERO)
    seen = derive.view_at(900.0, ZERO, {}, window, LIMITS)
    assert seen is not None
    assert seen.later is not None
    assert (seen.fast.seconds, seen.later.seconds) == (60.0, 30.0)
    assert 600.0 <= seen.slow.seconds <= 630.0
    assert len(seen.samples) == 13
    assert seen.role is Role.SERVE
    assert derive.view_at(900.0, ZERO, {}, window, LIMITS, Role.DECODE).role is Role.DECODE  # type: ignore[union-attr]


def deferred(*rows: tuple[float, float] | None) -> float | None:
    """Of samples with (capacity, deferred) waiting."""
    reasons = [{} if row is None else {"capacity": row[0], "deferred": row[1]} for row in rows]
    return derive.deferred_share(view(*(replace(ZERO, waiting_by_reason=each) for each in reasons)))


def test_the_deferred_share_is_of_all_that_waited_in_the_window() -> None:
    assert deferred((2.0, 1.0), (2.0, 3.0)) == 0.5
    assert deferred((2.0, 3.0), (2.0, 0.0)) == 0.0
    assert deferred((2.0, 3.0), None) is None
    assert deferred(None, (0.0, 0.25)) == 1.0
    only_capacity = replace(ZERO, waiting_by_reason={"capacity": 3.0})
    assert derive.deferred_share(view(only_capacity, replace(ZERO, waiting_by_reason={"deferred": 1.0}))) == 0.25


def test_no_wait_is_told_where_most_of_it_is_deferred() -> None:
    for capacity, known in ((1.0, True), (0.9, False)):
        split = {"capacity": capacity, "deferred": 1.0}
        ended = replace(ZERO, waiting=2.0, responses={"stop": 5.0}, waiting_by_reason=split)
        assert (derive.expected_wait(view(ZERO, ended)).value is not None) is known


def test_kv_growth_is_from_nothing_where_usage_was_not_known_before() -> None:
    unknown = replace(ZERO, kv_usage=None)
    grown = replace(ZERO, kv_usage=0.3, prompt_tokens=50.0, generation_tokens=10.0)
    assert derive.prefill_factor(Span(0.0, 60.0, unknown, grown)) == pytest.approx((50 + 300 - 60) / 10)
