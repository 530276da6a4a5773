"""Colours tell the truth: they differ to every eye, have words beside them, and none is green for what is not there."""

import json
from itertools import combinations
from typing import Any

import pytest

from tests.dashboards import lint
from tests.dashboards.colour import EYES, apart, ciede2000
from vllm_vitals.core.states import State
from vllm_vitals.dashboards import levels, links
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Levels, Site

# What two colours that mean different things must at least be apart: about 15 times what is just visible.
LEAST = 15.0
# Grafana's backgrounds, dark and light: a band must be seen on either.
BACKGROUNDS = ("#181B1F", "#FFFFFF")
# Computed over every minute of the range: too dear to ask a second time for a word.
UNWORDED = {"KV cache left", "Slots left", "KV demand, peak"}


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (50, 0, -2.5), 4.3065),
        ((50, 2.49, -0.001), (50, -2.49, 0.0011), 7.2195),
        ((50, 2.5, 0), (61, -5, 29), 22.8977),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_measure_is_that_of_the_published_pairs(one: Any, other: Any, far: float) -> None:
    assert ciede2000(one, other) == pytest.approx(far, abs=5e-5)
    assert ciede2000(other, one) == pytest.approx(far, abs=5e-5)


@pytest.mark.parametrize("eye", EYES)
def test_any_two_states_look_different(eye: str) -> None:
    near = {
        f"{one} and {other}": round(distance, 1)
        for one, other in combinations(State, 2)
        if (distance := apart(one.spec.colour, other.spec.colour, eye)) < LEAST
    }
    assert near == {}


@pytest.mark.parametrize("eye", EYES)
def test_any_two_colours_of_a_tile_look_different(eye: str) -> None:
    tiles = (levels.GREEN, levels.YELLOW, levels.RED, levels.GREY)
    assert min(apart(one, other, eye) for one, other in combinations(tiles, 2)) >= LEAST


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("state", State)
def test_a_state_stands_out_from_either_background(state: State, background: str) -> None:
    assert min(apart(state.spec.colour, background, eye) for eye in EYES) >= 5


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_a_limit_is_seen_as_a_line_on_either_background(background: str) -> None:
    drawn = [step["color"] for step in levels.lines(Levels(1, 2))["steps"][1:]]
    assert min(apart(colour, background, eye) for colour in drawn for eye in EYES) >= LEAST


def test_a_cell_is_filled_and_never_written_in_a_colour_that_white_swallows(panels: list[dict[str, Any]]) -> None:
    written = [panel["title"] for panel in panels if "color-text" in json.dumps(panel["fieldConfig"]["overrides"])]
    assert written == []


@pytest.fixture(params=links.TITLES)
def panels(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return lint.panels(json.loads(build(Site())[f"{request.param}.json"]))


def test_what_is_absent_is_grey_on_every_tile_bar_and_cell(panels: list[dict[str, Any]]) -> None:
    def steps_of(panel: dict[str, Any]) -> list[dict[str, Any]]:
        looks = [panel["fieldConfig"]["defaults"]]
        looks += [{p["id"]: p["value"] for p in each["properties"]} for each in panel["fieldConfig"]["overrides"]]
        return [look["thresholds"]["steps"] for look in looks if "thresholds" in look]

    lowest = {
        (panel["title"], steps[0]["color"])
        for panel in panels
        if panel["type"] not in ("timeseries", "heatmap")
        for steps in steps_of(panel)
        if steps[0]["value"] is not None
        or steps[0]["color"] not in ((levels.GREY, "transparent") if panel["type"] == "table" else (levels.GREY,))
    }
    assert lowest == set()


def test_every_coloured_tile_has_a_word(panels: list[dict[str, Any]]) -> None:
    silent = [
        panel["title"]
        for panel in panels
        if panel["type"] == "stat"
        and panel["options"]["colorMode"].startswith("background")
        and panel["options"]["textMode"] != "value_and_name"
        and not panel["fieldConfig"]["defaults"].get("mappings")
        and panel["title"] not in UNWORDED
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("judged", "colours"),
    [
        (Levels(1, 2), [None, -1, 1, 2]),
        (Levels(None, 2), [None, -1, 2]),
        (Levels(1), [None, -1, 1]),
        (Levels(0.1, low_is_bad=True), [None, -1, 0.1]),
        (Levels(0.1, 0.05, low_is_bad=True), [None, -1, 0.05, 0.1]),
        (None, [None]),
    ],
)
def test_a_colour_begins_above_nothing(judged: Levels | None, colours: list[float | None]) -> None:
    steps = levels.steps(judged)["steps"]
    assert [step["value"] for step in steps] == colours
    assert steps[0]["color"] == levels.GREY
    if judged:
        assert steps[-1 if judged.low_is_bad else 1]["color"] == levels.GREEN


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        (Levels(1, 2), {"(x) >= 2": "too high", "(x) >= 1 < 2": "high", "(x) < 1": "fine"}),
        (Levels(None, 2), {"(x) >= 2": "too high", "(x) < 2": "fine"}),
        (Levels(0.1, low_is_bad=True), {"(x) < 0.1": "low", "(x) >= 0.1": "fine"}),
    ],
)
def test_a_number_is_named_by_what_it_is(judged: Levels, said: dict[str, str]) -> None:
    assert {query.expr: query.legend for query in levels.in_words(Query("x"), judged)} == said
