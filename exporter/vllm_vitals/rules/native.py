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
        *_shares(config),
        *_tax(config),
        *_work(config),
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
    )


# Of a counter of reasons, those that are a finished request.
_GOOD = f'{metric("responses_total")}{{finished_reason!~"error|abort"}}'
_COMPLETED = "engine:vllm_completions:total"
_ENDED = "engine:vllm_ended:total"
_REPEATED = "engine:vllm_repeat_preempted:total"
# Over the window that R takes: its length (s), finished requests, and evictions, which are absent where there are none.
R_WINDOW = "engine:vllm_r_window:seconds"
COMPLETIONS, PREEMPTIONS, REPEATS = (
    f"engine:vllm_{what}:r_window" for what in ("completions", "preemptions", "repeat_preempted")
)


def raw_rate(config: Config, field: str, part: str, *matchers: str, seconds: float) -> str:
    """Rate of a histogram's part straight from vLLM's series: what one or two rules read is no record of its own."""
    window = _fold(config).range(seconds)
    return raw.folded(config, wire(field, part), *matchers, function="rate", window=window)


# PromQL over a window of so many seconds.
OverWindow = Callable[[int], str]


def _rate(fold: Fold, series: str, window: int) -> str:
    return f"rate({series}{fold.range(window)})"


def _increase(fold: Fold, series: str, window: int) -> str:
    """Return a rate times the length of its range (see `Fold.rate`)."""
    return f"{_rate(fold, series, window)} * {fold.span(window)}"


def _counts(config: Config) -> tuple[Recording, ...]:
    """Record counters that R needs over several windows: finished requests of every good reason, and repeats."""
    fold, identity = _fold(config), by(config.identity)
    finished = by((*config.identity, "finished_reason"))

    def total(series: str) -> str:
        """Counters from one scrape, so that they begin anew together."""
        return f"sum {identity} (max {finished} (last_over_time({series}{fold.range(config.evaluation_seconds)})))"

    every, once = (
        raw.latest(config, wire("request_preemptions", part), *matchers)
        for part, *matchers in (("count",), ("bucket", r'le=~"1|1\\.0"'))
    )
    return (
        Recording(_COMPLETED, total(_GOOD)),
        Recording(_ENDED, total(metric("responses_total"))),
        Recording(_REPEATED, f"{every} - {once}"),
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
        return _increase(fold, _ENDED, w)

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


def completed(config: Config, seconds: int) -> str:
    """Finished requests within a window (s)."""
    return _increase(_fold(config), _COMPLETED, seconds)


def over_r_window(config: Config, what: OverWindow) -> str:
    """Write ``what`` over the shortest window with enough completions; nothing where none has them."""
    choices = " or ".join(f"(({what(w)}) and {on(config.identity)} {R_WINDOW} == {w})" for w in r_windows(config))
    # Choices that have names of their own would be several series over time: without a name they are one.
    return f"max {by(config.identity)} ({choices})"


def _r(config: Config) -> tuple[Recording, ...]:
    fold, identity, same = _fold(config), by(config.identity), on(config.identity)
    least = number(config.thresholds.min_completions)
    windows = " or ".join(f"({completed(config, w)} >= {least}) * 0 + {w}" for w in r_windows(config))
    none = f"0 * {COMPLETIONS}"

    def preemptions(w: int) -> str:
        return f"max {identity} ({_increase(fold, metric('preemptions_total'), w)})"

    return (
        Recording(R_WINDOW, f"max {identity} ({windows})"),
        Recording(COMPLETIONS, over_r_window(config, lambda w: completed(config, w))),
        Recording(PREEMPTIONS, f"{over_r_window(config, preemptions)} > 0"),
        Recording(REPEATS, f"{over_r_window(config, lambda w: _increase(fold, _REPEATED, w))} > 0"),
        Recording(metric("preemptions_per_completion"), f"max {identity} ({PREEMPTIONS} / {COMPLETIONS} or {none})"),
        Recording(
            metric("repeat_preemption_ratio"),
            f"max {identity} ({REPEATS} / {COMPLETIONS} or ({none} and {same} {_REPEATED}))",
        ),
        Recording(metric("preemptions_per_second"), fold.rate("preemptions_total", seconds=fast(config))),
    )


def _tax(config: Config) -> tuple[Recording, ...]:
    """Recompute tax = p f context / (p f context + useful), and its bounds (`core.recompute_tax.lost_share`)."""
    identity, limits, same = by(config.identity), config.thresholds, on(config.identity)
    generated = _fold(config).rate("generation_tokens_total", seconds=fast(config))
    prompts = computed_prompts(config)
    every = f"0 * {_EVICTS}"
    lost = (
        f"(({every}) and {same} ({_LOSES} == 2))"
        f" or (({every} + {number(UNKNOWN_CACHING.estimate)}) and {same} {_UNSURE})"
        f" or (({every} + {number(limits.lost_share)}) and {same} ({_LOSES} == 0))"
        f" or ({_lost_with_caching(config)})"
        f" or ({every} + {number(limits.lost_share_prefix_caching)})"
    )
    context = f"({PROMPT} + {OUTPUT} / 2)"
    thrown = f"{metric('preemptions_per_second')} * {context}"
    useful = metric("useful_tokens_per_second")

    def tax(share: str) -> str:
        redone = f"{thrown} * {share}"
        return f"({redone}) / (({redone} + {useful}) > 0)"

    none = f"{metric('recompute_tax_ratio')} == 0"
    estimate = "engine:vllm_lost_share:estimate"
    least = f"max {identity} (({_UNSURE} * 0 + {number(UNKNOWN_CACHING.least)}) or {number(LEAST_LOST)} * {estimate})"
    return (
        Recording(metric("useful_tokens_per_second"), f"{generated} + ({prompts})"),
        # Over R's window, which is shorter where many finish, a mean would be the same.
        Recording(PROMPT, f"{metric('prompt_tokens_mean')} and {same} {_EVICTS}"),
        Recording(OUTPUT, f"{metric('output_tokens_mean')} and {same} {_EVICTS}"),
        # Absent where it is known; never read as off. Both are there while requests are evicted: nobody asks else.
        Recording(_UNSURE, f"({every} + 1) unless {same} {_LOSES}"),
        Recording(estimate, f"max {identity} ({lost})"),
        # It is 0 where nothing is evicted, whatever the context.
        Recording(
            metric("recompute_tax_ratio"),
            f"max {identity} ({tax(estimate)} or (0 * {useful} and {same} ({metric('preemptions_per_second')} == 0)))",
        ),
        *(
            Recording(metric(f"recompute_tax_{bound}_ratio"), f"max {identity} ({tax(share)} or {none})")
            for bound, share in (("lower", f"({least})"), ("upper", f"({estimate} > bool 0)"))
        ),
    )


_EVICTS = f"({metric('preemptions_per_second')} > 0)"
# What an evicted request finds again: 2 all of it in a store, 1 its prefix, 0 nothing; absent where it is not known.
_LOSES = "engine:vllm_prefix_caching:kind"
# Mean lengths of the last ten minutes, of engines that evict: what follows from them costs nothing while none does.
PROMPT, OUTPUT = (f"engine:vllm_evicting_{what}_tokens:mean" for what in ("prompt", "output"))
# 1 where neither a label nor a lookup says whether prefix caching is on: then no page follows from the tax.
_UNSURE = "engine:vllm_prefix_caching_unknown:bool"


def sure_of_tax(config: Config) -> str:
    """Return what takes engines out of a condition whose tax rests on a guess."""
    return f"unless {on(config.identity)} {_UNSURE}"


def slow(config: Config) -> tuple[Recording, ...]:
    """Return what seldom changes: where an evicted request's blocks are found again."""
    cached, uncached = _caching(config)
    choices = f"({_restored(config)}) * 0 + 2 or ({cached}) * 0 + 1 or ({uncached}) * 0"
    return (Recording(_LOSES, f"max {by(config.identity)} ({choices})"),)


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
    context = f"({PROMPT} + {OUTPUT} / 2)"
    decoding = (
        f"clamp_max({number(DECODE_PREEMPTIONS)} * {OUTPUT} / {PROMPT}"
        f" / ({metric('preemptions_per_completion')} > 0), 1)"
    )
    output = f"max {by(config.identity)} (({OUTPUT} <= {context} / 2) or {context} / 2)"
    filling = f"clamp_min(clamp_max({OUTPUT} / 2, {number(MID_PREFILL_LOST)}), {number(ASSUMED_BLOCK)})"
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
    # Where few finish: all that did, over the time in which there was work, to the minute.
    longest = r_windows(config)[-1]
    busy = f"(engine:vllm_work:requests > 0)[{longest}s:{_MINUTE}s]"
    rate = (
        f"max {by(config.identity)} ({COMPLETIONS} / {R_WINDOW}"
        f" or ({completed(config, longest)} > 0) / (count_over_time({busy}) * {_MINUTE}))"
    )
    gaps, short = (
        raw_rate(config, "inter_token_latency_seconds", part, *matchers, seconds=fast(config))
        for part, *matchers in (("count",), ("bucket", r'le=~"1|1\\.0"'))
    )
    return (
        Recording(
            metric("expected_wait_seconds"), f"(({waiting}) / {on(config.identity)} ({rate})) or ({waiting}) == 0"
        ),
        Recording(metric("stall_gaps_per_second"), f"clamp_min({gaps} - {short}, 0)"),
    )


_MINUTE = 60  # s


def waiting_total(config: Config, ago: int = 0) -> str:
    """Write the waiting requests of every reason, per victim, ``ago`` seconds back."""
    return f"sum {by(config.identity)} ({_fold(config).gauge('requests_waiting', offset=ago, keep=('reason',))})"


def _shares(config: Config) -> tuple[Recording, ...]:
    fold, slow = _fold(config), int(config.thresholds.slow_window)
    identity = by(config.identity)
    finished = fold.rate("responses_total", seconds=slow, keep=("finished_reason",))
    cut = fold.rate("responses_total", 'finished_reason="length"', seconds=slow)
    count = f"({raw_rate(config, 'request_output_tokens', 'count', seconds=slow)} > 0)"
    hits = fold.rate("prefix_cache_hits_total", seconds=fast(config))
    queries = fold.rate("prefix_cache_queries_total", seconds=fast(config))
    return (
        Recording(metric("truncated_ratio"), f"({cut}) / (sum {identity} ({finished}) > 0)"),
        *(
            Recording(
                metric(f"{length}_tokens_mean"),
                f"{raw_rate(config, f'request_{length}_tokens', 'sum', seconds=slow)} / {count}",
            )
            for length in ("output", "prompt")
        ),
        Recording(metric("prefix_cache_hit_ratio"), f"({hits}) / (({queries}) > 0)"),
    )


def _abandoned(config: Config) -> tuple[Recording, ...]:
    """First tokens - finished - change in running, less the victims that wait: started, and gone without finishing."""
    seconds = fast(config)
    identity = by(config.identity)
    running = _fold(config).gauge("requests_running")
    before = _fold(config).gauge("requests_running", offset=seconds)
    evicted = f"({metric('preemptions_per_second')} * {seconds})"
    queue = f"clamp_min(({waiting_total(config)}) - ({waiting_total(config, fast(config))}), 0)"
    victims = f"max {identity} (({evicted} < {queue}) or {queue})"
    started = f"{raw_rate(config, 'ttft_seconds', 'count', seconds=seconds)} * {_fold(config).span(seconds)}"
    gone = f"{started} - {completed(config, seconds)} - (({running}) - ({before})) - {victims}"
    return (Recording(metric("abandoned_requests_per_second"), f"clamp_min({gone}, 0) / {seconds}"),)
