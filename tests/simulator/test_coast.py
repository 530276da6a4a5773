"""Coasting: a calm server's time without its requests is, in every number, what the simulation would have said."""

from dataclasses import replace
from statistics import mean, stdev

import pytest

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.states import State
from vllm_vitals.recordings.replay import judge
from vllm_vitals.simulator.fast_forward import CalmStretches, Coast, NotCalmError
from vllm_vitals.simulator.scenario import Scenario
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.stats import EngineStats
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.workload import Load
from vllm_vitals.simulator.world import World

SERVER = ServerSettings()
EMPTY = Scenario("empty", "", "", 1e9, (), SERVER)


def known(**options):
    return CalmStretches(SERVER, StepTime(), Load(), **{"stretches": 40, **options})


def minutes(world, count, step):
    """Responses in each of so many minutes."""
    seen, before = [], 0
    for number in range(1, count + 1):
        step(number * 60.0)
        after = sum(sum(engine.stats.responses.values()) for engine in world.engines)
        seen.append(after - before)
        before = after
    return seen


def test_counters_histograms_and_their_noise_are_the_simulations():
    stretches, coasted = known(), World(EMPTY)
    exact = World(replace(EMPTY, script=((0, Load(rate=3.0)),)), seed=9)
    fast = minutes(coasted, 240, lambda at: coasted.coast(at, stretches, 3.0))
    slow = minutes(exact, 240, exact.advance)
    assert mean(fast) == pytest.approx(mean(slow), rel=0.04)
    assert stdev(fast) == pytest.approx(stdev(slow), rel=0.35)
    (ours,), (theirs,) = ([engine.stats for engine in world.engines] for world in (coasted, exact))
    for name in ("generation_tokens", "prompt_tokens", "steps", "prefix_queries"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=0.05)
    for name, histogram in theirs.histograms.items():
        other = ours.histograms[name]
        assert sum(other.counts) == pytest.approx(sum(histogram.counts), rel=0.05)
        assert other.sum == pytest.approx(histogram.sum, rel=0.06, abs=20)
        if sum(histogram.counts):
            shares = [[count / sum(each.counts) for count in each.counts] for each in (other, histogram)]
            assert shares[0] == pytest.approx(shares[1], abs=0.03)


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.37])
def test_between_the_rates_that_are_known_the_mean_is_right(rate):
    stretches, stats = known(stretches=30), EngineStats(SERVER.max_model_len)
    coast = Coast(stretches, 1)
    answers = sum(coast.grow(stats, rate) for _ in range(20_000))
    assert answers == pytest.approx(rate * 20_000 * 60, rel=0.12)


def test_at_no_rate_nothing_grows_and_the_gauges_are_empty():
    stats = EngineStats(SERVER.max_model_len, running=3, waiting=2, kv_usage=0.4)
    assert Coast(known()).grow(stats, 0.0) == 0
    assert (stats.running, stats.waiting, stats.kv_usage, stats.generation_tokens) == (0, 0, 0.0, 0)


def test_an_overload_is_refused():
    with pytest.raises(NotCalmError, match=r"at \d+.* requests/s a queue builds up .* simulate that exactly"):
        Coast(known(stretches=20)).grow(EngineStats(SERVER.max_model_len), 80.0)


def test_time_that_is_no_whole_number_of_stretches_is_refused():
    with pytest.raises(ValueError, match="90 s are no whole number of intervals of 60 s"):
        World(EMPTY).coast(90.0, known(), 1.0)


def test_the_same_seed_coasts_the_same_way():
    pages = []
    for seed in (1, 1, 2):
        world = World(EMPTY, seed)
        world.coast(3600.0, known(), 1.0)
        pages.append(world.scrape(3600.0))
    assert pages[0] == pages[1] != pages[2]


def test_the_engines_of_a_server_share_the_rate_and_go_their_own_ways():
    world = World(replace(EMPTY, engines=2))
    world.coast(6000.0, known(), 4.0)
    first, second = (engine.stats.generation_tokens for engine in world.engines)
    assert first != second
    assert first + second == pytest.approx(4.0 * 6000 * 200, rel=0.15)


def test_a_day_may_coast_into_a_true_incident_and_out_again():
    """Healthy for hours, saturated for ten minutes that are simulated, healthy again: counters never go back."""
    world = World(replace(EMPTY, settings=replace(SERVER, max_num_seqs=8)))
    stretches = CalmStretches(world.settings, StepTime(), Load(), stretch_s=15.0, stretches=40)
    scrapes, at = [], 0.0

    def scrape(until, step):
        nonlocal at
        while at < until:
            at += 15.0
            step(at)
            scrapes.append(Scrape(world.epoch + at, 0.005, world.scrape(at).encode()))

    scrape(3600, lambda now: world.coast(now, stretches, 1.0))
    world.act(Load(rate=8.0))
    scrape(4200, world.advance)
    world.act(Load(rate=1.0))
    scrape(5400, world.advance)
    world.act(Load())
    scrape(9000, lambda now: world.coast(now, stretches, 1.0))
    polls = list(judge("day", iter(scrapes)))
    states = [poll.engines[0].state for poll in polls]
    assert set(states[8:240]) == {State.HEALTHY}
    assert states.count(State.SATURATED) > 30
    assert set(states[-200:]) == {State.HEALTHY}
    totals = [poll.engines[0].sample.generation_tokens for poll in polls]
    assert totals == sorted(totals)
