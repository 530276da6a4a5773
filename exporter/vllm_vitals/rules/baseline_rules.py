"""Recording rules that both producers need: what an engine did before its trouble, and how much work arrives.

Input: folded `vllm_vitals_*` series. Output: ``engine:vllm_vitals_<what>:calm``, not written while the engine is in
trouble, so that a page can say "before -> now" (`text.before` reads the last one), and arrivals.
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
    finished = f"sum {by(config.identity)} ({fold.rate('responses_total', seconds=60, keep=('finished_reason',))})"
    calm = {
        "useful_tokens_per_second": fold.gauge("useful_tokens_per_second", over="avg_over_time", seconds=_CALM_SECONDS),
        "requests_running": fold.gauge("requests_running", over="avg_over_time", seconds=_CALM_SECONDS),
        "requests_waiting": f"avg_over_time(engine:vllm_vitals_waiting:requests{fold.range(_CALM_SECONDS)})",
        "kv_cache_usage_max_ratio": fold.gauge("kv_cache_usage_max_ratio", over="avg_over_time", seconds=_CALM_SECONDS),
        "prompt_tokens_mean": fold.gauge("prompt_tokens_mean"),
        "arrivals": f"avg_over_time(engine:vllm_vitals_arrivals:rate1m{fold.range(_CALM_SECONDS)})",
    }
    trouble = "engine:vllm_vitals_trouble:bool"
    return (
        Recording(BATCH, _batch(config)),
        # Nor is it calm while nobody can tell, as in the first seconds of a watch that begins in the middle.
        Recording(trouble, fold.gauge("state", f'state=~"{"|".join((*TROUBLE, State.UNKNOWN))}"')),
        Recording("engine:vllm_vitals_waiting:requests", waiting),
        Recording("engine:vllm_vitals_work:requests", work),
        Recording(
            "engine:vllm_vitals_arrivals:rate1m",
            f"clamp_min(({finished}) + {identity} (engine:vllm_vitals_work:requests"
            f" - engine:vllm_vitals_work:requests offset 1m) / 60, 0)",
        ),
        *(_before(f"engine:vllm_vitals_{name}:calm", expr, trouble, identity) for name, expr in calm.items()),
    )


def _batch(config: Config) -> str:
    target = Fold(config.target_identity, config.evaluation_seconds)
    # A restart of the exporter must not turn a batch service into one that pages.
    told = target.gauge("target_service_class", 'service_class="batch"', over="last_over_time", seconds=_CALM_SECONDS)
    if not config.batch.targets:
        return told
    listed = target.gauge("state", f'target=~"{"|".join(config.batch.targets)}"')
    return f"({told}) or ({listed}) * 0 + 1"


def _before(record: str, expr: str, trouble: str, identity: str) -> Recording:
    return Recording(record, f"({expr}) and {identity} ({trouble} == 0)")
