"""The machine: holds, releases, unknown verdicts, and one state at a time. Its rules' levels are in test_levels."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.levels import CALM, finished
from vllm_vitals.core.http_answers import FailingAnswers
from vllm_vitals.core.outcomes import Finishes, exceeds
from vllm_vitals.core.state_machine import Facts, Machine, all_of
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds

LIMITS = Thresholds()
BAD = replace(CALM, preemptions=60.0, completions=finished(50, 45), mean_waiting=5.0)  # thrashing


def after(seconds: float, facts: Facts, machine: Machine | None = None, start: float = 0.0) -> State:
    machine, state = machine or Machine(), State.UNKNOWN
    for at in range(int(start), int(start + seconds) + 1, 5):
        state = machine.step(facts, LIMITS, float(at))
    return state


def test_thrashing_must_hold_30_s_and_is_released_60_s_below_half() -> None:
    machine, bad = Machine(), BAD
    assert after(25, bad, machine) is State.PREEMPTING
    assert after(5, bad, machine, start=30) is State.THRASHING
    half = replace(bad, completions=finished(50, 13))
    assert after(200, half, machine, start=40) is State.THRASHING
    below = replace(bad, completions=finished(50, 12))
    assert after(55, below, machine, start=300) is State.THRASHING
    assert after(10, below, machine, start=360) is State.PREEMPTING


def test_a_blip_never_enters_and_a_single_unknown_never_leaves() -> None:
    machine, bad = Machine(), BAD
    for at in range(0, 200, 10):
        state = machine.step(bad if at % 20 else CALM, LIMITS, float(at))
        assert state is not State.THRASHING
    after(40, bad, machine, start=200)
    unknown = replace(bad, preemptions=None, mean_waiting=None)
    assert machine.step(unknown, LIMITS, 245.0) is State.THRASHING
    assert after(55, unknown, machine, start=250) is State.THRASHING
    assert after(70, unknown, machine, start=310) is not State.THRASHING


def test_a_queue_that_drains_is_no_thrash() -> None:
    assert after(120, replace(BAD, draining=True)) is State.PREEMPTING


def test_repeats_alone_prove_thrashing_when_they_are_many() -> None:
    facts = replace(CALM, preemptions=12.0, mean_waiting=3.0, completions=finished(100, 40, repeated=20))
    assert after(60, facts) is State.THRASHING
    assert after(300, replace(facts, completions=finished(100, 40, repeated=10))) is State.PREEMPTING


def test_a_spiral_by_ratio_needs_the_tax_as_well() -> None:
    facts = replace(CALM, preemptions=600.0, mean_waiting=30.0, completions=finished(60, 600), tax=0.5)
    assert after(60, facts) is State.DEATH_SPIRAL
    assert after(300, replace(facts, tax=0.39)) is State.THRASHING


def test_a_spiral_by_collapse_is_held_30_s() -> None:
    facts = replace(CALM, preemptions=12.0, generation_vs_baseline=0.3)
    assert after(25, facts) is State.PREEMPTING
    assert after(30, facts) is State.DEATH_SPIRAL


def test_chance_does_not_raise_a_ratio() -> None:
    assert not exceeds(9, 1, 0.5, at_least=10)
    assert not exceeds(14, 20, 0.5, at_least=10)
    assert exceeds(15, 20, 0.5, at_least=10)


def test_asleep_beats_what_the_frozen_gauges_say() -> None:
    assert after(300, replace(CALM, asleep=True, seconds_without_progress=300.0)) is State.ASLEEP


def test_without_gauges_the_calm_states_are_unknown() -> None:
    assert after(60, replace(CALM, work=None)) is State.UNKNOWN
    assert after(60, replace(CALM, busy=False, work=0.0)) is State.IDLE


verdicts = st.sampled_from([True, False, None])


@given(st.lists(verdicts, max_size=4))
def test_three_valued_logic_is_kleenes(values: list[bool | None]) -> None:
    known = [value for value in values if value is not None]
    assert all_of(*values) is (False if False in known else None if None in values else True)


maybe = st.one_of(st.none(), st.floats(min_value=0, max_value=1e6))
facts = st.builds(
    Facts, seconds=st.floats(min_value=5, max_value=60), work=maybe, asleep=st.booleans(), busy=st.booleans(),
    preemptions=maybe, tax=maybe, mean_waiting=maybe, draining=verdicts, generated=maybe, seconds_without_token=maybe,
    completions=st.one_of(st.none(), st.builds(finished, st.floats(20, 1e4), st.floats(0, 1e4), maybe)),
    generation_vs_baseline=maybe, seconds_without_progress=maybe, stall_limit=st.just(45.0), latency_factor=maybe,
    prefill_factor=maybe, queued_share=maybe, kv_max=maybe, running_full=maybe, decodes=st.booleans(),
)  # fmt: skip


@given(st.lists(facts, max_size=40))
def test_no_input_breaks_the_machine_and_a_replay_gives_the_same_states(polls: list[Facts]) -> None:
    def play() -> list[State]:
        machine = Machine()
        return [machine.step(poll, LIMITS, 5.0 * at) for at, poll in enumerate(polls)]

    assert play() == play()


def ended(good: float, errors: float) -> dict[str, Finishes]:
    """A minute that holds enough finishes and enough errors."""
    minute = Finishes(60, good, errors, 0)
    return {"finishes": minute, "some_errors": minute}


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        # the shares of errors and of 5xx are never added
        ({"answers": FailingAnswers(10, 25, 60, 0.4, 1.0), **ended(30, 20)}, State.DEGRADED),
        ({"finishes": Finishes(60, 0, 0, 40)}, State.HEALTHY),  # given up: neither errors nor completions
        ({"seconds_without_progress": 90.0, "paused_since": 0.0}, State.PAUSED),
        ({"paused_since": 0.0, "asleep": True}, State.ASLEEP),
        ({"preemptions": 50.0, "seconds_without_token": 30.0, "kv_max": 0.69}, State.PREEMPTING),
        ({"preemptions": 50.0, "seconds_without_token": 30.0, "kv_max": None}, State.DEATH_SPIRAL),
    ],
)
def test_what_fails_and_what_is_paused(facts: dict[str, object], state: State) -> None:
    assert after(120, replace(CALM, **facts)) is state  # type: ignore[arg-type]


def test_failing_becomes_degraded_once_a_quarter_fails_for_a_minute() -> None:
    machine = Machine()
    assert after(40, replace(CALM, **ended(0, 40)), machine) is State.FAILING
    few = replace(CALM, **ended(31, 10))
    assert after(55, few, machine, start=400) is State.FAILING
    assert after(10, few, machine, start=460) is State.DEGRADED
