"""What is said in the minutes after a change: worked, draining, not in force, no effect, or nothing to see."""

from collections.abc import Iterable

import pytest

from tests.typed import typed
from vllm_vitals.core.follow_up import FollowUp, change
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State

KEY = EngineKey("gpu-1:8000", "chat", "0")
RECORDINGS = "tests/data/recordings"
Moment = tuple[float, float, float, float]  # s, preemptions so far, running, waiting


def said(text: str, moments: Iterable[Moment], settings: dict[str, str] | None = None) -> tuple[str, str]:
    follow = FollowUp(change(text))
    for at, preemptions, running, waiting in moments:
        sample = EngineSample(running=running, waiting=waiting, preemptions=preemptions)
        engine = EngineSnapshot(KEY, State.DEATH_SPIRAL, 0.0, 1000.0 + at, sample=sample)
        follow.see(TargetSnapshot(KEY.target, True, 1000.0 + at, 0.1, settings=settings or {}, engines=(engine,)))
    [outcome] = follow.outcomes()
    return outcome.word, outcome.text


def minutes(until: float, evicting: float, first: float, last: float) -> list[Moment]:
    """Every 5 s: 2 preemptions a second until ``evicting``; those inside go evenly from ``first`` to ``last``."""
    times = [5.0 * k for k in range(int(until // 5) + 1)]
    return [(t, 2 * min(t, evicting), 6.0, first + (last - first) * t / until - 6) for t in times]


def test_a_cap_that_worked_says_after_how_long() -> None:
    assert said("cap=6", minutes(120, 50, 40, 6)) == ("worked", "preemptions 0 after 50 s, for 70 s now; 0 wait")


def test_those_inside_keep_a_loop_going_and_how_long_is_said() -> None:
    """The cap of 6 did not end degrade_and_recover in 90 s: nobody said that 34 waited inside."""
    word, text = said("gateway_concurrency=6", minutes(90, 90, 40, 32))
    assert word == "draining"
    assert "because 26 more are inside (26 wait): about 292 s at this rate, or abort them" in text


def test_a_cap_that_lets_others_in_is_not_in_force() -> None:
    word, text = said("cap=6", minutes(120, 120, 40, 40))
    assert word == "not in force"
    assert "40 are inside (40 at first)" in text


def test_a_cap_that_holds_and_does_not_help_is_no_cure() -> None:
    word, text = said("cap=6", minutes(120, 120, 6, 6))
    assert word == "no effect"
    assert "with 6 inside, within the cap" in text


def test_a_restart_that_did_not_take_the_value_is_seen_in_the_settings() -> None:
    assert said("max_num_seqs=48", minutes(120, 120, 40, 40), {"max_num_seqs": "64"})[0] == "not in force"
    assert said("max_num_seqs=48", minutes(120, 120, 40, 40), {"max_num_seqs": "48"})[0] == "no effect"
    assert (
        said("scheduler_reserve_full_isl=true", minutes(120, 20, 40, 9), {"scheduler_reserve_full_isl": "True"})[0]
        == "worked"
    )


def test_a_restart_resets_counters_and_is_no_preemption() -> None:
    moments = [(0.0, 500.0, 6.0, 30.0), (10.0, 510.0, 6.0, 30.0), *((20.0 + t, 0.0, 6.0, 0.0) for t in range(0, 60, 5))]
    assert said("max_num_seqs=6", moments) == ("worked", "preemptions 0 after 10 s, for 65 s now; 0 wait")


def test_nothing_to_end_and_too_little_time_are_said() -> None:
    assert said("cap=6", minutes(120, 0, 5, 5))[0] == "calm"
    assert said("cap=6", minutes(20, 20, 40, 40))[0] == "too early"


@pytest.mark.parametrize(
    ("moments", "word"),
    [
        (minutes(60, 30, 40, 6), "worked"),  # quiet for 30 s
        (minutes(55, 30, 40, 6), "no effect"),
        (minutes(30, 30, 40, 6), "no effect"),
        (minutes(25, 25, 40, 6), "too early"),
        (minutes(30, 0, 5, 5), "calm"),
        (minutes(25, 0, 5, 5), "too early"),
        (minutes(100, 100, 40, 36), "not in force"),  # nine tenths are still inside
        (minutes(100, 100, 40, 35.9), "draining"),
        (minutes(100, 100, 40, 6.1), "draining"),
    ],
)
def test_half_a_minute_of_quiet_and_a_tenth_less_inside_are_what_counts(moments: list[Moment], word: str) -> None:
    assert said("cap=6", moments)[0] == word


def test_a_counter_that_begins_anew_adds_what_it_shows() -> None:
    moments = [(0.0, 500.0, 6.0, 30.0), (10.0, 510.0, 6.0, 30.0), (20.0, 3.0, 6.0, 30.0), (30.0, 5.0, 6.0, 30.0)]
    assert said("max_num_seqs=6", moments)[1].startswith("15 preemptions in 30 s: max_num_seqs=6 does not end them")


@pytest.mark.parametrize(("value", "word"), [("48.0", "no effect"), ("fp8", "not in force"), ("49", "not in force")])
def test_a_setting_is_in_force_where_it_is_the_same_number_or_word(value: str, word: str) -> None:
    assert said("max_num_seqs=48", minutes(120, 120, 40, 40), {"max_num_seqs": value})[0] == word


def test_what_is_not_counted_is_neither_a_preemption_nor_an_end_of_them() -> None:
    follow = FollowUp(change("cap=6"))
    for at, preemptions, running, waiting in (
        (0.0, 10.0, 6.0, 9.0), (10.0, None, 6.0, 9.0), (20.0, 12.0, 6.0, None), (25.0, 12.0, None, 9.0),
        (50.0, 12.0, 6.0, None),
    ):  # fmt: skip
        sample = EngineSample(running=running, waiting=waiting, preemptions=preemptions)
        engine = EngineSnapshot(KEY, State.DEATH_SPIRAL, 0.0, 1000.0 + at, sample=sample)
        follow.see(TargetSnapshot(KEY.target, True, 1000.0 + at, 0.1, engines=(engine,)))
    [outcome] = follow.outcomes()
    assert (outcome.word, outcome.text) == ("worked", "preemptions 0 after 20 s, for 30 s now; 0 wait")


@pytest.mark.parametrize(("value", "number"), [("1", 1.0), ("1.5", 1.5)])
def test_a_cap_of_one_is_a_cap(value: str, number: float) -> None:
    assert change(f"concurrency={value}").number == number
    with pytest.raises(ValueError, match="above 0"):
        change("cap=0.9")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cap", "--after: expected NAME=VALUE such as cap=5, got 'cap'"),
        ("=5", "expected NAME=VALUE"),
        ("cap=", "expected NAME=VALUE"),
        ("cap=many", "--after: cap: expected a number of requests above 0, got 'many'"),
        ("cap=0", "expected a number of requests above 0"),
    ],
)
def test_a_change_that_cannot_be_read_is_one_line(text: str, why: str) -> None:
    done = typed("check", "http://127.0.0.1:9", "--after", text)
    assert done.exit_code == 3
    assert why in done.stderr


def test_it_follows_a_recording_and_neither_watch_nor_prometheus() -> None:
    path = f"{RECORDINGS}/spiral_chunked/metrics.jsonl.gz"
    done = typed("check", "--replay", path, "--after", "cap=5")
    assert "after gateway_concurrency=5, spiral_chunked tiny engine 0: no" in done.stdout.replace("\n", " ")
    assert typed("check", "http://127.0.0.1:9", "--watch", "--after", "cap=5").exit_code == 3
