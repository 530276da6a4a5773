"""How a state looks: its colour, its words, and the query that gives each engine one number for it.

Input: the `State` enum. Output: value mappings and PromQL. Invariant: the number is the state's rank, 0 worst, so that
`min` is "the worst engine speaks", a sort puts the worst first, and a new state appears everywhere by itself.
"""

from typing import Any

from dashboards.promql import BY_ENGINE, metric, selector
from exporter.core.snapshot import State

# Reds hurt users now; orange and yellow cost work; blues are load, not harm; greys are not known or not wanted.
COLOURS = {
    State.DOWN: "#8F3BB8",
    State.STALLED: "#E0226E",
    State.DEATH_SPIRAL: "#C4162A",
    State.THRASHING: "#FA6400",
    State.BLIND: "#5D6B7E",
    State.STARVED: "#B8860B",
    State.PREEMPTING: "#F2CC0C",
    State.SATURATED: "#3274D9",
    State.KV_PRESSURE: "#8AB8FF",
    State.HEALTHY: "#37872D",
    State.IDLE: "#96D98D",
    State.ASLEEP: "#7B8087",
    State.UNKNOWN: "#B4B7BD",
}
HURTING = (State.DOWN, State.STALLED, State.DEATH_SPIRAL)
COSTLY = (State.THRASHING, State.STARVED)


def words(state: State) -> str:
    """``death_spiral`` as a person says it."""
    return state.value.replace("_", " ").replace("kv", "KV")


def mappings() -> list[dict[str, Any]]:
    """Rank to words and colour, for every panel that shows a state."""
    options = {str(state.rank): {"text": words(state), "color": COLOURS[state], "index": state.rank} for state in State}
    return [{"type": "value", "options": options}]


def worst_rank(by: str = BY_ENGINE) -> str:
    """The rank of the worst state that any producer reports, by engine or coarser."""
    of = metric("state")
    clauses = [f"{state.rank} * ({of.full_name}{selector(of, matcher(state))} == 1)" for state in State]
    fold = f"min by ({by})" if by else "min"
    return f"{fold} (\n  " + "\n  or ".join(clauses) + "\n)"


def matcher(*states: State) -> str:
    """A label matcher for these states."""
    return 'state=~"' + "|".join(states) + '"' if len(states) > 1 else f'state="{states[0]}"'
