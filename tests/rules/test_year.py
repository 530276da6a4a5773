"""The alert budget: what `make year` counts, in two small worlds; and what it must find where a rule is too eager."""

from pathlib import Path

import pytest

from tests.rules import year
from tests.rules.tools import ROOT
from vllm_vitals.core.states import State

SPIRAL = year.Play(
    "a third of a model in a death spiral", 2, "spiral",
    year.gone("spiral", 3, 2, year.during(300, 10**9, State.DEATH_SPIRAL)),
    page="VLLMDeathSpiral", within=60, begins=300,
)  # fmt: skip
CRASH = year.Play("one engine of ten is back in two minutes", 50, "crash",
                  year.gone("crash", 10, 1, year.during(300, 420, State.DOWN)))  # fmt: skip


def test_an_incident_pages_in_its_time_and_an_operation_beside_it_does_not(tmp_path: Path) -> None:
    world = year.World(0.2, (SPIRAL, CRASH))
    what = year.told(world, tmp_path)
    assert [fault for one in world.plays for fault in year.faults(one, what, world)] == []
    assert what.of(SPIRAL, "page", world) == {"VLLMDeathSpiral": 1}
    assert what.of(CRASH, "page", world) == {}
    assert 0 <= what.after(SPIRAL) <= 60


def test_a_page_that_is_false_missing_or_late_breaks_the_budget() -> None:
    world = year.World(0.2, (SPIRAL, CRASH))
    page = ("crash", "page", "VLLMOverload")
    assert year.faults(CRASH, year.Told({page: 1}, {page: 400}), world) == [f"{CRASH.name}: VLLMOverload pages"]
    assert "late" in year.faults(SPIRAL, year.Told({}, {}), world)[0]
    mine = ("spiral", "page", "VLLMDeathSpiral")
    assert year.faults(SPIRAL, year.Told({mine: 1}, {mine: 420}), world) == [
        f"{SPIRAL.name}: VLLMDeathSpiral is 60 s late"
    ]
    # of a model that nobody plays, the fleet is told
    fleet = year.Play("the fleet", 1, "", ())
    told = year.Told({("", "ticket", "VLLMEnginesFewer"): 2, mine: 1}, {})
    assert told.of(fleet, "ticket", year.World(1, (SPIRAL, fleet))) == {"VLLMEnginesFewer": 2}


@pytest.mark.parametrize(
    ("values", "said"),
    [([1.0, 1.0, 2.0], "1x1 2"), ([None, None, 1.0], "_x2 1"), ([1.0, None, None], "1 stale _"), ([None, 1.0], "_ 1")],
)
def test_series_are_written_as_promtool_reads_them(values: list[float | None], said: str) -> None:
    assert year.cells("target_up", values, {})["values"] == said


def test_the_page_in_docs_is_of_these_operations() -> None:
    text = (ROOT / "docs" / "alert-budget.md").read_text()
    plays = [one for world in (*year.operations(), *year.incidents()) for one in world.plays]
    assert not [one.name for one in plays if one.name not in text]
    assert f"budget {year.FALSE_PAGES} and {year.TICKETS_A_WEEK:g}" in text
