"""Which lines prove a state, with what value and threshold, and from which number on a line is worth saying."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.levels import CALM, PROVEN, finished
from vllm_vitals.core.evidence import evidence
from vllm_vitals.core.http_answers import FailingAnswers
from vllm_vitals.core.kv_held import KvHeld
from vllm_vitals.core.outcomes import Finishes
from vllm_vitals.core.pace import Pace
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Evidence, Reading
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds

LIMITS = Thresholds()
SAMPLE = EngineSample(running=8.0, waiting=3.0, kv_usage=0.95)
NONE = Reading(None)
READINGS = dict.fromkeys(
    ("repeat_preemption_ratio", "recompute_tax_ratio", "useful_tokens_per_second", "expected_wait_seconds",
     "useful_tokens_baseline_per_second", "truncated_ratio"), NONE,
)  # fmt: skip


def lines(
    state: State,
    sample: EngineSample = SAMPLE,
    readings: dict[str, Reading] | None = None,
    pending: tuple[State, float] | None = None,
    settings: dict[str, str] | None = None,
    **facts: Any,
) -> tuple[Evidence, ...]:
    given = {**READINGS, **(readings or {})}
    return evidence(state, replace(CALM, **facts), given, sample, LIMITS, pending, settings)


def line(word: str, told: tuple[Evidence, ...]) -> Evidence | None:
    """The one line that has this word."""
    found = [one for one in told if word in one.text]
    assert len(found) < 2
    return found[0] if found else None


def numbers(word: str, told: tuple[Evidence, ...]) -> tuple[float | None, float | None] | None:
    one = line(word, told)
    return None if one is None else (one.value, one.threshold)


# the queue


@pytest.mark.parametrize(
    ("mean", "waiting", "draining", "says"),
    [
        (1.0, 3.0, True, "8 running, 3 waiting, the queue drains"),
        (1.0, 3.0, False, "8 running, 3 waiting, the queue does not drain"),
        (1.0, 1.0, False, "8 running, 1 waiting, the queue does not drain"),
        (1.0, 3.0, None, "8 running, 3 waiting"),
        (0.9, 3.0, True, "8 running, 3 waiting"),
        (None, 3.0, True, "8 running, 3 waiting"),
        (1.0, 0.0, True, "8 running, 0 waiting"),
    ],
)
def test_a_queue_has_a_trend_where_one_waits_on_average_and_now(
    mean: float | None, waiting: float, draining: bool | None, says: str
) -> None:
    told = lines(State.HEALTHY, replace(SAMPLE, waiting=waiting), mean_waiting=mean, draining=draining)
    one = line("running", told)
    assert one is not None
    assert one.text.endswith(says)
    assert one.value == waiting


def test_without_its_gauges_there_is_no_queue_to_speak_of() -> None:
    for unknown in ("running", "waiting"):
        assert line("running", lines(State.HEALTHY, replace(SAMPLE, **{unknown: None}))) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("share", "waiting", "said"), [(0.1, 3.0, True), (0.09, 3.0, False), (0.5, 0.0, False), (None, 3.0, False)]
)
def test_a_tenth_of_the_waiting_deferred_is_worth_a_line(share: float | None, waiting: float, said: bool) -> None:
    told = lines(State.HEALTHY, replace(SAMPLE, waiting=waiting), deferred_share=share)
    assert (line("deferred", told) is not None) is said


def test_throughput_is_told_against_the_usual_where_that_is_known() -> None:
    told = lines(State.HEALTHY, readings={"useful_tokens_per_second": Reading(50.0)})
    assert numbers("useful", told) == (50.0, None)
    usual = {"useful_tokens_per_second": Reading(50.0), "useful_tokens_baseline_per_second": Reading(70.0)}
    assert numbers("useful", lines(State.HEALTHY, readings=usual)) == (50.0, 70.0)
    assert line("useful", lines(State.HEALTHY)) is None


# evictions


def test_evictions_are_told_a_finish_or_where_few_finish_in_all() -> None:
    told = lines(State.THRASHING, completions=finished(50, 45), preemptions=45.0)
    assert numbers("per finished request", told) == (0.9, 0.5)
    told = lines(State.PREEMPTING, completions=None, preemptions=4.0)
    assert numbers("preemptions: 4", told) == (4.0, 10.0)
    assert line("preemptions", lines(State.PREEMPTING, completions=None, preemptions=None)) is None
    told = lines(State.PREEMPTING, completions=finished(50, None), preemptions=4.0)
    assert numbers("preemptions: 4", told) == (4.0, 10.0)


def test_repeats_and_the_tax_are_told_with_their_thresholds_and_bounds() -> None:
    told = lines(State.THRASHING, readings={"repeat_preemption_ratio": Reading(0.2)})
    assert numbers("twice or more", told) == (0.2, 0.1)
    told = lines(State.THRASHING, readings={"recompute_tax_ratio": Reading(0.5, 0.3, 0.7)})
    assert numbers("recomputing", told) == (0.5, 0.4)
    assert "between 30% and 70%" in str(line("recomputing", told))
    told = lines(State.THRASHING, readings={"recompute_tax_ratio": Reading(0.0, 0.0, 0.0)})
    assert "between" not in str(line("recomputing", told))


@pytest.mark.parametrize(("kv", "said"), [(0.69, True), (0.7, False), (None, False)])
def test_evictions_beside_a_cache_with_room_are_told_so(kv: float | None, said: bool) -> None:
    found = numbers("lack of room", lines(State.PREEMPTING, kv_max=kv, preemptions=3.0))
    assert found == ((kv, 0.7) if said else None)


@pytest.mark.parametrize(
    ("state", "facts", "said"),
    [
        (State.PREEMPTING, {}, True),
        (State.THRASHING, {}, True),
        (State.SATURATED, {}, False),
        (State.PREEMPTING, {"tax": 0.24}, True),
        (State.PREEMPTING, {"tax": 0.25}, False),
        (State.PREEMPTING, {"tax": None}, True),
        (State.PREEMPTING, {"mean_waiting": 0.9}, False),
        (State.PREEMPTING, {"mean_waiting": None}, False),
        (State.PREEMPTING, {"draining": True}, False),
        (State.PREEMPTING, {"draining": None}, False),
    ],
)
def test_overload_is_a_queue_that_stays_beside_a_small_tax(state: State, facts: dict[str, Any], said: bool) -> None:
    told = lines(state, **{"mean_waiting": 1.0, "draining": False, "tax": 0.1, "preemptions": 3.0, **facts})
    assert (line("overload", told) is not None) is said


def test_overload_says_the_wait_where_it_is_known() -> None:
    waits = {"expected_wait_seconds": Reading(30.0)}
    told = lines(State.PREEMPTING, readings=waits, mean_waiting=1.0, draining=False)
    assert numbers("overload", told) == (30.0, None)


def test_a_spiral_is_told_by_silence_and_collapse_from_their_thresholds_on() -> None:
    for silence, said in ((30.0, True), (29.9, False), (None, False)):
        found = numbers("without a generated token", lines(State.DEATH_SPIRAL, seconds_without_token=silence))
        assert found == ((silence, 30.0) if said else None)
    for share, said in ((0.3, True), (0.31, False), (None, False)):
        found = numbers("against before", lines(State.DEATH_SPIRAL, generation_vs_baseline=share))
        assert found == ((share, 0.3) if said else None)


# no progress


def test_a_stall_is_told_by_the_canary_or_by_how_long_nothing_moved() -> None:
    told = lines(State.STALLED, seconds_without_progress=60.0)
    assert numbers("KV growth", told) == (60.0, 45.0)
    assert line("canary", told) is None
    told = lines(State.STALLED, canary_unanswered_seconds=20.0, seconds_without_progress=44.0)
    assert line("canary", told) is not None
    assert line("KV growth", told) is None
    told = lines(State.STALLED, canary_unanswered_seconds=20.0, seconds_without_progress=45.0)
    assert numbers("KV growth", told) == (45.0, 45.0)
    assert line("KV growth", lines(State.STALLED, seconds_without_progress=None)) is None


@pytest.mark.parametrize(
    ("reasons", "share", "said"),
    [({"capacity": 2.0, "deferred": 1.0}, 0.33, True), ({"capacity": 2.0, "deferred": 2.0}, 0.5, False),
     ({"capacity": 2.0}, None, True), ({"capacity": 0.0}, None, False), ({}, None, False)],
)  # fmt: skip
def test_reasons_are_told_where_the_queues_own_line_does_not(
    reasons: dict[str, float], share: float | None, said: bool
) -> None:
    told = lines(State.STALLED, replace(SAMPLE, waiting_by_reason=reasons), deferred_share=share)
    assert (line("by reason", told) is not None) is said


@pytest.mark.parametrize(
    ("usage", "running", "decodes", "pulling"),
    [(0.9, 0.0, False, True), (0.89, 0.0, False, False), (0.9, 1.0, False, False), (0.9, 0.0, True, False)],
)
def test_a_full_prefill_engine_that_runs_nothing_waits_for_its_decode_side(
    usage: float, running: float, decodes: bool, pulling: bool
) -> None:
    sample = replace(SAMPLE, kv_usage=usage, running=running)
    assert (line("not pulling", lines(State.STALLED, sample, decodes=decodes)) is not None) is pulling
    assert numbers("KV cache:", lines(State.STALLED, sample)) == (usage, None)
    assert line("KV cache:", lines(State.STALLED, replace(sample, kv_usage=None))) is None
    told = lines(State.KV_PRESSURE, sample, decodes=decodes, kv_max=0.95)
    assert (line("not pulling", told) is not None) is (running == 0.0 and not decodes)
    assert numbers("KV cache max", told) == (0.95, 0.9)
    assert line("KV cache", lines(State.KV_PRESSURE, sample, kv_max=None)) is None


# failing and degraded


def test_failures_are_told_by_what_ended_and_by_what_was_answered() -> None:
    told = lines(State.FAILING, finishes=Finishes(60.0, 5.0, 15.0, 0.0))
    assert numbers("end in error", told) == (0.75, 0.5)
    assert line("answered 5xx", told) is None
    told = lines(State.FAILING, answers=FailingAnswers(15.0, 20.0, 60.0, 0.1, 1.0))
    assert numbers("answered 5xx", told) == (0.75, 0.5)
    assert line("end in error", lines(State.FAILING, finishes=Finishes(60.0, 5.0, 0.0, 9.0))) is None


def test_a_slowdown_is_told_in_milliseconds_against_its_usual() -> None:
    told = lines(State.DEGRADED, pace=Pace(0.0, 0.06, 0.03, 40, since=60.0))
    one = line("slower", told)
    assert one is not None
    assert (one.value, one.threshold) == (2.0, 1.5)
    assert "60.0 ms a token against 30.0 ms" in one.text
    assert line("draft", told) is None
    assert line("slower", lines(State.DEGRADED, pace=Pace(0.0, 0.06, 0.03, 40))) is None
    assert line("slower", lines(State.DEGRADED, pace=None)) is None
    rejected = Pace(0.0, 0.03, 0.03, 40, 60.0, acceptance=0.2, usual_acceptance=0.8)
    assert numbers("draft", lines(State.DEGRADED, pace=rejected)) == (0.2, 0.4)


@pytest.mark.parametrize(("errors", "said"), [(25.0, True), (24.0, False)])
def test_errors_beside_good_finishes_are_told_from_half_their_share(errors: float, said: bool) -> None:
    told = lines(State.DEGRADED, some_errors=Finishes(60.0, 1000.0 - errors, errors, 0.0))
    assert (line("end in error", told) is not None) is said
    assert not said or numbers("end in error", told) == (0.025, 0.05)


@pytest.mark.parametrize(
    ("ended", "abort", "repetition"),
    [
        (Finishes(60.0, 95.0, 0.0, 5.0), True, False),
        (Finishes(60.0, 96.0, 0.0, 4.0), False, False),
        (Finishes(60.0, 100.0, 0.0, 0.0, 5.0), False, True),
        (Finishes(60.0, 100.0, 0.0, 0.0, 4.9), False, False),
    ],
)
def test_one_request_in_twenty_that_was_given_up_or_cut_by_the_detector_is_worth_a_line(
    ended: Finishes, abort: bool, repetition: bool
) -> None:
    told = lines(State.HEALTHY, finishes=ended)
    assert (numbers("abort", told) is not None) is abort
    assert numbers("repetition", told) == ((0.05, None) if repetition else None)
    assert line("abort", lines(State.FAILING, finishes=replace(ended, errors=1.0))) is None


# the others


def test_what_is_held_is_told_with_its_floors_and_who_holds_it() -> None:
    told = lines(State.KV_HELD, kv_held=KvHeld(0.2, 90.0, (0.1, 0.15, 0.2)))
    assert numbers("held without", told) == (0.2, 0.05)
    assert "10%, 15%, 20%" in str(line("idle floor", told))
    assert line("leaked", told) is not None
    told = lines(State.KV_HELD, kv_held=KvHeld(0.2, 90.0), decodes=False)
    assert line("idle floor", told) is None
    assert line("not pulling", told) is not None
    assert line("leaked", told) is None
    assert line("held", lines(State.KV_HELD, kv_held=None)) is None


def test_starvation_is_told_by_its_two_factors() -> None:
    told = lines(State.STARVED, latency_factor=4.0, prefill_factor=9.0)
    assert numbers("inter-token", told) == (4.0, 3.0)
    assert numbers("prompt tokens", told) == (9.0, 5.0)
    told = lines(State.STARVED, latency_factor=None, prefill_factor=None)
    assert (line("inter-token", told), line("prompt tokens", told)) == (None, None)


@pytest.mark.parametrize(
    ("kv", "settings", "running", "why"),
    [
        (0.9, {}, 8.0, "the KV cache is the limit"),
        (0.89, {}, 8.0, "max_num_seqs or the token budget is"),
        (0.5, {"max_num_seqs": "8"}, 8.0, "max_num_seqs 8 is"),
        (0.5, {"max_num_seqs": "100"}, 95.0, "max_num_seqs 100 is"),
        (0.5, {"max_num_seqs": "100"}, 94.0, "max_num_seqs or the token budget is"),
        (0.5, {"max_num_seqs": "100"}, 69.0, "max_num_seqs 100 is not the limit"),
        (None, {}, 8.0, None),
    ],
)
def test_a_queue_without_evictions_has_its_cause(
    kv: float | None, settings: dict[str, str], running: float, why: str | None
) -> None:
    sample = replace(SAMPLE, running=running)
    told = lines(State.SATURATED, sample, settings=settings, kv_max=kv, queued_share=0.85)
    assert numbers("scrapes with a queue", told) == (0.85, 0.8)
    one = line("KV cache max", told)
    assert (one is None) is (why is None)
    assert one is None or (why or "") in one.text
    assert line("KV cache max", lines(State.SATURATED, sample, kv_max=0.5, deferred_share=0.5)) is None
    assert line("KV cache max", lines(State.SATURATED, sample, kv_max=0.5, deferred_share=0.49)) is not None
    assert line("scrapes with", lines(State.SATURATED, sample, queued_share=None)) is None


def test_the_wait_is_told_where_there_is_one() -> None:
    for wait, said in ((30.0, True), (0.0, False), (None, False)):
        told = lines(State.SATURATED, readings={"expected_wait_seconds": Reading(wait)})
        assert (numbers("queue wait", told) == (wait, None)) is said


@pytest.mark.parametrize(("share", "said"), [(0.05, True), (0.049, False), (None, False)])
def test_answers_that_are_cut_are_told_from_one_in_twenty_on(share: float | None, said: bool) -> None:
    told = lines(State.HEALTHY, readings={"truncated_ratio": Reading(share)})
    assert (numbers("truncated", told) == (share, None)) is said
    assert numbers("KV cache max", lines(State.HEALTHY, kv_max=0.3)) == (0.3, 0.9)
    assert line("KV cache max", lines(State.HEALTHY, kv_max=None)) is None


def test_who_sleeps_or_is_paused_is_told_so_and_who_waits_for_it() -> None:
    assert numbers("wake it", lines(State.ASLEEP)) == (3.0, None)
    assert line("wake it", lines(State.ASLEEP, replace(SAMPLE, waiting=0.0))) is None
    assert "00:01:00" in str(line("/pause", lines(State.PAUSED, paused_since=60.0)))
    assert line("/pause", lines(State.PAUSED, paused_since=None)) is None


def test_refusals_and_weight_updates_are_told_in_any_state() -> None:
    assert numbers("refused", lines(State.IDLE, rejected=4.0)) == (4.0, None)
    assert line("refused", lines(State.IDLE, rejected=0.0)) is None
    assert line("weights", lines(State.IDLE, replace(SAMPLE, updating_weights=True))) is not None
    assert line("weights", lines(State.IDLE)) is None


# what is about to be


def test_a_worse_state_that_is_pending_comes_first_with_its_wait() -> None:
    told = lines(State.PREEMPTING, pending=(State.THRASHING, 12.0))
    assert (told[0].value, told[0].threshold) == (12.0, 30.0)
    told = lines(State.PREEMPTING, pending=(State.DEGRADED, 12.0))
    assert told[0].threshold == 600.0
    assert line("pending", lines(State.THRASHING, pending=(State.PREEMPTING, 12.0))) is None
    assert line("pending", lines(State.THRASHING, pending=(State.THRASHING, 12.0))) is None


def test_a_state_below_its_level_of_entry_is_recovering() -> None:
    met = PROVEN["thrashing"][0].met
    assert line("recovering", lines(State.THRASHING, **met)) is None
    assert line("recovering", lines(State.THRASHING, **{**met, "mean_waiting": 0.9})) is not None
    assert line("recovering", lines(State.SATURATED)) is None  # taken back at once
