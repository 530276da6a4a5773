"""A share of requests that fails, at every pace of traffic: what is proven, and how soon."""

import pytest

from tests.core.sequences import Engine
from vllm_vitals.core.states import State

LOAD = {"generated": 300.0, "prompts": 800.0, "running": 8.0, "waiting": 0.0, "kv_usage": 0.4}


def minutes(engine: Engine, count: int, good: float, errors: float) -> list[State]:
    """Run so many minutes with ``good`` and ``errors`` finishes a minute."""
    return engine.run(
        60.0 * count, finished=good / 12, failed=errors / 12, started=(good + errors) / 12, **LOAD
    )  # fmt: skip


@pytest.mark.parametrize("pace", [12.0, 30.0, 80.0, 150.0, 900.0])
@pytest.mark.parametrize(("share", "state"), [(0.07, State.DEGRADED), (0.03, State.HEALTHY)])
def test_a_small_share_of_errors_is_found_at_any_pace(pace: float, share: float, state: State) -> None:
    engine = Engine()
    minutes(engine, 3, pace, 0.0)
    errors = pace * share
    # 10 errors, and as long as the hold
    proven = int(10 / errors) + 2
    enough = proven <= 10
    seen = minutes(engine, 20, pace - errors, errors)
    assert seen[-1] is (state if enough else State.HEALTHY)
    assert not enough or state in seen[: 12 * proven]


def test_what_failed_a_while_ago_is_taken_back_as_good_answers_come() -> None:
    engine = Engine()
    minutes(engine, 8, 28.0, 4.0)
    assert engine.snapshot.state is State.DEGRADED
    assert any("end in error: 12%" in each.text for each in engine.snapshot.evidence)
    seen = minutes(engine, 12, 30.0, 0.0)
    assert seen[-1] is State.HEALTHY
    assert seen.index(State.HEALTHY) <= 12 * 11


def test_failing_is_left_by_the_last_minute_whatever_the_ten_before_it_held() -> None:
    engine = Engine()
    minutes(engine, 5, 10.0, 50.0)
    assert engine.snapshot.state is State.FAILING
    seen = minutes(engine, 3, 60.0, 0.0)
    assert State.FAILING not in seen[12 * 2 + 6 :]
