"""Recording rules that both producers need: how much work is present, and whose users can wait.

Input: folded `vllm_vitals_*` series. Output: requests waiting and present of each engine, and batch servers.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules.model import Recording
from vllm_vitals.rules.promql import Fold, by, on

# States that are an episode: while one of them lasts, "before" stays what it was.
TROUBLE = tuple(state for state in State if state.spec.trouble)
_CALM_SECONDS = 300
# 1 for each server whose users can wait, as the exporter's config (``service_class``) or the alert config says.
BATCH = "target:vllm_vitals_batch:bool"


def rules(config: Config) -> tuple[Recording, ...]:
    """In the order in which they read each other."""
    fold, identity = Fold(config.identity, config.evaluation_seconds), on(config.identity)
    waiting = f"sum {by(config.identity)} ({fold.gauge('requests_waiting', keep=('reason',))})"
    work = f"({fold.gauge('requests_running')}) + {identity} ({waiting})"
    return (
        Recording(BATCH, _batch(config)),
        Recording("engine:vllm_vitals_waiting:requests", waiting),
        Recording("engine:vllm_vitals_work:requests", work),
    )


def _batch(config: Config) -> str:
    target = Fold(config.target_identity, config.evaluation_seconds)
    # A restart of the exporter must not turn a batch service into one that pages.
    told = target.gauge("target_service_class", 'service_class="batch"', over="last_over_time", seconds=_CALM_SECONDS)
    if not config.batch.targets:
        return told
    listed = target.gauge("state", f'target=~"({"|".join(config.batch.targets)})"')
    return f"({told}) or ({listed}) * 0 + 1"
