"""Recording rules that dashboards read, so that a picture of a thousand engines costs what one of ten does.

Input: folded ``state``. Output: `RANK`, one number an engine instead of a series a state, and `ENGINES`, how many
engines of a model are in each state. Invariant: at every evaluation, so that minutes in a state
are samples times the interval, and a state that nobody is in is 0.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules import losses
from vllm_vitals.rules.model import Recording
from vllm_vitals.rules.promql import by, metric

RANK = "engine:vllm_vitals_state:rank"
ENGINES = "model:vllm_vitals_state:engines"
SHOWN = frozenset((RANK, ENGINES))


def rules(config: Config) -> tuple[Recording, ...]:
    """Return both; neither reads the other."""
    # The worst of two producers wins: ``min`` folds them, so that only the state that holds is hashed.
    state = metric("state")
    ranks = " or ".join(f'{one.rank} * ({state}{{state="{one}"}} == 1)' for one in State)
    of, ranked = by((*config.model_identity, "state")), by((*config.model_identity, "rank"))
    # Not by (...): over a range, Prometheus 2.42 forgets labels of a count_values by.
    held = f'count {ranked} (count_values without () ("rank", {RANK}))'
    for one in State:
        held = f'label_replace({held}, "state", "{one}", "rank", "{one.rank}")'
    none = " or ".join(f'label_replace(0 * {losses.ENGINES}, "state", "{one}", "", "")' for one in State)
    return (
        Recording(RANK, f"min {by(config.identity)} ({ranks})"),
        Recording(ENGINES, f"max {of} (sum {of} ({held}) or {none})"),
    )
