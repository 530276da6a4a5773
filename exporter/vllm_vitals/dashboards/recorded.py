"""What recording rules have already computed, as dashboards ask for it: the same cost for ten engines and a thousand.

Input: a record of `vllm_vitals.rules`. Output: PromQL that obeys the dashboard's variables. Invariant: it is empty
where recording.yml is not loaded, and the panels say so.
"""

from collections.abc import Iterable

from vllm_vitals.core.states import State
from vllm_vitals.dashboards import states
from vllm_vitals.dashboards.promql import BY_ENGINE, RATE_RANGE
from vllm_vitals.rules.fleet import ENGINES, RANK

# Engines in a timeline, worst first: more bands than these nobody reads.
MOST = 12
NOT_LOADED = "no engine has been seen, or this Prometheus has not loaded recording.yml"
_ENGINE = '{target=~"$target", model_name=~"$model_name|", engine=~"$engine|"}'
_CANNOT_SERVE = ("down", "stalled", "failing", "blind", "paused", "starting", "asleep", "unknown")


def of_model(record: str, *matchers: str) -> str:
    """Return a record per model."""
    return record + "{" + ", ".join(('model_name=~"$model_name|"', *matchers)) + "}"


def of_engine(record: str) -> str:
    """Return a record per engine."""
    return record + _ENGINE


def rank_over_time() -> str:
    """Return the worst state of each step, so that no spell falls between two; of the engines that were worst."""
    rank = of_engine(RANK)
    worst = f"bottomk({MOST}, min by ({BY_ENGINE}) (min_over_time({rank}[$__range] @ end())))"
    return f"min by ({BY_ENGINE}) (min_over_time({rank}[{RATE_RANGE}])) and on ({BY_ENGINE}) {worst}"


def worst_engine() -> str:
    """Return each model's worst engine and its state."""
    return f"bottomk by (model_name) (1, min by ({BY_ENGINE}) ({of_engine(RANK)}))"


def engines(*matchers: str) -> str:
    """Return how many engines of each model are in these states, or in any."""
    return f"sum by (model_name) ({of_model(ENGINES, *matchers)})"


def serving() -> str:
    """Return how many engines of each model can serve; 0 is a number."""
    able = f"state!~{_quoted(_CANNOT_SERVE)}"
    return f"({engines(able)} or 0 * {engines()})"


def model_rank() -> str:
    """Return each model's state: the worst that a third of its engines are in, or in one that is worse yet."""
    clauses = []
    for state in State:
        as_bad = engines(f"state=~{_quoted(each.value for each in State if each.rank <= state.rank)}")
        clauses.append(f"{state.rank} + 0 * ({as_bad} >= on (model_name) {engines()} / 3)")
    return "min by (model_name) (\n  " + "\n  or ".join(clauses) + "\n)"


def minutes(interval: float) -> str:
    """Return the engine-seconds in each troubled state, from samples that are ``interval`` seconds apart."""
    bad = (state for state in State if state.severity in ("critical", "warning"))
    counted = f"sum_over_time({of_model(ENGINES, states.matcher(*bad))}[$__range])"
    return f"sort_desc({interval:g} * sum by (state) ({counted}) > 0)"


def _quoted(names: Iterable[str]) -> str:
    return '"' + "|".join(names) + '"'
