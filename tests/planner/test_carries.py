"""What one engine carries, by the twin: the same whatever the load was, and what the review makes of it."""

from dataclasses import replace
from functools import cache

import pytest

from bench.capacity import FLEETS, LOAD, SERVER, SLOS, TRUE, judged
from vllm_vitals.config.objectives import Slo
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.review.findings import findings
from vllm_vitals.planner.review.report import ModelReview
from vllm_vitals.planner.whatif.calibrate import Case
from vllm_vitals.planner.whatif.engine_capacity import Carries, carries
from vllm_vitals.planner.whatif.simulate_run import run
from vllm_vitals.planner.whatif.workload_slice import METRICS, Situation

TRUTH = 1.02  # requests/s, by python -m bench.capacity: the true step time, four hours at each rate


@cache
def reviewed(name: str) -> ModelReview:
    """Two weekdays; bench.capacity has the whole month."""
    return judged(FLEETS[name], 2)[0]


@cache
def observed() -> Case:
    """The true server at half of what it carries, as a case: the fit cannot miss."""
    load = replace(LOAD, rate=0.5)
    outcome = run(SERVER, TRUE, load, 600.0, 1)
    seen = {name: Reading(getattr(outcome, name)) for name in METRICS}
    return Case("e", Situation(range(2), 0.0, 600.0, False, None, load, seen), TRUE, SERVER)


@pytest.mark.parametrize("name", ["one server, asked for half", "one server, asked for all"])
def test_the_same_server_carries_the_same_whatever_its_load(name: str) -> None:
    capacity = reviewed(name).money.capacity
    assert capacity.requests_per_second == pytest.approx(TRUTH, rel=0.10)
    assert capacity.lower < TRUTH < capacity.upper
    assert not capacity.bound


def test_engines_that_met_their_objectives_suffice_and_nobody_is_told_to_buy() -> None:
    model = reviewed("over-provisioned by 60 %")
    assert model.money.engines_for_peak <= 4 < model.money.engines
    assert not [each for each in model.findings if each.level == "act" and each.topic == "capacity"]


def test_too_few_engines_are_an_act() -> None:
    found = reviewed("slots are the limit")
    assert [each.level for each in found.findings if "engines are needed" in each.text] == ["act"]


def test_a_lower_bound_never_yields_an_act() -> None:
    found = reviewed("slots are the limit")
    bound = replace(found.money, capacity=replace(found.money.capacity, bound=True))
    said = [each for each in findings(replace(found, money=bound)) if each.topic == "capacity"]
    assert [each.level for each in said if "engine may carry more" in each.text] == ["watch"]
    assert all(each.level != "act" for each in said)


def test_without_objectives_it_is_nine_tenths_of_all_it_can_do() -> None:
    found = carries(observed(), ())
    assert isinstance(found, Carries)
    assert "no objectives" in found.why
    assert found.lower < found.requests_per_second < found.upper


def test_the_tightest_objective_ends_it_and_is_named() -> None:
    tight = carries(observed(), (*SLOS, Slo("tight", "tpot", 0.035, 0.95)))
    assert isinstance(tight, Carries)
    assert tight.requests_per_second < 0.7 * TRUTH
    assert "tight breaks" in tight.why


def test_an_objective_that_nothing_meets_leaves_no_answer() -> None:
    assert "no rate would meet" in carries(observed(), (Slo("never", "tpot", 0.001, 0.95),))


def test_a_twin_that_misses_what_was_seen_says_so() -> None:
    seen = {name: Reading(9.9 * (reading.value or 1.0)) for name, reading in observed().here.observed.items()}
    wrong = replace(observed(), here=replace(observed().here, observed=seen))
    assert "misses what was observed by" in carries(wrong, SLOS)
