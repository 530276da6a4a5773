"""Every scenario, judged by the daemon's own judge, shows the state it is meant to show and nothing worse."""

from dataclasses import replace
from itertools import dropwhile, islice

import pytest

from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings import recording
from vllm_vitals.recordings.replay import judge
from vllm_vitals.simulator.exposed_families import Dialect
from vllm_vitals.simulator.scenarios import SCENARIOS, scenario
from vllm_vitals.simulator.workload import Lengths, Load
from vllm_vitals.simulator.world import ScenarioError, World
from vllm_vitals.simulator.write_recording import play

# Scenarios that show their state late need their whole time.
SHORT = [
    replace(each, duration_s=each.duration_s if each.name in {"degraded", "spec_collapse", "kv_leak"} else 1200)
    if each.duration_s > 1200
    else each
    for each in SCENARIOS
]
WANTED = {
    "healthy", "saturated", "kv_pressure", "preempting", "thrashing", "death_spiral", "death_spiral_fenced", "stalled",
    "starved", "truncation", "runaway", "restart", "asleep", "frozen_gauges", "dp_imbalance", "api_servers", "story",
    "failing", "http_errors", "client_errors", "some_errors", "degraded", "spec_collapse", "kv_held", "kv_leak",
    "paused", "starting", "starting_503", "deferred", "deferred_stuck",
}  # fmt: skip


def states(name, scrapes):
    """Per poll the state of the worst engine."""
    return [min((engine.state for engine in poll.engines), key=lambda s: s.rank) for poll in judge(name, scrapes)]


def watched(name, scrapes):
    """The same as the daemon says it, to which a server that has not answered yet may be loading."""
    evaluator = TargetEvaluator(name, may_start=True)
    polls = map(evaluator.observe, scrapes)
    return [min((engine.state for engine in poll.engines), key=lambda s: s.rank) for poll in polls]


def test_every_scenario_that_was_promised_exists_once():
    names = [each.name for each in SCENARIOS]
    assert len(names) == len(set(names))
    assert set(names) >= WANTED


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("each", SHORT, ids=lambda each: each.name)
def test_a_scenario_shows_its_state_and_no_worse_one(each, seed):
    intended = State(each.intended)
    seen = (watched if intended is State.STARTING else states)(each.name, play(each, seed))
    assert intended in seen
    worse = {state for state in seen if state.rank < min(intended.rank, State.HEALTHY.rank) and state != State.UNKNOWN}
    if each.name == "paused":
        worse -= {State.SATURATED}  # once resumed it works off what had gathered
    assert not worse
    assert seen[-1] == each.then


def test_the_story_walks_through_pressure_into_the_spiral_and_out():
    seen = states("story", play(scenario("story")))
    path = [state for state, before in zip(seen, [None, *seen], strict=False) if state != before]
    order = [State.HEALTHY, State.KV_PRESSURE, State.PREEMPTING, State.DEATH_SPIRAL, State.HEALTHY]
    found = iter(path)
    assert all(state in found for state in order), path


def test_dp_imbalance_is_the_first_ranks_alone():
    last = list(judge("dp", play(scenario("dp_imbalance"))))[-1]
    assert {engine.key.engine: engine.state for engine in last.engines} == {"0": State.PREEMPTING, "1": State.HEALTHY}


def test_truncation_cuts_most_answers_at_the_servers_default():
    (engine,) = list(judge("cut", play(scenario("truncation"))))[-1].engines
    assert engine.readings["truncated_ratio"].value == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_same_trouble_is_seen_through_every_dialect(dialect):
    assert State.DEATH_SPIRAL in states("spiral", play(scenario("death_spiral"), dialect=dialect))


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("each", SCENARIOS, ids=lambda each: each.name)
def test_a_dialect_tells_a_scenario_so_that_it_can_be_read_or_refuses_it(each, dialect):
    if each.engines > 1 and dialect is Dialect.V0:
        with pytest.raises(ScenarioError, match="one: choose --dialect"):
            play(each, dialect=dialect)
        return
    answered = dropwhile(lambda scrape: scrape.body is None, play(each, dialect=dialect))
    seen = states(each.name, islice(answered, 4))
    assert State.BLIND not in seen
    assert seen[-1] is not State.UNKNOWN


def test_the_same_seed_writes_the_same_recording_and_another_seed_another():
    first, again, other = (recording.to_bytes(islice(play(scenario("preempting"), seed), 40)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_how_often_it_is_scraped_does_not_change_what_happens():
    ends = []
    for interval in (1.0, 7.5, 300.0):
        world = World(replace(scenario("preempting"), duration_s=300), seed=2)
        for number in range(1, int(300 / interval) + 1):
            world.scrape(number * interval)
        ends.append([(e.stats.preemptions, e.stats.generation_tokens, e.stats.responses) for e in world.engines])
    assert ends[0] == ends[1] == ends[2]


def test_a_restart_refuses_connections_and_comes_back_from_zero():
    scrapes = list(play(scenario("restart")))
    down = [s.at - 1.8e9 for s in scrapes if s.reason == "refused"]
    assert (down[0], down[-1]) == (120, 155)
    assert b'vllm:generation_tokens_total{engine="0",model_name="sim-8b"} 0.0' in scrapes[31].body


def test_a_repeated_scenario_starts_again_from_a_fresh_process():
    world = World(scenario("story"), repeat=True)
    world.advance(399)
    first = world.engines[0].stats.preemptions
    world.advance(599)
    assert world.settings.max_num_seqs == 5
    world.advance(605)
    assert (world.settings.max_num_seqs, world.engines[0].stats.preemptions) == (64, 0)
    world.advance(602 + 399)
    assert world.engines[0].stats.preemptions == pytest.approx(first, rel=0.2)
    assert first > 100


def test_clients_without_patience_leave_and_come_back():
    impatient = Load(clients=40, think_s=1.0, output=Lengths(600), max_tokens=600, patience_s=4.0)
    world = World(replace(scenario("saturated"), script=((0, impatient),)))
    world.advance(120)
    stats = world.engines[0].stats
    assert sum(stats.responses.values()) == 0  # a hang-up is no response, however many tokens it cost
    assert stats.generation_tokens > 10_000
    assert len(world.engines[0].requests) <= 40


def test_an_unknown_scenario_is_answered_with_the_names_there_are():
    with pytest.raises(KeyError, match="death_spiral"):
        scenario("meltdown")
