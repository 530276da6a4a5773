"""The judges of an engine and of a target at their edges: time counted by state, failures in a row, budgets, clocks."""

from dataclasses import replace

import pytest

from vllm_vitals.core.canary import CanaryVerdict
from vllm_vitals.core.engine_evaluator import EngineEvaluator
from vllm_vitals.core.pause import Pause
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.series_index import MAX_ENGINES
from vllm_vitals.core.server_view import ServerView
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Role, Scrape
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator, _Timeline
from vllm_vitals.core.thresholds import Thresholds

ZERO = EngineSample(
    running=2.0, waiting=0.0, kv_usage=0.3, kv_capacity_tokens=1000.0, generation_tokens=0.0, prompt_tokens=0.0,
    preemptions=0.0, responses={"stop": 5.0}, prefix_caching=False,
)  # fmt: skip


def evaluator(role: Role | None = None) -> EngineEvaluator:
    return EngineEvaluator(EngineKey("t", "m", "0"), Thresholds(), role)


def run(judge: EngineEvaluator, times: list[float], **each: object) -> EngineSnapshot:
    """Tokens rise with time."""
    for at in times:
        said = judge.observe(at, replace(ZERO, generation_tokens=10 * at, **each), {})  # type: ignore[arg-type]
    return said


def stuck(judge: EngineEvaluator, until: float, **each: object) -> EngineSnapshot:
    for at in range(0, int(until) + 1, 5):
        said = judge.observe(float(at), replace(ZERO, **each), {})  # type: ignore[arg-type]
    return said


def test_seconds_go_to_the_state_held_until_then_and_no_pause_longer_than_a_window_counts() -> None:
    judge = evaluator()
    said = run(judge, [1000.0, 1005.0, 1010.0])
    assert said.state is State.HEALTHY
    assert said.state_seconds == {State.UNKNOWN: 5.0, State.HEALTHY: 5.0}
    said = run(judge, [1200.0])
    assert said.state_seconds[State.HEALTHY] == 65.0
    assert judge.miss(1190.0, None).state_seconds[State.HEALTHY] == 65.0
    assert judge.miss(1195.0, None).state_seconds[State.HEALTHY] == 70.0


def test_a_state_has_begun_when_it_was_first_said() -> None:
    judge = evaluator()
    assert run(judge, [1000.0, 1005.0, 1010.0, 1015.0]).since == 1005.0
    assert judge.miss(1030.0, State.DOWN).since == 1030.0
    assert judge.miss(1035.0, State.DOWN).since == 1030.0


@pytest.mark.parametrize(("finished", "limit"), [({"stop": 5.0}, 45), ({"stop": 0.0}, 180), (None, 180)])
def test_an_engine_that_has_not_finished_anything_may_take_longer(
    finished: dict[str, float] | None, limit: int
) -> None:
    assert stuck(evaluator(), limit - 5, responses=finished).state is not State.STALLED
    assert stuck(evaluator(), limit, responses=finished).state is State.STALLED


@pytest.mark.parametrize(("errors", "stalled"), [(1.0, True), (1.2, False)])
def test_an_engine_that_ends_ten_requests_a_minute_is_not_stalled_whatever_it_makes_of_them(
    errors: float, stalled: bool
) -> None:
    judge = evaluator()
    for number in range(10):  # every 7 s; the later half of the window is 35 s long: 8.6 or 10.3 errors a minute
        ended = {"stop": 5.0, "error": errors * number}
        said = judge.observe(7.0 * number, replace(ZERO, responses=ended), {})
    assert (said.state is State.STALLED) is stalled


def test_a_canary_that_has_no_answer_is_as_old_as_it_was_sent_and_weights_excuse_it() -> None:
    silent = ServerView(canary=CanaryVerdict(silent_since=990.0))
    for updating, state in ((False, State.STALLED), (True, State.HEALTHY)):
        judge = evaluator()
        run(judge, [1000.0, 1005.0])
        sample = replace(ZERO, generation_tokens=10_100.0, updating_weights=updating)
        said = judge.observe(1010.0, sample, {}, silent)
        assert said.state is state
        assert not updating or said.state is State.HEALTHY
    judge = evaluator()
    run(judge, [1000.0, 1005.0])
    said = judge.observe(1010.0, replace(ZERO, generation_tokens=10_100.0), {}, silent)
    assert "20 s" in said.evidence[0].text


@pytest.mark.parametrize(("age", "state"), [(300.0, State.STALLED), (300.1, State.BLIND)])
def test_a_proven_state_outlives_blindness_of_five_minutes(age: float, state: State) -> None:
    judge = evaluator()
    assert stuck(judge, 60.0).state is State.STALLED
    assert judge.miss(60.0 + age, State.BLIND).state is state


@pytest.mark.parametrize("failed", [State.DOWN, State.BLIND, State.UNKNOWN])
def test_what_is_not_proven_does_not_outlive_it(failed: State) -> None:
    judge = evaluator()
    run(judge, [1000.0, 1005.0])
    assert judge.miss(1010.0, failed).state is failed


def test_an_engine_never_seen_has_no_age() -> None:
    assert evaluator().miss(5.0, State.BLIND).state is State.BLIND


def test_spirals_are_counted_as_they_begin() -> None:
    judge, at, made = evaluator(), 0.0, 0.0
    for cycle in range(2):
        for _ in range(12):
            at += 5.0
            made += 5.0
            said = judge.observe(at, replace(ZERO, kv_usage=0.95, preemptions=made, waiting=4.0), {})
        assert said.state is State.DEATH_SPIRAL
        assert said.death_spirals == cycle + 1
        for _ in range(40):
            at += 5.0
            said = judge.observe(at, replace(ZERO, preemptions=made, generation_tokens=10 * at), {})
        assert said.state is not State.DEATH_SPIRAL


def paused(judge: EngineEvaluator, at: float, preemptions: float, *, evicting: bool, running: float = 2.0) -> float:
    """Preemptions in the fast window after such a poll."""
    pause = Pause(at if evicting else None, evicting)
    sample = replace(ZERO, preemptions=preemptions, running=running, generation_tokens=10 * at)
    said = judge.observe(at, sample, {}, ServerView(pause=pause))
    reading = said.readings.get("preemptions_per_second")
    return 0.0 if reading is None or reading.value is None else reading.value


def test_a_pause_may_evict_what_ran_before_it_and_no_more() -> None:
    for evicted, counted in ((3.0, 0.0), (4.0, 1.0)):
        judge = evaluator()
        for at in (0.0, 5.0, 10.0):
            paused(judge, at, 0.0, evicting=False, running=3.0)
        paused(judge, 15.0, evicted, evicting=True, running=0.0)
        rate = paused(judge, 20.0, evicted, evicting=True, running=0.0)
        assert rate * 20.0 == pytest.approx(counted)


def test_each_pause_forgives_its_own_and_a_restart_none() -> None:
    judge = evaluator()
    for at in (0.0, 5.0):
        paused(judge, at, 0.0, evicting=False, running=3.0)
    paused(judge, 10.0, 3.0, evicting=True, running=0.0)
    paused(judge, 15.0, 3.0, evicting=False, running=2.0)
    rate = paused(judge, 20.0, 5.0, evicting=True, running=0.0)
    assert rate == 0.0
    assert paused(judge, 25.0, 6.0, evicting=True, running=0.0) > 0.0


# targets


def failed(at: float, reason: str = "refused") -> Scrape:
    return Scrape(at, 0.1, None, reason, "why")


def states(judge: TargetEvaluator, scrapes: list[Scrape]) -> list[State]:
    return [judge.observe(scrape).engines[0].state for scrape in scrapes]


def test_three_failures_in_a_row_are_down_or_blind_by_their_reasons() -> None:
    assert states(TargetEvaluator("t"), [failed(at) for at in (0.0, 5.0, 10.0)])[1:] == [State.UNKNOWN, State.DOWN]
    mixed = [failed(0.0), failed(5.0, "http_error"), *(failed(10.0 + 5 * n) for n in range(3))]
    assert states(TargetEvaluator("t"), mixed)[2:] == [State.BLIND, State.BLIND, State.DOWN]


@pytest.mark.parametrize(("at", "state"), [(599.9, State.STARTING), (600.0, State.DOWN)])
def test_a_target_that_may_start_has_ten_minutes_for_it(at: float, state: State) -> None:
    judge = TargetEvaluator("t", may_start=True)
    assert states(judge, [failed(0.0), failed(5.0), failed(10.0), failed(at)])[-1] is state
    since = TargetEvaluator("t", may_start=True)
    since.expect(budget_from=-590.0)
    assert states(since, [failed(0.0), failed(5.0), failed(10.0)]) == [State.STARTING, State.STARTING, State.DOWN]
    known = TargetEvaluator("t", may_start=True)
    known.expect(answered=True)
    assert states(known, [failed(0.0), failed(5.0), failed(10.0)])[-1] is State.DOWN


def page(*engines: str) -> bytes:
    rows = [
        f'vllm:{name}{{model_name="m",engine="{engine}"}} 1\n'
        for name in ("num_requests_running", "num_requests_waiting", "generation_tokens_total")
        for engine in engines
    ]
    return "".join(rows).encode()


def test_an_engine_that_three_pages_do_not_list_is_forgotten() -> None:
    judge = TargetEvaluator("t")
    judge.observe(Scrape(0.0, 0.1, page("0", "1")))
    counts = [len(judge.observe(Scrape(5.0 * n, 0.1, page("0"))).engines) for n in range(1, 5)]
    assert counts == [2, 2, 1, 1]
    judge.observe(Scrape(30.0, 0.1, page("0", "1")))
    judge.observe(Scrape(35.0, 0.1, page("0")))
    judge.observe(Scrape(40.0, 0.1, page("0", "1")))
    counts = [len(judge.observe(Scrape(45.0 + 5.0 * n, 0.1, page("0"))).engines) for n in range(3)]
    assert counts == [2, 2, 1]  # counted anew


@pytest.mark.parametrize("count", [MAX_ENGINES - 1, MAX_ENGINES])
def test_engines_under_ever_new_names_are_forgotten_at_once_beyond_as_many_as_a_page_may_have(count: int) -> None:
    judge = TargetEvaluator("t")
    assert len(judge.observe(Scrape(0.0, 0.1, page(*map(str, range(count))))).engines) == count
    assert len(judge.observe(Scrape(5.0, 0.1, page("new"))).engines) == count + 1
    assert len(judge.observe(Scrape(10.0, 0.1, page("new"))).engines) == MAX_ENGINES


def test_times_only_ever_advance() -> None:
    line = _Timeline()
    assert [line.forward(at) for at in (100.0, 105.0, 105.0, 110.0)] == [100.0, 105.0, 105.0, 110.0]
    assert [line.forward(at) for at in (50.0, 55.0, 56.0)] == [115.0, 120.0, 121.0]  # as if 5 s later, as before
    assert line.forward(20.0) == 122.0
    fresh = _Timeline()
    assert [fresh.forward(at) for at in (100.0, 99.0)] == [100.0, 101.0]
