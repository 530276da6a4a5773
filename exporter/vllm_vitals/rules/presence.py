"""Recording rules about engines and models that do not answer: who is down, and which model nobody serves.

Input: folded ``state``. Output: `DOWN` and `UNAVAILABLE`, 0 or 1 at every evaluation, so that alerts can count how long
and how often. An exporter that restarts beside a server that is down does not know whom it served: the engines that
Prometheus saw there last are taken for it, for a day. No record reads itself (see `native_memory`).
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules.model import Recording, Scope
from vllm_vitals.rules.promql import by, metric, on
from vllm_vitals.rules.selectors import fold

DOWN = "engine:vllm_vitals_down:bool"
UNAVAILABLE = "model:vllm_vitals_unavailable:bool"
_SEEN = "engine:vllm_vitals_seen:timestamp"
_LOST = "engine:vllm_vitals_lost:timestamp"
_REMEMBERED = "engine:vllm_vitals_remembered:bool"
# How long (s) an engine is known that is named no more, and how long the exporter may take to restart.
_KNOWN, _RESTART = 86400, 3600
_NAMED, _UNNAMED = 'model_name!=""', 'model_name=""'
CANNOT_SERVE = "|".join((State.DOWN, State.STALLED, State.FAILING, State.ASLEEP))


def rules(config: Config, *, exporter: bool) -> tuple[Recording, ...]:
    """In the order in which they read each other; without the exporter nobody forgets whom a server serves."""
    engine, server = fold(config), on(config.target_identity)
    down = f'state="{State.DOWN}"'
    named = engine.gauge("state", down, _NAMED)
    nameless = f"{fold(config, Scope.TARGET).gauge('state', down, _UNNAMED)} == 1"
    if not exporter:
        return Recording(DOWN, named), Recording(UNAVAILABLE, _unavailable(config))
    last = f"max_over_time({_LOST}{engine.range(_KNOWN)})"
    # Only those that the server had at last: it may have served another model before.
    newest = f"({last} >= {server} group_left () max {by(config.target_identity)} ({last}))"
    unknown = f"{engine.gauge('state', down, _UNNAMED)} unless {server} ({named} or {_REMEMBERED})"
    return (
        Recording(_SEEN, f"{named} * 0 + time()"),
        # Written while both are at hand, and found later by its last value.
        Recording(_LOST, f"max_over_time({_SEEN}{engine.range(_RESTART)}) and {server} ({nameless})"),
        Recording(_REMEMBERED, f"({newest} and {server} ({nameless})) * 0 + 1"),
        Recording(DOWN, f"max {by(config.identity)} ({named} or {_REMEMBERED} or ({unknown}))"),
        Recording(UNAVAILABLE, _unavailable(config)),
    )


def _unavailable(config: Config) -> str:
    """1 for a model that has an engine that is down or long paused and none that can serve, else 0.

    No value once scaled to zero. An engine that starts within its budget, or is paused for a while, will serve.
    """
    engine, model, lost = fold(config), by(config.model_identity), f'state=~"{CANNOT_SERVE}"'
    since = f"{engine.gauge('state_since_timestamp_seconds')} <= time() - {config.limits.paused_for}"
    which = f'state="{State.PAUSED}"'
    paused = f"({engine.gauge('state', which, _NAMED)} == 1 and {on(config.identity)} ({since}))"
    cannot = f"max {by(config.identity)} ({metric('state')}{{{lost},{_NAMED}}} == 1)"
    serving = f"{DOWN}{{{_NAMED}}} == 0 unless {on(config.identity)} {cannot} unless {on(config.identity)} {paused}"
    gone = f"count {model} ({DOWN}{{{_NAMED}}} == 1 or {paused})"
    gone += f" unless {on(config.model_identity)} count {model} ({serving})"
    return f"({gone}) * 0 + 1 or max {model} ({DOWN}{{{_NAMED}}}) * 0"
