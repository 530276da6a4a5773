"""Recording rules to scale by: how many engines a model needs, and how many requests it can carry.

Input: folded `vllm_vitals_*` series, and from the config what one engine carries within its objectives (requests/s; the
weekly review says it). Output: `NEEDED` and `LIMIT`, one value a model, smoothed and bounded. Invariant: absent where
it cannot be known, never 0: without a capacity no `NEEDED`, without running requests no `LIMIT`.
"""

import json

from vllm_vitals.config.alerts import Config
from vllm_vitals.rules import losses
from vllm_vitals.rules.model import Recording, Scope
from vllm_vitals.rules.promql import by, number, on
from vllm_vitals.rules.selectors import fold

NEEDED, LIMIT = "model:vllm_vitals_engines_needed", "model:vllm_vitals_concurrency_limit"
OFFERED, WORK = "model:vllm_vitals_offered:rate", "model:vllm_vitals_work:requests"
SHARE = "model:vllm_vitals_offered:engines"
SHOWN = frozenset((NEEDED, LIMIT))  # for autoscalers and gateways: no rule of ours reads them
RATE_S, CALM_S, DRAIN_S = 120, 600, 300  # rates; down only after the peak of so long; a queue is worked off in so long
HEADROOM = 1.08  # load that comes while an engine starts: bench/scaling.py
GROWTH, MORE = 2, 1  # never more than twice what there is, and one
FILL, LEAST_USAGE, MOST = 0.9, 0.02, 1024  # of the cache; below this usage no context is known; requests of an engine


def rules(config: Config) -> tuple[Recording, ...]:
    """In the order in which they read each other."""
    return (*_limit(config), *_needed(config))


def _limit(config: Config) -> tuple[Recording, ...]:
    """Say how many requests fit: the cache over what one takes now, at most max_num_seqs where that is known."""
    engine, identity, model = fold(config), on(config.identity), by(config.model_identity)
    running = engine.gauge("requests_running", over="avg_over_time", seconds=CALM_S)
    usage = engine.gauge("kv_cache_usage_ratio", over="avg_over_time", seconds=CALM_S)
    fits = f"{number(FILL)} * ({running} >= 1) / {identity} ({usage} >= {number(LEAST_USAGE)})"
    slots = fold(config, Scope.TARGET).gauge("server_setting", 'name="max_num_seqs"')
    server = f"{on(config.target_identity)} group_left ()"
    capped = f"({fits}) < {server} ({slots}) or ({fits}) * 0 + {server} ({slots}) or ({fits})"
    # an engine without requests carries what the others do
    each = f"avg {model} (clamp_max({capped}, {number(MOST)}))"
    return (Recording(LIMIT, f"clamp_min(floor({each} * {on(config.model_identity)} {losses.ENGINES}), 1)"),)


def _needed(config: Config) -> tuple[Recording, ...]:
    """Say how many engines carry what is offered: finishes, the growth of what is inside, and the queue."""
    if not config.capacity:
        return ()
    engine, model = fold(config), by(config.model_identity)
    own, same = fold(config, Scope.MODEL), on(config.model_identity)
    done = engine.rate("responses_total", seconds=RATE_S, keep=("finished_reason",))
    growth = f"clamp_min(deriv({WORK}{own.range(RATE_S)}), 0)"
    queue = f"(sum {model} (engine:vllm_vitals_waiting:requests)) / {DRAIN_S}"
    each = " or ".join(
        f"{OFFERED}{{model_name={json.dumps(name)}}} / {number(carries)}"
        for name, carries in sorted(config.capacity.items())
    )
    peak = f"ceil({number(HEADROOM)} * max_over_time({SHARE}{own.range(CALM_S)}))"
    most = f"({GROWTH} * {losses.ENGINES} + {MORE})"
    return (
        Recording(WORK, f"sum {model} (engine:vllm_vitals_work:requests)"),
        Recording(OFFERED, f"(sum {model} ({done})) + {same} ({growth}) + {same} ({queue})"),
        Recording(SHARE, each),
        Recording(NEEDED, f"clamp_min(({peak} < {same} {most}) or ({peak} * 0 + {same} {most}), 1)"),
    )
