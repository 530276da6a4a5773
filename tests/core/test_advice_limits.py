"""From which number on advice is given: each limit from both sides, told by the knobs that it names."""

from dataclasses import replace

import pytest

from tests.core.levels import CALM
from vllm_vitals.core.advice import advise
from vllm_vitals.core.pace import Pace
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.core.state_machine import Facts
from vllm_vitals.core.states import State

LONG = {"prompt_tokens_mean": Reading(200.0), "output_tokens_mean": Reading(100.0)}


def knobs(
    state: State,
    readings: dict[str, Reading],
    facts: Facts | None = CALM,
    settings: dict[str, str] | None = None,
    sample: EngineSample | None = None,
) -> list[str]:
    return [advice.knob for advice in advise(state, facts, readings, sample or EngineSample(), settings or {})]


@pytest.mark.parametrize(("share", "said"), [(0.05, ["max_tokens"]), (0.049, [])])
def test_one_answer_in_twenty_that_is_cut_is_worth_a_cap(share: float, said: list[str]) -> None:
    lengths = {"output_tokens_mean": Reading(100.0), "output_tokens_cv": Reading(0.2)}
    assert knobs(State.HEALTHY, {"truncated_ratio": Reading(share), **lengths}) == said


def test_a_cap_needs_lengths_and_a_known_share() -> None:
    assert knobs(State.HEALTHY, {"truncated_ratio": Reading(0.5)}) == []
    assert knobs(State.HEALTHY, {"output_tokens_mean": Reading(100.0), "output_tokens_cv": Reading(0.2)}) == []


@pytest.mark.parametrize(
    ("lower", "waiting", "prompt", "said"),
    [
        (5.0, 0.9, 200.0, ["max_num_batched_tokens"]),
        (4.9, 0.9, 200.0, []),
        (None, 0.9, 200.0, []),
        (5.0, 1.0, 200.0, []),
        (5.0, None, 200.0, []),
        (5.0, 0.9, 199.0, []),
    ],
)
def test_first_tokens_are_late_at_five_seconds_for_long_inputs_without_a_queue(
    lower: float | None, waiting: float | None, prompt: float, said: list[str]
) -> None:
    readings = {
        "ttft_p99_seconds": Reading(None if lower is None else lower + 1, lower, 10.0),
        "prompt_tokens_mean": Reading(prompt), "output_tokens_mean": Reading(100.0),
    }  # fmt: skip
    assert knobs(State.HEALTHY, readings, replace(CALM, mean_waiting=waiting)) == said


@pytest.mark.parametrize(
    ("lately", "said"),
    [
        ({"queued_seconds": 0.9}, ["max_num_batched_tokens"]),
        ({"queued_seconds": 1.0}, []),
        ({"queued_seconds": 20.0, "evicted_lately": 40.0}, []),
        ({"evicted_lately": 1.0}, []),
    ],
)
def test_first_tokens_that_a_queue_made_late_ten_minutes_ago_ask_for_no_larger_steps_now(
    lately: dict[str, float], said: list[str]
) -> None:
    readings = {"ttft_p99_seconds": Reading(9.0, 8.0, 10.0), **LONG}
    assert knobs(State.HEALTHY, readings, replace(CALM, mean_waiting=0.0, **lately)) == said


def test_late_first_tokens_need_facts_and_their_reading() -> None:
    assert knobs(State.HEALTHY, {"ttft_p99_seconds": Reading(9.0, 8.0, 10.0), **LONG}, None) == []
    assert knobs(State.HEALTHY, LONG) == []


@pytest.mark.parametrize(
    ("made", "usual", "runs_away"),
    [
        (4096.0, 512.0, True),
        (4095.0, 512.0, False),
        (4096.0, 10.0, True),
        (4800.0, 600.0, True),
        (4799.0, 600.0, False),
    ],
)
def test_an_answer_runs_away_at_eight_times_the_usual_and_no_less_than_4096_tokens(
    made: float, usual: float, runs_away: bool
) -> None:
    readings = {"inflight_output_tokens_estimate": Reading(made), "output_tokens_mean": Reading(usual)}
    said = ["cancel_oldest_request", "default_max_tokens"] if runs_away else []
    assert knobs(State.HEALTHY, readings) == said
    assert knobs(State.IDLE, {"inflight_output_tokens_estimate": Reading(made)}) == []


@pytest.mark.parametrize(("kv", "said"), [(0.69, ["replicas", "max_num_seqs"]), (0.7, ["replicas"])])
def test_more_slots_are_for_a_cache_below_seventy_percent(kv: float, said: list[str]) -> None:
    assert knobs(State.SATURATED, {"kv_cache_usage_max_ratio": Reading(kv)}) == said


def test_more_slots_are_not_for_an_engine_that_does_not_fill_those_it_has() -> None:
    few = EngineSample(running=10.0)
    room = {"kv_cache_usage_max_ratio": Reading(0.2)}
    assert "max_num_seqs" not in knobs(State.SATURATED, room, settings={"max_num_seqs": "100"}, sample=few)
    assert knobs(State.SATURATED, {}) == ["replicas"]


@pytest.mark.parametrize(
    ("state", "prompt", "reserved", "knob"),
    [
        (State.DEATH_SPIRAL, 200.0, "true", "watermark"),
        (State.DEATH_SPIRAL, 200.0, "false", "scheduler_reserve_full_isl"),
        (State.DEATH_SPIRAL, 199.0, "true", "max_num_seqs"),
        (State.DEATH_SPIRAL, 199.0, "false", "max_num_seqs"),
        (State.THRASHING, 200.0, "true", "max_num_seqs"),
        (State.THRASHING, 200.0, "false", "max_num_seqs"),
    ],
)
def test_a_spiral_of_long_inputs_is_met_by_reserving_for_them(
    state: State, prompt: float, reserved: str, knob: str
) -> None:
    readings = {"prompt_tokens_mean": Reading(prompt), "output_tokens_mean": Reading(100.0)}
    assert knobs(state, readings, settings={"scheduler_reserve_full_isl": reserved}) == ["gateway_concurrency", knob]


def said(state: State, facts: Facts | None = CALM, **more: object) -> str:
    readings = more.pop("readings", {})
    return " ".join(f"{one.symptom} {one.size}" for one in advise(state, facts, readings, EngineSample(), {}, **more))  # type: ignore[arg-type]


def test_a_loop_is_called_one_in_a_spiral_and_says_how_long_the_inputs_are_that_feed_it() -> None:
    assert "preempt again" in said(State.DEATH_SPIRAL)
    assert "preempt again" not in said(State.THRASHING)
    assert "(200 tokens on average)" in said(State.DEATH_SPIRAL, readings=LONG)


def test_a_slow_engine_is_asked_about_its_pace_or_where_that_is_not_it_about_its_errors() -> None:
    slow = said(State.DEGRADED, replace(CALM, pace=Pace(0.0, 0.06, 0.03, 30)))
    assert slow != said(State.DEGRADED, replace(CALM, pace=None)) == said(State.FAILING)
    assert said(State.DEGRADED, None) == slow


def test_held_blocks_are_the_decode_sides_only_where_nothing_decodes_here() -> None:
    leaked = said(State.KV_HELD, CALM)
    assert "prefill engine" not in leaked
    assert "prefill engine" in said(State.KV_HELD, replace(CALM, decodes=False))
    assert said(State.KV_HELD, None) == leaked


@pytest.mark.parametrize(
    ("facts", "wait", "size"),
    [
        (replace(CALM, mean_waiting=1.0, draining=False), 30.0, "30 s"),
        (replace(CALM, mean_waiting=1.0, draining=False), None, "overload"),
        (replace(CALM, mean_waiting=0.9, draining=False), 30.0, None),
        (None, 30.0, None),
    ],
)
def test_evictions_that_hurt_little_ask_for_something_only_under_overload(
    facts: Facts | None, wait: float | None, size: str | None
) -> None:
    found = advise(State.PREEMPTING, facts, {"expected_wait_seconds": Reading(wait)}, EngineSample(), {})
    assert bool(found) is (size is not None)
    assert size is None or wait is None or size in str(found)
    assert "None" not in str(found)


def test_the_token_budget_is_halved_for_decode_and_raised_by_half_for_first_tokens() -> None:
    settings = {"max_num_batched_tokens": "8192"}
    halved = advise(State.STARVED, CALM, {}, EngineSample(), settings)[-1]
    assert (halved.knob, halved.size) == ("max_num_batched_tokens", "from 8192 to 4096")
    late = {"ttft_p99_seconds": Reading(6.0, 5.0, 10.0), **LONG}
    (raised,) = advise(State.HEALTHY, CALM, late, EngineSample(), settings)
    assert (raised.knob, raised.size) == ("max_num_batched_tokens", "from 8192 to 12288")


@pytest.mark.parametrize(("share", "deferred"), [(0.5, True), (0.49, False), (None, False)])
def test_a_queue_that_is_deferred_is_not_answered_with_replicas(share: float | None, deferred: bool) -> None:
    found = knobs(State.SATURATED, {}, replace(CALM, deferred_share=share))
    assert ("replicas" not in found) is deferred
    assert knobs(State.SATURATED, {}, None) == ["replicas"]


@pytest.mark.parametrize(
    ("state", "preemptions", "said_so"),
    [
        (State.HEALTHY, 0.0, True),
        (State.HEALTHY, None, True),
        (State.HEALTHY, 1.0, False),
        (State.KV_PRESSURE, 0.0, False),
    ],
)
def test_a_larger_cap_is_not_for_an_engine_short_of_memory(
    state: State, preemptions: float | None, said_so: bool
) -> None:
    cut = {"truncated_ratio": Reading(0.5), "output_tokens_mean": Reading(100.0), "output_tokens_cv": Reading(0.2)}
    assert knobs(state, cut, replace(CALM, preemptions=preemptions)) == ["max_tokens"] * said_so
    assert knobs(State.HEALTHY, cut, None) == ["max_tokens"]
