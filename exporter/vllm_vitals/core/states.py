"""The states of an engine: one row a state, from which every page, rule, dashboard and report takes what it says.

Invariant: `State` and `SPECS` stand in the same order, worst first, and exactly one state holds. How a state is entered
and left is in `state_machine`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Severity = Literal["critical", "warning", "ok", "unknown"]


class State(StrEnum):
    """The state of an engine, worst first; exactly one holds."""

    DOWN = "down"
    STALLED = "stalled"
    FAILING = "failing"
    DEATH_SPIRAL = "death_spiral"
    THRASHING = "thrashing"
    BLIND = "blind"
    STARVED = "starved"
    DEGRADED = "degraded"
    KV_HELD = "kv_held"
    PREEMPTING = "preempting"
    SATURATED = "saturated"
    KV_PRESSURE = "kv_pressure"
    PAUSED = "paused"
    STARTING = "starting"
    HEALTHY = "healthy"
    IDLE = "idle"
    ASLEEP = "asleep"
    UNKNOWN = "unknown"

    @property
    def spec(self) -> "StateSpec":
        """What there is to say of this state."""
        return SPECS[self]

    @property
    def severity(self) -> Severity:
        """What `check` exits with: critical 2, warning 1, ok 0, unknown 3."""
        return SPECS[self].severity

    @property
    def rank(self) -> int:
        """0 is worst."""
        return _RANK[self]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One state.

    ``label`` names it to people, ``headline`` is one sentence for a page, ``colour`` (hex) is the same in every chart.
    ``harm``: users are hurt now, or work is lost. ``incident``: the review counts a stretch of it as an incident, at
    that level. ``trouble``: an episode; while one lasts, alerts keep what was before it. ``pages``: it may wake
    somebody by itself. ``proof`` says what proves a state that no rule of `state_machine` decides.
    """

    severity: Severity
    label: str
    headline: str
    colour: str
    harm: Literal["users", "work", ""] = ""
    incident: Literal["act", "watch", ""] = ""
    trouble: bool = False
    pages: bool = False
    proof: str = ""


# Red, pink and purple hurt users now; orange, yellow and browns cost work or time; blues are load, not harm; pale and
# grey ones are not known or not wanted. Any two are at least 15 apart (CIEDE2000) to usual eyes and to those with
# deuteranopia or protanopia, which leaves little choice among 18: tests/dashboards/test_colours.py.
SPECS: Mapping[State, StateSpec] = {
    State.DOWN: StateSpec(
        "critical",
        "down",
        "Nothing answers at this address.",
        "#B22FFD",
        "users",
        "act",
        trouble=True,
        pages=True,
        proof="Nothing answers: connection refused or no such host, three scrapes in a row.",
    ),
    State.STALLED: StateSpec(
        "critical",
        "stalled",
        "Work is present and nothing progresses.",
        "#D47AB4",
        "users",
        "act",
        trouble=True,
        pages=True,
    ),
    State.FAILING: StateSpec(
        "critical",
        "failing",
        "Requests are processed and most of them fail.",
        "#945987",
        "users",
        "act",
        trouble=True,
        pages=True,
    ),
    State.DEATH_SPIRAL: StateSpec(
        "critical",
        "death spiral",
        "Preemption loop: it recomputes about as much as it computes.",
        "#EE0E00",
        "users",
        "act",
        trouble=True,
        pages=True,
    ),
    State.THRASHING: StateSpec(
        "warning",
        "thrashing",
        "Preemption/recompute loop, and the queue does not drain.",
        "#FF9300",
        "work",
        "watch",
        trouble=True,
    ),
    State.BLIND: StateSpec(
        "unknown",
        "blind",
        "Its metrics cannot be read.",
        "#28393C",
        incident="watch",
        trouble=True,
        proof="Something answers, but its metrics do not (5xx, 401, timeout, half a body), three scrapes in a row.",
    ),
    State.STARVED: StateSpec(
        "warning",
        "starved",
        "Long prefills delay the next token of running requests.",
        "#512911",
        "work",
        "watch",
        trouble=True,
    ),
    State.DEGRADED: StateSpec(
        "warning",
        "degraded",
        "Slower than its own usual, or than its peers, at the same load.",
        "#D0AD85",
        "users",
        "watch",
        trouble=True,
    ),
    State.KV_HELD: StateSpec(
        "warning",
        "KV held",
        "KV blocks stay in use although no request is present.",
        "#0000CE",
        "work",
        "watch",
    ),
    State.PREEMPTING: StateSpec(
        "warning",
        "preempting",
        "It preempts requests; a loop is not proven.",
        "#FFFF00",
        trouble=True,
    ),
    State.SATURATED: StateSpec("warning", "saturated", "Requests queue; nothing is evicted.", "#112F5F"),
    State.KV_PRESSURE: StateSpec("warning", "KV pressure", "The KV cache is almost full.", "#45BFFF"),
    State.PAUSED: StateSpec(
        "ok",
        "paused",
        "An operator has paused it.",
        "#CADFD0",
        proof="POST /pause was answered after the last /resume, and no token came since.",
    ),
    State.STARTING: StateSpec(
        "ok",
        "starting",
        "It has not answered yet and may still be loading.",
        "#CCEBFF",
        proof="It has never answered (refused, no such name, no answer in time, 503), within its budget (10 min).",
    ),
    State.HEALTHY: StateSpec("ok", "healthy", "Working.", "#2D8A4D", proof="Work flows and no rule above holds."),
    State.IDLE: StateSpec("ok", "idle", "No work.", "#FCFAB7", proof="No work and no tokens in the window."),
    State.ASLEEP: StateSpec(
        "ok", "asleep", "Put to sleep on purpose.", "#4D6256", proof="The engine says that it sleeps."
    ),
    State.UNKNOWN: StateSpec(
        "unknown",
        "unknown",
        "Not enough samples or metrics to judge.",
        "#A7908D",
        proof="Not enough samples yet, or the gauges that a verdict needs are absent.",
    ),
}
_RANK = {state: rank for rank, state in enumerate(State)}
