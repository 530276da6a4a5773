"""A judged number as colour and word: thresholds for Grafana, and one query a word.

Input: an expression with one value, its levels. Output: threshold steps; queries of which at most one answers, named by
what the number is. Invariant: a value that is not there is below every step, so it is grey, never green; and no colour
stands without its word.
"""

from dataclasses import replace
from typing import Any

from vllm_vitals.core.states import State
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Levels
from vllm_vitals.rules.promql import number

# The colours of states, so that a tile and a band that look alike mean alike.
GREEN, YELLOW, RED = (state.spec.colour for state in (State.HEALTHY, State.PREEMPTING, State.DEATH_SPIRAL))
# Not known, or not judged.
GREY = State.UNKNOWN.spec.colour
# A limit as a line: the yellow of a tile is not seen on white.
AMBER = "#C99700"
# Below every number that a panel shows; Grafana gives what is absent the colour of the lowest step.
_ANY = -1


def steps(levels: Levels | None) -> dict[str, Any]:
    """Return Grafana's steps: grey for what is absent, then a colour from each limit on."""
    found: list[tuple[float | None, str]] = [(None, GREY), (_ANY, GREEN)]
    if levels is None:
        found = [(None, GREY)]
    elif levels.low_is_bad:
        rising = [(_ANY, RED), (levels.bad, YELLOW), (levels.warn, GREEN)]
        found = [(None, GREY), *_closed([(limit, colour) for limit, colour in rising if limit is not None], levels)]
    else:
        found += [(limit, colour) for limit, colour in ((levels.warn, YELLOW), (levels.bad, RED)) if limit is not None]
    return {"mode": "absolute", "steps": [{"color": colour, "value": value} for value, colour in found]}


def quiet(levels: Levels) -> dict[str, Any]:
    """Return the same for a table's cells: filled where a limit is passed, to be read on white, too."""
    loud = steps(levels)
    plain = {"color": "transparent"}
    return loud | {"steps": [one | plain if one["color"] in (GREY, GREEN) else one for one in loud["steps"]]}


def _closed(rising: list[tuple[float, str]], levels: Levels) -> list[tuple[float, str]]:
    """Leave out the colour of a limit that is not there."""
    if levels.bad is None:
        return [(_ANY, YELLOW), *rising[1:]]
    return rising if levels.warn is not None else [rising[0], (rising[1][0], GREEN)]


def lines(levels: Levels | None) -> dict[str, Any]:
    """Return the limits of a chart, drawn as lines: what lies below them has no colour."""
    limits = [] if levels is None else [(levels.warn, AMBER), (levels.bad, RED)]
    drawn = sorted((limit, colour) for limit, colour in limits if limit is not None)
    first: dict[str, Any] = {"color": "text", "value": None}
    return {"mode": "absolute", "steps": [first, *({"color": colour, "value": value} for value, colour in drawn)]}


def in_words(query: Query, levels: Levels) -> tuple[Query, ...]:
    """Return the query once for each word; each answers only where the number is what its word says."""
    outer = "low" if levels.low_is_bad else "high"
    beyond, within = ("<", ">=") if levels.low_is_bad else (">=", "<")
    said: list[tuple[str, str]] = []
    if levels.bad is not None:
        said.append((f"{beyond} {number(levels.bad)}", f"too {outer}"))
    if levels.warn is not None:
        but = f" {within} {number(levels.bad)}" if levels.bad is not None else ""
        said.append((f"{beyond} {number(levels.warn)}{but}", outer))
    edge = levels.warn if levels.warn is not None else levels.bad
    if edge is not None:
        said.append((f"{within} {number(edge)}", "fine"))
    before = "" if query.legend == "__auto" else f"{query.legend} · "
    return tuple(replace(query, expr=f"({query.expr}) {test}", legend=before + word) for test, word in said)
