"""Each rule from both sides of every level it has: of entry, of release, and of how long either must last."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from tests.core.levels import CALM, HOLDS, PROVEN, STAYS, Row
from vllm_vitals.core.state_machine import RULES, Condition, Facts, Machine, Rule
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds

LIMITS = Thresholds()
BY_NAME = {rule.enter.__name__: rule for rule in RULES}


def facts(row: Row, **miss: Any) -> Facts:
    return replace(CALM, **{**row.met, **miss})


def cases(table: Mapping[str, tuple[Row, ...]]) -> list[Any]:
    return [
        pytest.param(name, row, id=f"{name}-{number}")
        for name, rows in table.items()
        for number, row in enumerate(rows)
    ]


def test_every_rule_has_its_rows() -> None:
    assert PROVEN.keys() == STAYS.keys() == HOLDS.keys() == BY_NAME.keys()
    assert all([*PROVEN.values(), *STAYS.values()])


def check(condition: Condition, row: Row) -> None:
    assert condition(facts(row), LIMITS) is True
    for name, values in row.misses.items():
        for value in values:
            assert condition(facts(row, **{name: value}), LIMITS) is not True, f"{name} = {value}"


@pytest.mark.parametrize(("name", "row"), cases(PROVEN))
def test_a_rule_is_entered_at_its_levels_and_not_beside_any_of_them(name: str, row: Row) -> None:
    check(BY_NAME[name].enter, row)


@pytest.mark.parametrize(("name", "row"), cases(STAYS))
def test_a_rule_is_held_at_its_levels_of_release_and_not_beside_any_of_them(name: str, row: Row) -> None:
    check(BY_NAME[name].stay, row)


def lasting(known: Facts) -> State:
    """What a machine says of an engine that has been so for longer than any hold."""
    machine = Machine()
    return [machine.step(known, LIMITS, float(at)) for at in range(0, 701, 5)][-1]


@pytest.mark.parametrize(("name", "row"), cases(PROVEN))
def test_its_state_is_said_then_and_only_then(name: str, row: Row) -> None:
    state = BY_NAME[name].state
    assert lasting(facts(row)) is state
    for fact, values in row.misses.items():
        for value in values:
            assert lasting(facts(row, **{fact: value})) is not state, f"{fact} = {value}"


@dataclass
class Watched:
    """Facts that remember who was asked for."""

    facts: Facts
    asked: set[str] = field(default_factory=set)

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self.facts, name)


@pytest.mark.parametrize("table", [PROVEN, STAYS], ids=["entered", "stays"])
@pytest.mark.parametrize("name", BY_NAME)
def test_every_fact_that_a_rule_looks_at_is_tried_from_its_other_side(
    name: str, table: Mapping[str, tuple[Row, ...]]
) -> None:
    condition = BY_NAME[name].enter if table is PROVEN else BY_NAME[name].stay
    rows, asked = table[name], set[str]()
    for row in rows:
        seen = Watched(facts(row))
        condition(seen, LIMITS)  # type: ignore[arg-type]
        asked |= seen.asked
    assert asked <= {fact.name for fact in fields(Facts)}
    assert asked == {name for row in rows for name in row.misses}


def left(name: str) -> Facts:
    """A rule's facts just below its first level of release."""
    row = STAYS[name][0]
    fact, values = next((fact, values) for fact, values in row.misses.items() if values[0] is not None)
    return facts(row, **{fact: values[0]})


def one_rule(rule: Rule, machine: Machine) -> bool:
    """Whether this very rule is latched."""
    return next(latch.active for own, latch in machine._rules if own is rule)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_rule_waits_its_hold_to_the_second_and_its_release(name: str) -> None:
    rule, machine = BY_NAME[name], Machine()
    hold, release = HOLDS[name]
    bad, good, start = facts(PROVEN[name][0]), left(name), 1_000.0
    if hold:
        machine.step(bad, LIMITS, start)
        machine.step(bad, LIMITS, start + hold - 0.1)
        assert not one_rule(rule, machine)
        assert machine.pending(start + hold - 0.1) == (rule.state, pytest.approx(hold - 0.1))
    assert machine.step(bad, LIMITS, start + hold) is rule.state
    assert one_rule(rule, machine)
    end = start + hold + 500
    if release:
        machine.step(good, LIMITS, end)
        machine.step(good, LIMITS, end + release - 0.1)
        assert one_rule(rule, machine)
    machine.step(good, LIMITS, end + release)
    assert not one_rule(rule, machine)


@pytest.mark.parametrize("name", [name for name, (_, release) in HOLDS.items() if release])
def test_a_spell_below_that_ends_too_early_starts_the_release_anew(name: str) -> None:
    rule, machine = BY_NAME[name], Machine()
    hold, release = HOLDS[name]
    bad, still, good = facts(PROVEN[name][0]), facts(STAYS[name][0]), left(name)
    for at in (0.0, hold):
        machine.step(bad, LIMITS, at)
    for start in (100.0, 200.0, 300.0):
        machine.step(good, LIMITS, start)
        machine.step(good, LIMITS, start + release - 1)
        machine.step(still, LIMITS, start + release)
        assert one_rule(rule, machine)


def test_what_cannot_be_known_is_believed_gone_after_a_release_and_taken_back_after_another() -> None:
    machine, rule = Machine(), BY_NAME["thrashing"]
    bad = facts(PROVEN["thrashing"][0])
    unknown = replace(bad, preemptions=None, mean_waiting=None)
    for at in (0.0, 30.0):
        machine.step(bad, LIMITS, at)
    for at, holds in ((100.0, True), (159.9, True), (160.0, True), (219.9, True), (220.0, False)):
        machine.step(unknown, LIMITS, at)
        assert one_rule(rule, machine) is holds, at
