"""Recording rules about a model as a whole: how many of its engines are in trouble, and whether the others drown.

Input: folded ``state``, waits and queues. Output: one value a model, so that one incident is one page whatever the
number of engines. One engine of many is a ticket; a share of the model (``model_share``), or survivors whose expected
wait passes the objective, is a page. No record reads itself (see `native_memory`).
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules.description import described
from vllm_vitals.rules.model import Recording, Scope
from vllm_vitals.rules.presence import DOWN
from vllm_vitals.rules.promql import by, metric, number, on
from vllm_vitals.rules.selectors import but_batch, fold, interactive

LOST_ENGINE = "engine:vllm_vitals_lost:bool"
LOST = "model:vllm_vitals_lost:engines"
ENGINES = "model:vllm_vitals_engines:count"
AFFECTED = "model:vllm_vitals_affected:engines"
AT_RISK = "model:vllm_vitals_at_risk:requests"
SURVIVORS_WAIT = "model:vllm_vitals_survivors_wait:seconds"
WAITING = "model:vllm_vitals_waiting:requests"
WAIT = "model:vllm_vitals_expected_wait:seconds"
# States of one engine that page where they take a share of the model.
PAGING = (State.STALLED, State.FAILING, State.DEATH_SPIRAL)
_NAMED = 'model_name!=""'
_SMOOTH, _RATE = 120, 300  # s


def rules(config: Config) -> tuple[Recording, ...]:
    """In the order in which they read each other."""
    engine, identity, model = fold(config), on(config.identity), by(config.model_identity)
    which = f'state=~"{"|".join(PAGING)}"'
    # compared before they are folded: only the few in trouble are
    state = f"max {by((*config.identity, 'state'))} ({metric('state')}{{{which},{_NAMED}}} == 1)"
    patient = interactive(config)
    wait = f"{engine.gauge('expected_wait_seconds', *patient)} unless {identity} {LOST_ENGINE} == 1 {but_batch(config)}"
    queue = f"avg_over_time(engine:vllm_vitals_waiting:requests{engine.range(_SMOOTH)})"
    still = f'state=~"{State.ASLEEP}|{State.PAUSED}"'
    interactive_queue = f"({queue} unless {identity} ({engine.gauge('state', still)} == 1) {but_batch(config)})"
    good = engine.rate(
        "responses_total", 'finished_reason!~"error|abort"', *patient, seconds=_RATE, keep=("finished_reason",)
    )
    waits = f"sum {model} ({interactive_queue})"
    # with their state, so that neither hides the other
    bad = f"{state} or {DOWN}{{{_NAMED}}} == 1"
    wait_of_model = f"{WAITING} / {on(config.model_identity)} (sum {model} ({good} {but_batch(config)}))"
    # Only the page for overload reads them.
    read = config.limits.overload_wait_seconds > 0
    overloads = (Recording(WAITING, waits), Recording(WAIT, wait_of_model)) if read else ()
    return (
        Recording(LOST_ENGINE, f"max {by(config.identity)} ({bad})"),
        Recording(ENGINES, f"count {model} ({DOWN}{{{_NAMED}}})"),
        Recording(LOST, f"sum {model} ({LOST_ENGINE}) or 0 * {ENGINES}"),
        Recording(AFFECTED, f"count {by((*config.model_identity, 'state'))} ({state})"),
        Recording(AT_RISK, f"sum {model} (engine:vllm_vitals_work:requests and {identity} {LOST_ENGINE} == 1)"),
        Recording(SURVIVORS_WAIT, f"avg {model} ({wait})"),
        *overloads,
    )  # fmt: skip


def wide(config: Config, count: str) -> str:
    """Return ``count`` of engines by model (and more labels) where they are a share of it, or the others drown.

    One of three is one engine of many; one of two is half of the model.
    """
    model = on(config.model_identity)
    each = f"{model} group_left ()"
    share = number(round(config.limits.model_share, 9))
    # the share may be a third, which no decimal writes
    part = f"({count}) >= {each} ({share} * {ENGINES})"
    several = f"({count}) >= 2 or ({count}) >= {each} (0.5 * {ENGINES})"
    return f"(({part}) and ({several})) or (({count}) > 0 and {model} ({drowning(config)}))"


def drowning(config: Config) -> str:
    """Return models whose engines out of trouble have an expected wait above the objective."""
    window = fold(config, Scope.MODEL).range(60)
    return f"min_over_time({SURVIVORS_WAIT}{window}) > {number(config.limits.ttft_objective_seconds)}"


def victims(config: Config, *states: State, number_of: int = 5) -> str:
    """Return PromQL of the worst victims of a model, most requests first; ``&`` stands for the model's matchers."""
    which = "|".join(states)
    bad = f'max by (target, engine, state) ({metric("state")}{{&,state=~"{which}"}}) == 1'
    work = "max by (target, engine) (engine:vllm_vitals_work:requests{&})"
    present = f"({bad}) * 0 + on (target, engine) group_left () {work}"
    return described(config, f"topk({number_of}, {present} or ({bad}) * 0)")
