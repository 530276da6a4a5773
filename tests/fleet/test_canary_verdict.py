"""The frozen engine of engine_hang: its metrics show an idle server from 41.5 to 86.5 s after the first scrape."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from vllm_vitals.core.snapshot import Canary, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings import recording

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
FROZEN, THAWED = 41.5, 86.5


def play(name: str, canaries: Sequence[Canary]) -> list[tuple[float, TargetSnapshot]]:
    """Judge a recording; a canary's times count from the first scrape, and its end is told when it happens."""
    judge, polls, waiting = TargetEvaluator(name), [], sorted(canaries, key=lambda c: c.sent_at + c.took_s)
    scrapes = list(recording.read(RECORDINGS / name / "metrics.jsonl.gz"))
    start = scrapes[0].at
    for scrape in scrapes:
        while waiting and start + waiting[0].sent_at + waiting[0].took_s <= scrape.at:
            done = waiting.pop(0)
            judge.canary(Canary(start + done.sent_at, done.took_s, done.outcome, done.detail))
        polls.append((scrape.at - start, judge.observe(scrape)))
    return polls


def every(seconds: float, deadline: float) -> list[Canary]:
    """What a canary every so many seconds meets: an answer in 0.2 s, or its deadline while the engine is frozen."""
    times = [n * seconds for n in range(1, int(120 / seconds))]
    hangs = [FROZEN - 0.2 < t < THAWED - deadline for t in times]
    return [Canary(t, deadline, "timeout") if h else Canary(t, 0.2, "ok") for t, h in zip(times, hangs, strict=True)]


def states(polls: list[tuple[float, TargetSnapshot]]) -> dict[float, State]:
    return {t: poll.engines[0].state for t, poll in polls}


def test_with_a_canary_the_frozen_engine_is_called_stalled_and_let_go_when_it_thaws() -> None:
    polls = play("engine_hang", every(15.0, 10.0))
    seen = states(polls)
    assert all(state is State.STALLED for t, state in seen.items() if 57 <= t <= THAWED)
    assert all(state in (State.HEALTHY, State.IDLE, State.UNKNOWN) for t, state in seen.items() if t < 55 or t > 89)
    at_70 = next(poll for t, poll in polls if t > 70).engines[0]
    assert at_70.evidence[0].text == "canary: no answer for 26 s, and nothing moved since it was sent"
    assert polls[-1][1].canaries == {"ok": 4, "timeout": 3, "error": 0}


def test_without_a_canary_the_exporter_says_what_it_cannot_see() -> None:
    polls = play("engine_hang", [])
    frozen = [poll.engines[0] for t, poll in polls if 43 < t < 86]
    assert all(engine.state in (State.HEALTHY, State.IDLE) for engine in frozen)
    assert all("only a canary or the gateway can tell" in engine.unknown[0] for engine in frozen)
    assert all(poll.canary is None and poll.canaries == {} for _, poll in polls)


def test_a_canary_that_was_answered_takes_that_doubt_away() -> None:
    idle = [poll.engines[0] for t, poll in play("engine_hang", every(15.0, 10.0)) if t > 122]
    assert idle
    assert not any("canary" in line for engine in idle for line in engine.unknown)


@pytest.mark.parametrize("name", ["saturated_no_preemption", "spiral_chunked", "overcommit_thrash", "dp2_pressure"])
def test_a_timeout_at_a_server_that_moves_is_only_a_latency_sample(name: str) -> None:
    late = [Canary(float(t), 10.0, "timeout") for t in range(5, 100, 15)]
    polls = play(name, late)
    assert states(polls) == states(play(name, []))
    assert polls[-1][1].canary is not None
    assert polls[-1][1].canary.took_s == 10.0


def test_a_timeout_is_not_believed_before_a_scrape_taken_after_its_deadline() -> None:
    sent = 45.0
    seen = states(play("engine_hang", [Canary(sent, 10.0, "timeout")]))
    assert not any(state is State.STALLED for t, state in seen.items() if t < sent + 10.0)
    assert any(state is State.STALLED for state in seen.values())


def test_an_error_neither_proves_a_stall_nor_clears_one() -> None:
    only_errors = states(play("engine_hang", [Canary(float(t), 0.1, "error", "HTTP 500") for t in range(45, 85, 5)]))
    assert State.STALLED not in only_errors.values()
    then_errors = [Canary(45.0, 10.0, "timeout"), Canary(60.0, 0.1, "error", "HTTP 503")]
    seen = states(play("engine_hang", then_errors))
    assert all(state is State.STALLED for t, state in seen.items() if 57 <= t <= THAWED)


def test_an_answer_clears_a_stall_even_before_a_counter_moves() -> None:
    seen = states(play("engine_hang", [Canary(45.0, 10.0, "timeout"), Canary(60.0, 5.0, "ok")]))
    assert seen[max(t for t in seen if t < 64)] is State.STALLED
    assert seen[min(t for t in seen if t > 66)] is not State.STALLED
