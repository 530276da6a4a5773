"""States on dashboards: colour, label, and the query that gives each engine one number for its state.

Input: the `State` enum. Output: value mappings and PromQL. Invariant: the number is the state's rank, 0 worst, so that
`min` is the worst engine, a sort puts the worst first, and a new state appears everywhere by itself.
"""

from typing import Any

from vllm_vitals.core.states import State
from vllm_vitals.dashboards.promql import BY_ENGINE, metric, selector

HURTING = tuple(state for state in State if state.spec.harm == "users")
COSTLY = tuple(state for state in State if state.spec.harm == "work")


def mappings() -> list[dict[str, Any]]:
    """Rank to words and colour, for every panel that shows a state."""
    options = {
        str(state.rank): {"text": state.spec.label, "color": state.spec.colour, "index": state.rank} for state in State
    }
    return [{"type": "value", "options": options}]


def worst_rank(by: str = BY_ENGINE) -> str:
    """Return the rank of the worst state that any producer reports, by engine or coarser."""
    of = metric("state")
    clauses = [f"{state.rank} * ({of.full_name}{selector(of, matcher(state))} == 1)" for state in State]
    fold = f"min by ({by})" if by else "min"
    return f"{fold} (\n  " + "\n  or ".join(clauses) + "\n)"


def of_servers() -> str:
    """Return the same by server, of the models chosen and of those that have no name yet, whatever server is."""
    name = metric("state").full_name
    of = {state: f'{name}{{model_name=~"$model_name|", {matcher(state)}}}' for state in State}
    ranks = " or ".join(f"{state.rank} * (max by (target) ({of[state]}) == 1)" for state in State)
    return f"min by (target) ({ranks})"


def matcher(*states: State) -> str:
    """Return a label matcher for these states."""
    return 'state=~"' + "|".join(states) + '"' if len(states) > 1 else f'state="{states[0]}"'
