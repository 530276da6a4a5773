"""What a daemon knows of before its start: a server that has answered is down, one that never has may be loading."""

import asyncio
import json
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Scrape, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.scrape.last_seen import KEEP_S, LastSeen

NOW = 1_800_000_000.0


def served(target: str, model: str, at: float = NOW) -> TargetSnapshot:
    engine = EngineSnapshot(EngineKey(target, model, "0"), State.HEALTHY, since=at, at=at)
    return TargetSnapshot(target, True, at, 0.1, engines=(engine,))


def states(
    seen: LastSeen, target: str, model: str, start: float, seconds: float, reason: str = "refused"
) -> list[State]:
    """What is said of a target that does not answer, from ``start`` on, every 30 s."""
    evaluator = TargetEvaluator(target, model_name=model, may_start=True)
    seen.prepare(evaluator, target, model, start)
    scrapes = [Scrape(start + 30.0 * n, 0.1, None, reason, "why") for n in range(int(seconds / 30) + 1)]
    return [evaluator.observe(scrape).engines[0].state for scrape in scrapes]


def test_a_target_never_seen_is_starting_for_its_budget_and_then_down() -> None:
    said = states(LastSeen(None, CapturingLogger()), "a:8000", "m", NOW, 630)
    assert set(said[:20]) == {State.STARTING}
    assert said[20] is State.DOWN


@pytest.mark.parametrize("reason", ["timeout", "unavailable", "dns"])
def test_whatever_a_server_that_loads_may_answer_is_starting(reason: str) -> None:
    seen = LastSeen(None, CapturingLogger())
    assert set(states(seen, "a:8000", "m", NOW, 300, reason)) == {State.STARTING}


def test_any_other_answer_is_blind_at_once() -> None:
    assert states(LastSeen(None, CapturingLogger()), "a:8000", "m", NOW, 90, "http_error")[-1] is State.BLIND


def test_a_target_that_answered_before_the_daemons_restart_is_down_and_not_starting(tmp_path: Path) -> None:
    path, log = tmp_path / "new" / "state.json", CapturingLogger()
    before = LastSeen(path, log)
    before.note(served("a:8000", "m"))
    asyncio.run(before.save())
    after = LastSeen(path, log)
    assert State.STARTING not in states(after, "a:8000", "m", NOW + 60, 90)
    assert State.STARTING in states(after, "b:8000", "other", NOW + 60, 90)
    assert State.STARTING in states(after, "a:8000", "m2", NOW + KEEP_S + 1, 90)  # an address of a week ago is new


def test_a_loop_of_crashes_under_new_addresses_runs_out_of_its_models_budget() -> None:
    seen = LastSeen(None, CapturingLogger())
    seen.note(served("pod-1:8000", "m"))
    assert State.DOWN not in states(seen, "pod-2:8000", "m", NOW + 300, 240)
    assert State.DOWN in states(seen, "pod-3:8000", "m", NOW + 540, 120)
    assert State.DOWN not in states(seen, "pod-4:8000", "m2", NOW + 540, 120)


def test_a_new_replica_beside_one_that_serves_has_its_own_budget() -> None:
    seen = LastSeen(None, CapturingLogger())
    seen.note(served("pod-1:8000", "m", NOW + 1_000))
    assert set(states(seen, "pod-2:8000", "m", NOW + 1_000, 540)) == {State.STARTING}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"targets": 1, "models": {}}', "\x00" * 100])
def test_a_file_that_is_none_is_one_line_and_written_anew(content: str, tmp_path: Path) -> None:
    path, log = tmp_path / "state.json", CapturingLogger()
    path.write_text(content)
    seen = LastSeen(path, log)
    assert len(log.calls) == 1
    seen.note(served("a:8000", "m"))
    asyncio.run(seen.save())
    assert json.loads(path.read_text()) == {"targets": {"a:8000": NOW}, "models": {"m": NOW}}


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = CapturingLogger()
    seen = LastSeen(tmp_path / "file" / "state.json", log)
    for _ in range(3):
        asyncio.run(seen.save())
    assert [call.kwargs["why"].split(": ")[1] for call in log.calls].count("cannot be written") == 1
