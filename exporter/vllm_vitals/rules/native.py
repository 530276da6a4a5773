"""Native mode: recording rules that say from raw vLLM series what the daemon says, under the same names.

Input: what vLLM exposes, scraped by Prometheus itself. Output: the `vllm_vitals_*` series whose catalogue entry is
native, and helpers named level:metric:operation. What PromQL cannot know stays absent. States are in native_state.
"""

from collections.abc import Callable

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.recompute_tax import (
    ASSUMED_BLOCK,
    DECODE_PREEMPTIONS,
    LEAST_LOST,
    MID_PREFILL_LOST,
    UNKNOWN_CACHING,
)
from vllm_vitals.rules import raw
from vllm_vitals.rules.model import Recording
from vllm_vitals.rules.promql import Fold, by, metric, number, on
from vllm_vitals.vllm.cache_config import CACHE_CONFIG, PREFIX_CACHING
from vllm_vitals.vllm.family import Wire
from vllm_vitals.vllm.lookup import family, wire

# R is taken over the shortest window that holds enough completions: the fast one, or one of these (s).
_LONGER = (120, 180, 300, 600)


def r_windows(config: Config) -> tuple[int, ...]:
    """Give the windows that R chooses from, in seconds."""
    return (fast(config), *(w for w in _LONGER if w > fast(config)))


def fast(config: Config) -> int:
    """Give the fast window: never below four scrapes, or a rate has too little to stand on."""
    return max(int(config.thresholds.fast_window), 4 * config.scrape_seconds)


def rules(config: Config) -> tuple[Recording, ...]:
    """List the normalised and the derived series, in the order in which they read each other."""
    return (
        *normalised(config),
        *_counts(config),
        *_r(config),
        *_tax(config),
        *_work(config),
        *_shares(config),
        *_abandoned(config),
    )


def _fold(config: Config) -> Fold:
    return Fold(config.identity, config.evaluation_seconds)


def normalised(config: Config) -> tuple[Recording, ...]:
    """Record vLLM's series under our names."""
    waiting = raw.latest(config, wire("waiting_by_reason"), keep=("reason",))
    total = raw.latest(config, wire("waiting"))
    unsplit = f'label_replace({total}, "reason", "unsplit", "", "")'
    usage = raw.latest(config, wire("kv_usage"))
    window = _fold(config).range(fast(config))
    highest = raw.folded(config, wire("kv_usage"), function="max_over_time", window=window)
    counters = ("preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
    return (
        Recording(metric("requests_running"), raw.latest(config, wire("running"))),
        Recording(metric("requests_waiting"), f"{waiting} or ({unsplit} unless {on(config.identity)} {waiting})"),
        # Values outside [0, 1] were seen (hybrid caches): they say nothing.
        Recording(metric("kv_cache_usage_ratio"), f"clamp_max(({usage}) >= 0 <= 1.01, 1)"),
        Recording(metric("kv_cache_usage_max_ratio"), f"clamp_max(({highest}) >= 0 <= 1.01, 1)"),
        *(Recording(metric(family(field).name), raw.latest(config, wire(field))) for field in counters),
        Recording(
            metric("prompt_tokens_computed_total"),
            raw.latest(config, wire("prompt_tokens_computed"), 'source="local_compute"'),
        ),
        Recording(metric("responses_total"), raw.latest(config, wire("responses"), keep=("finished_reason",))),
        *(Recording(record, raw.latest(config, names, *matchers)) for record, names, matchers in _HELPERS),
    )


# Counters that the catalogue does not carry but the derivations need: (record, vLLM's names, matchers).
_HELPERS: tuple[tuple[str, tuple[Wire, ...], tuple[str, ...]], ...] = (
    ("engine:vllm_steps:count", wire("iteration_tokens", "count"), ()),
    ("engine:vllm_first_tokens:count", wire("ttft_seconds", "count"), ()),
    ("engine:vllm_request_prompt_tokens:sum", wire("request_prompt_tokens", "sum"), ()),
    ("engine:vllm_request_output_tokens:sum", wire("request_output_tokens", "sum"), ()),
    ("engine:vllm_request_output_tokens:count", wire("request_output_tokens", "count"), ()),
    ("engine:vllm_inter_token_latency_seconds:sum", wire("inter_token_latency_seconds", "sum"), ()),
    ("engine:vllm_inter_token_latency_seconds:count", wire("inter_token_latency_seconds", "count"), ()),
    (
        "engine:vllm_inter_token_latency_seconds:within_1s",
        wire("inter_token_latency_seconds", "bucket"),
        (r'le=~"1|1\\.0"',),
    ),
    ("engine:vllm_request_preemptions:count", wire("request_preemptions", "count"), ()),
    ("engine:vllm_request_preemptions:at_most_1", wire("request_preemptions", "bucket"), (r'le=~"1|1\\.0"',)),
)


# PromQL over a window of so many seconds.
OverWindow = Callable[[int], str]


def _per_window(record: str, what: OverWindow, config: Config) -> tuple[Recording, ...]:
    """Record ``what`` over each window that R may choose."""
    return tuple(Recording(f"{record}:increase{w}s", what(w)) for w in r_windows(config))


def _rate(fold: Fold, series: str, window: int) -> str:
    return f"rate({series}{fold.range(window)})"


def _increase(fold: Fold, series: str, window: int) -> str:
    """Return a rate times the length of its range (see `Fold.rate`)."""
    return f"{_rate(fold, series, window)} * {fold.span(window)}"


def _counts(config: Config) -> tuple[Recording, ...]:
    fold, identity = _fold(config), by(config.identity)
    finished = by((*config.identity, "finished_reason"))

    def completions(w: int) -> str:
        good = f'{metric("responses_total")}{{finished_reason!~"error|abort"}}'
        return f"sum {identity} (max {finished} ({_increase(fold, good, w)}))"

    def preemptions(w: int) -> str:
        return f"max {identity} ({_increase(fold, metric('preemptions_total'), w)})"

    return (
        *_per_window("engine:vllm_completions", completions, config),
        *_per_window("engine:vllm_preemptions", preemptions, config),
        *_errors(config),
    )


# So many ended requests prove a share of errors; one minute is asked first, then ten (`core.outcomes.finishes`).
_ENOUGH_ENDED = 10


def _errors(config: Config) -> tuple[Recording, ...]:
    """Record requests that ended in error, where any did, and all that ended over the same window.

    Twice: over a minute that holds enough finishes, and over one that holds enough to prove a small share of errors,
    else over ten minutes.
    """
    fold, identity = _fold(config), on(config.identity)
    short, long = fast(config), int(config.thresholds.slow_window)

    def ended(w: int) -> str:
        reasons = f"max {by((*config.identity, 'finished_reason'))}"
        return f"sum {by(config.identity)} ({reasons} ({_increase(fold, metric('responses_total'), w)}))"

    def failed(w: int) -> str:
        return f"max {by(config.identity)} ({_increase(fold, _FAILED, w)})"

    def pair(errors: str, ends: str, enough: str) -> tuple[Recording, Recording]:
        def chosen(count: Callable[[int], str]) -> str:
            brief = f"({count(short)}) and {identity} ({enough})"
            return f"max {by(config.identity)} (({brief}) or {count(long)})"

        return (
            Recording(errors, f"{chosen(failed)} > 0"),
            Recording(ends, f"({chosen(ended)}) and {identity} {errors}"),
        )

    return (
        *pair("engine:vllm_errors:count", "engine:vllm_ended:count", f"({ended(short)}) >= {_ENOUGH_ENDED}"),
        *pair(
            "engine:vllm_some_errors:count",
            "engine:vllm_some_ended:count",
            f"({ended(short)}) >= {number(config.thresholds.failing_errors / config.thresholds.degraded_error_share)}",
        ),
    )


_FAILED = f'{metric("responses_total")}{{finished_reason="error"}}'


def over_r_window(config: Config, what: OverWindow) -> str:
    """Write ``what`` over the shortest window with enough completions; nothing where none has them."""
    least = number(config.thresholds.min_completions)
    choices = " or ".join(
        f"(({what(w)}) and {on(config.identity)} engine:vllm_completions:increase{w}s >= {least})"
        for w in r_windows(config)
    )
    # Choices that have names of their own would be several series over time: without a name they are one.
    return f"max {by(config.identity)} ({choices})"


def _r(config: Config) -> tuple[Recording, ...]:
    fold, identity = _fold(config), by(config.identity)
    requests = "engine:vllm_request_preemptions"

    def finished(w: int) -> str:
        return f"max {identity} ({_increase(fold, f'{requests}:count', w)})"

    def repeats(w: int) -> str:
        return f"{finished(w)} - max {identity} ({_increase(fold, f'{requests}:at_most_1', w)})"

    return (
        Recording(
            "engine:vllm_completions:r_window", over_r_window(config, lambda w: f"engine:vllm_completions:increase{w}s")
        ),
        Recording(
            "engine:vllm_preemptions:r_window", over_r_window(config, lambda w: f"engine:vllm_preemptions:increase{w}s")
        ),
        Recording("engine:vllm_finished_with_count:r_window", over_r_window(config, finished)),
        Recording("engine:vllm_repeat_preempted:r_window", over_r_window(config, repeats)),
        Recording(
            metric("preemptions_per_completion"), "engine:vllm_preemptions:r_window / engine:vllm_completions:r_window"
        ),
        Recording(
            metric("repeat_preemption_ratio"),
            "engine:vllm_repeat_preempted:r_window / (engine:vllm_finished_with_count:r_window > 0)",
        ),
        Recording(metric("preemptions_per_second"), _fold(config).rate("preemptions_total", seconds=fast(config))),
    )


def _tax(config: Config) -> tuple[Recording, ...]:
    """Recompute tax = p f context / (p f context + useful), and its bounds (`core.recompute_tax.lost_share`)."""
    identity, limits, same = by(config.identity), config.thresholds, on(config.identity)
    fold = _fold(config)
    generated = fold.rate("generation_tokens_total", seconds=fast(config))
    prompts = computed_prompts(config)

    def length(name: str) -> OverWindow:
        def mean(w: int) -> str:
            total, count = (
                f"max {identity} ({_rate(fold, f'engine:vllm_request_{part}', w)})"
                for part in (f"{name}_tokens:sum", "output_tokens:count")
            )
            return f"{total} / ({count} > 0)"

        return mean

    every = f"0 * {metric('generation_tokens_total')}"
    cached, uncached = _caching(config)
    lost = (
        f"(({every}) and {same} ({_restored(config)}))"
        f" or (({every} + {number(UNKNOWN_CACHING.estimate)}) and {same} {_UNSURE})"
        f" or (({every} + {number(limits.lost_share)}) and {same} ({uncached}))"
        f" or ({_lost_with_caching(config)})"
        f" or ({every} + {number(limits.lost_share_prefix_caching)})"
    )
    thrown = f"{metric('preemptions_per_second')} * engine:vllm_context_tokens:mean"
    useful = metric("useful_tokens_per_second")

    def tax(share: str) -> str:
        redone = f"{thrown} * {share}"
        return f"({redone}) / (({redone} + {useful}) > 0)"

    estimate = "engine:vllm_lost_share:estimate"
    least = f"max {identity} (({_UNSURE} * 0 + {number(UNKNOWN_CACHING.least)}) or {number(LEAST_LOST)} * {estimate})"
    return (
        Recording(metric("useful_tokens_per_second"), f"{generated} + ({prompts})"),
        Recording(_PROMPT, over_r_window(config, length("prompt"))),
        Recording(_OUTPUT, over_r_window(config, length("output"))),
        Recording("engine:vllm_context_tokens:mean", f"{_PROMPT} + {_OUTPUT} / 2"),
        # Absent where it is known; never read as off.
        Recording(_UNSURE, f"({every} + 1) unless {same} ({cached} or {uncached}) unless {same} ({_restored(config)})"),
        Recording(estimate, f"max {identity} ({lost})"),
        Recording(metric("recompute_tax_ratio"), tax(estimate)),
        Recording(metric("recompute_tax_lower_ratio"), tax(f"({least})")),
        Recording(metric("recompute_tax_upper_ratio"), tax(f"({estimate} > bool 0)")),
    )


_PROMPT, _OUTPUT = "engine:vllm_prompt_tokens:r_window", "engine:vllm_output_tokens:r_window"
# 1 where neither a label nor a lookup says whether prefix caching is on: then no page follows from the tax.
_UNSURE = "engine:vllm_prefix_caching_unknown:bool"


def sure_of_tax(config: Config) -> str:
    """Return what takes engines out of a condition whose tax rests on a guess."""
    return f"unless {on(config.identity)} {_UNSURE}"


def _caching(config: Config) -> tuple[str, str]:
    """Return engines with prefix caching and without: a lookup proves it, else the label says (`core.sample`)."""
    identity, queries, hits = (
        on(config.identity),
        metric("prefix_cache_queries_total"),
        metric("prefix_cache_hits_total"),
    )
    server = tuple(label for label in config.identity if label != "model_name")
    every = f"0 * {metric('generation_tokens_total')}"
    labelled = {word: _config_info(config, f'{PREFIX_CACHING}=~"(?i:{word})"') for word in ("true", "false")}
    said = {word: f"(({every}) and {on(server)} {info})" for word, info in labelled.items()}
    looked = f"(0 * ({queries} > 0) or 0 * ({hits} > 0))"
    # V1 counts no lookup where it is off; without a prompt nothing could have been looked up.
    none = (
        f"(0 * ({queries} == 0) and {identity} ({metric('prompt_tokens_total')} > 0) unless {identity} {said['true']})"
    )
    return f"({looked} or {said['true']})", f"(({said['false']} or {none}) unless {identity} {looked})"


def _lost_with_caching(config: Config) -> str:
    """Say what `core.recompute_tax.lost_share` says, with a block of 32 tokens: no rule reads a label's number."""
    context = f"({_PROMPT} + {_OUTPUT} / 2)"
    decoding = (
        f"clamp_max({number(DECODE_PREEMPTIONS)} * {_OUTPUT} / {_PROMPT}"
        f" / ({metric('preemptions_per_completion')} > 0), 1)"
    )
    output = f"max {by(config.identity)} (({_OUTPUT} <= {context} / 2) or {context} / 2)"
    filling = f"clamp_min(clamp_max({_OUTPUT} / 2, {number(MID_PREFILL_LOST)}), {number(ASSUMED_BLOCK)})"
    return f"clamp_max(((1 - {decoding}) * {filling} + {decoding} * ({output})) / {context}, 1)"


def computed_prompts(config: Config) -> str:
    """Prompt tokens computed a second; where vLLM does not split them by source, those not found in the cache."""
    fold, seconds = _fold(config), fast(config)
    computed = fold.rate("prompt_tokens_computed_total", seconds=seconds)
    prompts = fold.rate("prompt_tokens_total", seconds=seconds)
    hits = fold.rate("prefix_cache_hits_total", seconds=seconds)
    return f"{computed} or clamp_min({prompts} - {hits}, 0) or {prompts}"


def _config_info(config: Config, matcher: str) -> str:
    """1 for each engine whose cache_config_info (which has no model_name) matches."""
    labels = tuple(label for label in config.identity if label != "model_name")
    choices = []
    for prefix in config.spellings:
        choices.append(f'{prefix}{CACHE_CONFIG}{{engine!="",{matcher}}}')
        choices.append(f'label_replace({prefix}{CACHE_CONFIG}{{engine="",{matcher}}}, "engine", "0", "", "")')
    union = " or ".join(choices)
    return f"max {by(labels)} ({raw.targeted(union)})"


def _restored(config: Config) -> str:
    """Engines whose preempted blocks come back from a store: an offload tier, or a connector that is asked for them.

    Those that only move blocks from prefill to decode servers do it once a request (`vllm_vitals.vllm.lookup`).
    """
    window = _fold(config).range(600)
    asked = raw.folded(config, wire("external_queries"), function="rate", window=window)
    fetch = raw.latest(config, wire("kv_fetching"))
    moves = raw.latest(config, raw.either(wire("nixl_failures"), wire("mooncake_failures")))
    stores = raw.latest(config, raw.either(wire("offload_loaded"), wire("simple_offload_loaded")))
    return f"((({asked}) > 0 or ({fetch}) >= 0) unless {on(config.identity)} (({moves}) >= 0)) or ({stores}) >= 0"


def _work(config: Config) -> tuple[Recording, ...]:
    waiting = waiting_total(config)
    rate = over_r_window(config, lambda w: f"engine:vllm_completions:increase{w}s / {w}")
    # Where few finish: all that did, over the time in which there was work.
    longest = r_windows(config)[-1]
    busy = f"(engine:vllm_work:requests > 0)[{longest}s:{config.evaluation_seconds}s]"
    rate += (
        f" or (engine:vllm_completions:increase{longest}s > 0)"
        f" / (count_over_time({busy}) * {config.evaluation_seconds})"
    )
    return (
        Recording(
            metric("expected_wait_seconds"), f"(({waiting}) / {on(config.identity)} ({rate})) or ({waiting}) == 0"
        ),
        Recording(
            metric("stall_gaps_per_second"),
            f"clamp_min(rate(engine:vllm_inter_token_latency_seconds:count{_fold(config).range(fast(config))})"
            f" - rate(engine:vllm_inter_token_latency_seconds:within_1s{_fold(config).range(fast(config))}), 0)",
        ),
    )


def waiting_total(config: Config, ago: int = 0) -> str:
    """Write the waiting requests of every reason, per victim, ``ago`` seconds back."""
    return f"sum {by(config.identity)} ({_fold(config).gauge('requests_waiting', offset=ago, keep=('reason',))})"


def _shares(config: Config) -> tuple[Recording, ...]:
    fold, slow = _fold(config), int(config.thresholds.slow_window)
    window = fold.range(slow)
    identity = by(config.identity)
    finished = fold.rate("responses_total", seconds=slow, keep=("finished_reason",))
    cut = fold.rate("responses_total", 'finished_reason="length"', seconds=slow)
    count = f"(max {identity} (rate(engine:vllm_request_output_tokens:count{window})) > 0)"
    hits = fold.rate("prefix_cache_hits_total", seconds=fast(config))
    queries = fold.rate("prefix_cache_queries_total", seconds=fast(config))
    return (
        Recording(metric("truncated_ratio"), f"({cut}) / (sum {identity} ({finished}) > 0)"),
        Recording(
            metric("output_tokens_mean"),
            f"max {identity} (rate(engine:vllm_request_output_tokens:sum{window})) / {count}",
        ),
        Recording(
            metric("prompt_tokens_mean"),
            f"max {identity} (rate(engine:vllm_request_prompt_tokens:sum{window})) / {count}",
        ),
        Recording(metric("prefix_cache_hit_ratio"), f"({hits}) / (({queries}) > 0)"),
    )


def _abandoned(config: Config) -> tuple[Recording, ...]:
    """First tokens - finished - change in running, less the victims that wait: started, and gone without finishing."""
    seconds = fast(config)
    identity = by(config.identity)
    running = _fold(config).gauge("requests_running")
    before = _fold(config).gauge("requests_running", offset=seconds)
    evicted = f"engine:vllm_preemptions:increase{fast(config)}s"
    queue = f"clamp_min(({waiting_total(config)}) - ({waiting_total(config, fast(config))}), 0)"
    victims = f"max {identity} (({evicted} < {queue}) or {queue})"
    started = f"max {identity} ({_increase(_fold(config), 'engine:vllm_first_tokens:count', seconds)})"
    gone = f"{started} - engine:vllm_completions:increase{fast(config)}s - (({running}) - ({before})) - {victims}"
    return (Recording(metric("abandoned_requests_per_second"), f"clamp_min({gone}, 0) / {seconds}"),)
