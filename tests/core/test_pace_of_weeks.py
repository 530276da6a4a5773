"""An engine against its own past, on weeks of a plausible one: never slower for traffic, slower where its steps are."""

from dataclasses import replace

import pytest

from tests.core.levels import CALM
from tests.core.load_model import MINUTE, Load, Row
from vllm_vitals.core.pace import STALE_S, Pace, UsualPace
from vllm_vitals.core.state_machine import Machine
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds

LIMITS = Thresholds()
DAY = 86_400.0


def entries(load: Load, days: float) -> list[float]:
    """When (s) it is first called degraded, each time."""
    pace, machine, found, before = UsualPace(), Machine(), list[float](), State.HEALTHY
    said: Pace | None = None
    for at, row in load.rows(days):
        if row is not None:
            said = pace.look(at, MINUTE, row, LIMITS)
        if said is not None and at - said.at > STALE_S:
            said = None
        state = machine.step(replace(CALM, pace=said), LIMITS, at)
        if state is State.DEGRADED is not before:
            found.append(at)
        before = state
    return found


@pytest.mark.parametrize("closed", [False, True])
def test_traffic_alone_makes_no_engine_slow(closed: bool) -> None:
    assert entries(Load(1, closed), 3.0) == []


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("seed", [5, 16])
def test_an_engine_at_1_6_times_its_step_time_is_found_within_hours(seed: int, closed: bool) -> None:
    start = 1.6 * DAY
    found = entries(Load(seed, closed, 1.6, start), 1.9)
    assert found
    assert start < found[0]


ROW: Row = (8.0, 40_000.0, 2.0, 0.03, -1.0)
SLOW: Row = (8.0, 40_000.0, 2.0, 0.06, -1.0)


def past(windows: int = 60) -> UsualPace:
    pace = UsualPace()
    for number in range(windows):
        pace.look(number * MINUTE, MINUTE, ROW, LIMITS)
    return pace


def test_one_slow_window_before_a_pause_in_traffic_is_no_slowdown() -> None:
    now = past().look(60 * MINUTE, MINUTE, SLOW, LIMITS)
    assert now is not None
    assert now.factor == pytest.approx(1.0)
    assert now.since is None


def test_a_slowdown_outlasts_the_day_that_it_is_compared_with() -> None:
    pace, now = past(), None
    for hour in range(1, 50):
        for minute in range(6):
            now = pace.look(hour * 3600 + minute * MINUTE, MINUTE, SLOW, LIMITS)
    assert now is not None
    assert now.factor == pytest.approx(2.0)


def test_what_stays_slow_for_more_than_a_week_is_how_it_is_now() -> None:
    pace, now = past(), None
    for number in range(9 * 24):
        now = pace.look(3600.0 * (2 + number), MINUTE, SLOW, LIMITS)
    for number in range(60):
        now = pace.look(3600.0 * 230 + number * MINUTE, MINUTE, SLOW, LIMITS)
    assert now is not None
    assert now.factor == pytest.approx(1.0)


def test_clocks_throttled_in_steps_become_no_usual() -> None:
    pace, now = past(240), None
    for step, gap in enumerate((0.036, 0.042, 0.048)):
        for minute in range(30):
            row = (8.0, 40_000.0, 2.0, gap, -1.0)
            now = pace.look((240 + 30 * step + minute) * MINUTE, MINUTE, row, LIMITS)
    assert now is not None
    assert now.factor == pytest.approx(1.6)
    assert now.usual == pytest.approx(0.03)


def test_a_slow_server_is_compared_at_its_prefill_share_not_at_its_prompts_a_second() -> None:
    """At equal running a slow engine computes fewer prompt tokens a second; each of its steps holds as many."""
    pace = UsualPace()
    for number in range(120):
        crowded = number % 2 == 1  # half of the past has twice the prefill, and steps that are longer for it
        row = (8.0, 40_000.0, 8.0 if crowded else 4.0, 0.045 if crowded else 0.03, -1.0)
        pace.look(number * MINUTE, MINUTE, row, LIMITS)
    now = None
    for number in range(5):
        now = pace.look((120 + number) * MINUTE, MINUTE, (8.0, 40_000.0, 4.0, 0.048, -1.0), LIMITS)
    assert now is not None
    assert now.factor == pytest.approx(1.6)


def test_one_window_of_rejected_drafts_is_no_collapse_and_five_are() -> None:
    pace = UsualPace()
    for number in range(60):
        pace.look(number * MINUTE, MINUTE, (8.0, 40_000.0, 2.0, 0.03, 0.9), LIMITS)
    seen = [pace.look((60 + number) * MINUTE, MINUTE, (8.0, 40_000.0, 2.0, 0.033, 0.3), LIMITS) for number in range(5)]
    assert [one is not None and one.rejected for one in seen] == [False, False, True, True, True]
