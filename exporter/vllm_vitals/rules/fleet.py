"""Recording rules that dashboards read, so that a picture of a thousand engines costs what one of ten does.

Input: folded ``state``. Output: `RANK`, one number an engine instead of a series a state, and `ENGINES`, how many
engines of a model are in each state. Invariant: at every evaluation, so that minutes in a state
are samples times the interval, and a state that nobody is in is 0.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules.model import Recording
from vllm_vitals.rules.promql import by
from vllm_vitals.rules.selectors import fold

RANK = "engine:vllm_vitals_state:rank"
ENGINES = "model:vllm_vitals_state:engines"
SHOWN = frozenset((RANK, ENGINES))


def rules(config: Config) -> tuple[Recording, ...]:
    """Return both; neither reads the other."""
    engine = fold(config)
    each = {state: engine.gauge("state", f'state="{state}"') for state in State}
    ranks = " or ".join(f"{state.rank} * ({held} == 1)" for state, held in each.items())
    held = engine.gauge("state", keep=("state",))
    return (
        Recording(RANK, f"min {by(config.identity)} ({ranks})"),
        Recording(ENGINES, f"sum {by((*config.model_identity, 'state'))} ({held})"),
    )
