"""What dashboards draw of a whole fleet, recorded once a minute, so that a week of 200 engines costs what one does.

Input: folded series of either producer. Output: records by model (``model:``), and by model and size of KV cache
(``pool:``): engines that hold about as many tokens have the same hardware and the same settings, and capacity is never
mixed between those that have not. Invariant: peaks are over the minute, so that no spell falls between two evaluations;
an engine whose size is not known (native mode) is in the pool without a size.
"""

from collections.abc import Sequence
from itertools import pairwise

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules import raw
from vllm_vitals.rules.fleet import RANK
from vllm_vitals.rules.model import Recording
from vllm_vitals.rules.promql import Fold, by, number, on
from vllm_vitals.rules.selectors import fold
from vllm_vitals.vllm.lookup import wire

STEP = 60
# Of the distributions: half of the range of their rates, since they are most of what there is.
SLOW_STEP = 150
WORST = "engine:vllm_vitals_state:worst"
# The same while it is worse than healthy: a week of it is short, and says which engines to draw.
TROUBLE = "engine:vllm_vitals_trouble:worst"
POOL = "engine:vllm_vitals_pool:bool"
SIZE, BAND = "kv_tokens", "running"
# Gauges of which a model's worst engine speaks, and those that add up; `matchers` choose a series of the family.
WORST_OF = {
    "preemptions_per_second": (), "kv_cache_usage_max_ratio": (), "truncated_ratio": (), "output_tokens_cv": (),
    "output_tokens_straggler_ratio": (), "tpot_p99_p50_ratio": ('source="request"', 'bound="lower"'),
}  # fmt: skip
SUM_OF = ("useful_tokens_per_second", "abandoned_requests_per_second", "requests_waiting")
RATES = ("prefix_cache_queries_total", "prefix_cache_hits_total", "rejected_requests_total")
BY_REASON = "responses_total"
HISTOGRAMS = ("request_prompt_tokens", "request_output_tokens")
MEANS = ("request_max_tokens", "request_output_tokens")
LATE_TTFT = "model:vllm_vitals_ttft_seconds:p99"
LOST, COMPUTED = "model:vllm_vitals_recomputed_tokens:rate", "model:vllm_vitals_computed_tokens:rate"
# Of pools.
ENGINES, LEFT = "pool:vllm_vitals_engines:count", "pool:vllm_vitals_kv_left:engines"
USED, DEMAND, SLOTS = (f"pool:vllm_vitals_{what}:max" for what in ("kv_used", "kv_demand", "slots_used"))
USEFUL = "pool:vllm_vitals_useful_tokens:sum"
IN_BAND, BAND_USEFUL, BAND_TPOT, BAND_TIMED, BAND_PREEMPTIONS = (
    f"pool:vllm_vitals_{what}"
    for what in ("band:engines", "band_useful_tokens:sum", "band_tpot_p99:sum", "band_tpot_p99:count",
                 "band_preemptions:sum")
)  # fmt: skip
# Of the daemon.
FAILED, DROPPED = "target:vllm_vitals_scrape_errors:rate5m", "target:vllm_vitals_invalid_samples:rate5m"
SLOWEST, USUAL = (f"fleet:vllm_vitals_scrape_duration:{which}" for which in ("max", "median"))
# Requests that run on an engine: the first of a band, and what a band is called.
BANDS = (0, 1, 5, 9, 17, 25, 33, 49, 65, 97, 129, 257)
LEFTS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
_RATE_S = 300


def of_model(name: str, how: str) -> str:
    """Return the record of a catalogue entry by model."""
    return f"model:vllm_vitals_{name.removesuffix('_total')}:{how}"


def bands() -> tuple[tuple[str, int, int | None], ...]:
    """Return each band's name, its first number of requests, and the next band's."""
    last = BANDS[-1]
    named = [(f"{low}-{high - 1}" if high - low > 1 else f"{low}", low, high) for low, high in pairwise(BANDS)]
    return (*named, (f"{last}+", last, None))


def models(config: Config) -> tuple[Recording, ...]:
    """Return records by model, and each engine's worst state of the minute."""
    each = fold(config)
    model = by(config.model_identity)
    worst = f"min {by(config.identity)} (min_over_time({RANK}{Fold((), config.evaluation_seconds).range(STEP)}))"
    rules = [Recording(WORST, worst), Recording(TROUBLE, f"({worst}) < {State.HEALTHY.rank}")]
    for name, matchers in WORST_OF.items():
        held = each.gauge(name, *matchers, over="max_over_time", seconds=STEP)
        rules.append(Recording(of_model(name, "max"), f"max {model} ({held})"))
    for name in SUM_OF:
        keep = ("reason",) if name == "requests_waiting" else ()
        rules.append(Recording(of_model(name, "sum"), f"sum {model} ({each.gauge(name, keep=keep)})"))
    rules += [
        Recording(of_model(name, "rate5m"), f"sum {model} ({each.rate(name, seconds=_RATE_S)})") for name in RATES
    ]
    reasons = by((*config.model_identity, "finished_reason"))
    answers = each.rate(BY_REASON, seconds=_RATE_S, keep=("finished_reason",))
    rules.append(Recording(of_model(BY_REASON, "rate5m"), f"sum {reasons} ({answers})"))
    late = f"sum {by((*config.model_identity, 'le'))} ({_rate(config, 'ttft_seconds', 'bucket')})"
    # Without traffic a quantile is NaN, which is no number to draw.
    rules.append(Recording(LATE_TTFT, f"histogram_quantile(0.99, {late}) >= 0"))
    tax, useful = each.gauge("recompute_tax_ratio"), each.gauge("useful_tokens_per_second")
    # At a tax of 1 there is no useful work to scale by; such a moment is left out.
    done = f"{useful} / {on(config.identity)} (1 - ({tax} < 1))"
    rules.append(Recording(COMPUTED, f"sum {model} ({done})"))
    rules.append(Recording(LOST, f"sum {model} (({done}) * {on(config.identity)} {tax})"))
    return tuple(rules)


def histograms(config: Config) -> tuple[Recording, ...]:
    """Return rates of vLLM's buckets by model, from the daemon's series or, of engines without, vLLM's own."""
    rules = []
    for name in HISTOGRAMS:
        buckets, count = (_rate(config, name, part) for part in ("bucket", "count"))
        le = by((*config.model_identity, "le"))
        # Engines with a lower length limit have fewer buckets: above their last one they count as whole.
        known = f"sum {le} (({buckets}) * 0 + {on(config.identity)} group_left () ({count}))"
        rest = f"{on(config.model_identity)} group_left () (sum {by(config.model_identity)} ({count})) - {known}"
        rules.append(Recording(of_model(f"{name}_bucket", "rate5m"), f"sum {le} ({buckets}) + {rest}"))
    for name in MEANS:
        for part in ("sum", "count"):
            said = f"sum {by(config.model_identity)} ({_rate(config, name, part)})"
            rules.append(Recording(of_model(f"{name}_{part}", "rate5m"), said))
    return tuple(rules)


def _rate(config: Config, name: str, part: str) -> str:
    each, keep = fold(config), ("le",) if part == "bucket" else ()
    ours = each.rate(f"{name}_{part}", seconds=_RATE_S, keep=keep)
    native = raw.folded(config, wire(name, part), function="rate", window=each.range(_RATE_S), keep=keep)
    # By engine, not by bucket: one writes le as 1, another as 1.0, and both together would count twice.
    return f"{ours} or (({native}) unless {on(config.identity)} {ours})"


def pools(config: Config) -> tuple[Recording, ...]:
    """Return records by pool, and by pool and band of concurrency."""
    each, who = fold(config), on(config.identity)
    pool = (*config.model_identity, SIZE)
    running = each.gauge("requests_running")
    capacity = each.gauge("kv_cache_capacity_tokens")
    # Two digits: equal GPUs differ by a block or two.
    digit = f"10 ^ floor(log10({capacity}) - 1)"
    # Not by (...): over a range, Prometheus 2.42 forgets labels of a count_values by.
    size = f'count_values without () ("{SIZE}", round({capacity} / {who} ({digit})) * {who} ({digit}))'
    placed = [
        f'label_replace({running} >= {low}{f" < {high}" if high else ""}, "{BAND}", "{name}", "", "")'
        for name, low, high in bands()
    ]
    sized = f"{who} group_left ({SIZE}) ({size})"
    joined = f"({' or '.join(placed)}) * 0 + 1"
    rules = [Recording(POOL, f"({joined}) * {sized} or {who} ({joined})")]
    slots = Fold(config.target_identity, config.evaluation_seconds).gauge("server_setting", 'name="max_num_seqs"')
    used = f"{running} / {on(config.target_identity)} group_left () ({slots} > 0)"
    peak = {"kv": "kv_cache_usage_max_ratio", "demand": "kv_cache_demand_ratio"}
    kv, demand = (each.gauge(name, over="max_over_time", seconds=STEP) for name in peak.values())
    rules += [
        Recording(ENGINES, f"count {by(pool)} ({POOL})"),
        *(
            Recording(record, f"max {by(pool)} ({_within(config, value)})")
            for record, value in ((USED, kv), (DEMAND, demand), (SLOTS, used))
        ),
        Recording(USEFUL, f"sum {by(pool)} ({_within(config, each.gauge('useful_tokens_per_second'))})"),
        Recording(LEFT, _lefts(config, pool, kv)),
        Recording(IN_BAND, f"count {by((*pool, BAND))} ({POOL})"),
    ]
    # Where buckets only bound it, that bound: the first's upper edge, else the last's lower one.
    bounds = (
        each.gauge("tpot_p99_seconds", 'source="request"', f'bound="{one}"') for one in ("estimate", "upper", "lower")
    )
    tpot = f" or {who} ".join(bounds)
    band = by((*pool, BAND))
    rules += [
        Recording(record, f"{how} {band} ({_within(config, value)})")
        for record, how, value in (
            (BAND_USEFUL, "sum", each.gauge("useful_tokens_per_second")),
            (BAND_PREEMPTIONS, "sum", each.gauge("preemptions_per_second")),
            (BAND_TPOT, "sum", tpot),
            (BAND_TIMED, "count", tpot),
        )
    ]
    return tuple(rules)


def _within(config: Config, value: str) -> str:
    """Return an engine's value with its pool and band beside it."""
    return f"{POOL} * {on(config.identity)} group_left () ({value})"


def _lefts(config: Config, pool: Sequence[str], usage: str) -> str:
    """Return how many engines have at most so much of their KV cache left, as a histogram has its buckets."""
    left = _within(config, f"1 - {usage}")
    counted = [
        f'label_replace(count {by(pool)} ({left} <= {number(most)}) or 0 * count {by(pool)} ({left}), "le", '
        f'"{number(most)}", "", "")'
        for most in LEFTS[:-1]
    ]
    return " or ".join([*counted, f'label_replace(count {by(pool)} ({left}), "le", "+Inf", "", "")'])


def watching(config: Config) -> tuple[Recording, ...]:
    """Return how the daemon's looking goes: what failed, only where it did, and how long scrapes take."""
    each = Fold(config.target_identity, config.evaluation_seconds)
    failed = each.rate("scrape_errors_total", seconds=_RATE_S, keep=("reason",))
    dropped = each.rate("invalid_samples_total", seconds=_RATE_S, keep=("family",))
    takes = each.gauge("scrape_duration_seconds")
    return (
        Recording(FAILED, f"{failed} > 0"),
        Recording(DROPPED, f"{dropped} > 0"),
        Recording(SLOWEST, f"max({takes})"),
        Recording(USUAL, f"quantile(0.5, {takes})"),
    )


def every(config: Config) -> tuple[Recording, ...]:
    """Return all of them: dashboards read them, and no rule need."""
    return (*models(config), *histograms(config), *pools(config), *watching(config))
