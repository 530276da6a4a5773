"""The vital signs: one function each, from a window of samples to a `Reading`.

Rates and states come from the fast window, shares and quantiles from the slow one. A function that cannot know says
why (`absent`); none of them ever answers 0 for "not seen".
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from operator import attrgetter

from vllm_vitals.core import quantile
from vllm_vitals.core.sample import EngineSample, Histogram
from vllm_vitals.core.snapshot import Reading, Role, absent, invalid
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.window import Span, Window, increase

_COMPLETIONS, _ERRORS = attrgetter("completions"), attrgetter("errors")
DEFERRED = 0.5  # share of the waiting from which a queue is not for lack of slots or KV
SOME_DEFERRED = 0.1  # ... from which it is worth a word
STALL_GAP_S = 1.0  # an inter-token gap that a reader of the stream notices


def exceeds(events: float, completions: float, level: float, at_least: float) -> bool:
    """Return whether ``events`` per completion are at ``level`` beyond what chance would do to a calm engine.

    1.28 standard deviations of an overdispersed Poisson count (variance 1.5 x mean) are asked on top; without it a
    benign engine at 0.15 and 2-5 completions a minute raises some 150 false entries a day.
    """
    expected = level * completions
    return events >= at_least and events >= expected + 1.28 * sqrt(1.5 * expected)


def value(number: float | None, why: str) -> Reading:
    """Return a reading of ``number``, or absent for ``why``."""
    return absent(why) if number is None else Reading(number)


@dataclass(frozen=True, slots=True)
class Completions:
    """The shortest span between the fast and the slow window that holds enough completions, and its counts."""

    span: Span
    completions: float
    preemptions: float | None
    repeated: float | None

    @property
    def ratio(self) -> float | None:
        """R: preemptions per completion."""
        return None if self.preemptions is None else self.preemptions / self.completions

    @property
    def repeat_ratio(self) -> float | None:
        """Share of the finished that were preempted twice or more."""
        return None if self.repeated is None else self.repeated / self.completions


def completions(window: Window, limits: Thresholds) -> Completions | None:
    """Return where R is taken, or None when not even the slow window holds ``min_completions``."""
    span = window.span_with(limits.min_completions, limits.fast_window, limits.slow_window, _COMPLETIONS)
    finished = None if span is None else span.increase("completions")
    if span is None or finished is None:
        return None
    return Completions(span, finished, span.increase("preemptions"), _repeated(span))


@dataclass(frozen=True, slots=True)
class Finishes:
    """How requests ended, over the shortest span from the fast to the slow window that holds enough of them."""

    seconds: float
    good: float
    errors: float
    aborts: float
    repetition: float = 0.0

    @property
    def all(self) -> float:
        """Every request that ended."""
        return self.good + self.errors + self.aborts

    @property
    def error_share(self) -> float:
        """Those that failed inside the engine."""
        return self.errors / self.all if self.all else 0.0

    @property
    def abort_share(self) -> float:
        """Those that were given up; counted by some frontends alone."""
        return self.aborts / self.all if self.all else 0.0


ENOUGH_FINISHES = 10.0


def finishes(window: Window, slow: Span, limits: Thresholds) -> Finishes | None:
    """Return requests by outcome, where any ended otherwise than whole; None where none did.

    Where fewer than 10 ended in the slow window, it is all of that.
    """
    if not (slow.increase("errors") or slow.increase("aborts") or (slow.responses() or {}).get("repetition")):
        return None
    return _outcomes(window.span_with(ENOUGH_FINISHES, limits.fast_window, limits.slow_window, _ended) or slow)


def some_errors(window: Window, slow: Span, limits: Thresholds) -> Finishes | None:
    """Return requests by outcome over the shortest span that holds enough errors, else over the slow window.

    A small share of a brisk traffic is no ten errors a minute: only a longer span proves it. None where none failed.
    """
    if not slow.increase("errors"):
        return None
    return _outcomes(window.span_with(limits.failing_errors, limits.fast_window, limits.slow_window, _ERRORS) or slow)


def _outcomes(span: Span) -> Finishes | None:
    good, errors, aborts = span.increase("completions"), span.increase("errors"), span.increase("aborts")
    if good is None or errors is None or aborts is None:
        return None
    return Finishes(span.seconds, good, errors, aborts, (span.responses() or {}).get("repetition", 0.0))


def _ended(sample: EngineSample) -> float | None:
    """Return requests of every outcome since the server started."""
    return None if sample.responses is None else sum(sample.responses.values())


def _repeated(span: Span) -> float | None:
    """Return requests finished after two preemptions or more; the bucket le="1" holds those with none or one."""
    observed, few = span.observed("request_preemptions"), span.observed_at_most("request_preemptions", 1.0)
    return None if observed is None or few is None else observed[0] - few


@dataclass(frozen=True, slots=True)
class Gauges:
    """Means of the gauges over a window, each over the samples that have it."""

    running: float | None
    waiting: float | None
    kv_usage: float | None

    @property
    def work(self) -> float | None:
        """Requests present."""
        return None if self.running is None or self.waiting is None else self.running + self.waiting


def gauges(samples: Sequence[EngineSample]) -> Gauges:
    """Return the means over these samples."""
    return Gauges(
        mean(sample.running for sample in samples),
        mean(sample.waiting for sample in samples),
        mean(sample.kv_usage for sample in samples),
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def useful_rate(span: Span) -> float | None:
    """Return generated plus computed prompt tokens a second. V1 counters leave recomputation out; V0's do not.

    Where vLLM does not split prompts by source (before 0.16) tokens found in the prefix cache are taken off.
    """
    generated, prompts = span.increase("generation_tokens"), computed_prompt_tokens(span)
    if generated is None or prompts is None or span.seconds <= 0:
        return None
    return (generated + prompts) / span.seconds


def computed_prompt_tokens(span: Span) -> float | None:
    """Return prompt tokens computed within the span (not found in a cache)."""
    exact = span.increase("prompt_tokens_computed")
    if exact is not None:
        return exact
    prompts, hits = span.increase("prompt_tokens"), span.increase("prefix_cache_hits")
    return None if prompts is None else max(0.0, prompts - (hits or 0.0))


@dataclass(frozen=True, slots=True)
class Context:
    """Tokens that a running request holds, and the range that the page leaves open."""

    tokens: float
    least: float
    most: float


def resident_context(means: Gauges, capacity: float | None, finished: Span, *, trusted: bool = True) -> Context | None:
    """Return tokens that a running request holds: KV usage x capacity / running over the window.

    Where the capacity is unknown: mean prompt plus half the mean output of the requests that ``finished``. Not
    ``trusted``, the capacity contradicts other numbers of the page: what finished is the estimate, both are the range.
    """
    prompt, output = finished.mean("request_prompt_tokens"), finished.mean("request_output_tokens")
    by_length = None if prompt is None or output is None else prompt + output / 2
    by_usage = None
    if means.kv_usage is not None and means.running and capacity is not None:
        by_usage = means.kv_usage * capacity / max(means.running, 1.0)
    chosen = by_usage if trusted and by_usage is not None else by_length if by_length is not None else by_usage
    if chosen is None:
        return None
    known = [size for size in (by_usage, by_length, chosen) if size is not None] if not trusted else [chosen]
    return Context(chosen, min(known), max(known))


@dataclass(frozen=True, slots=True)
class LostShare:
    """f: the share of its context that a preempted request computes again. ``sure``: the caching is known."""

    estimate: float
    least: float
    most: float = 1.0
    sure: bool = True


UNKNOWN_CACHING = LostShare(0.2, 0.05, sure=False)
DECODE_PREEMPTIONS = 0.9  # preemptions in the decode phase a completion, for each output token per prompt token
LEAST_LOST = 0.4  # of the estimate; a loop whose server was short of CPU lost half of it for a minute
ASSUMED_BLOCK = 32.0  # tokens; between vLLM's 16 on GPUs and its 128 on CPUs


def lost_share(
    sample: EngineSample, finished: Completions | None, context: float | None, block: float | None, limits: Thresholds
) -> LostShare:
    """Return how much of its context a victim computes again.

    Without prefix caching 0.4 was measured in loops. With it a victim finds its blocks again unless others took them
    meanwhile: one that is evicted in mid-prefill loses one block, one that decodes loses about as much as an output is
    long, at most half its context. How many decode follows from the lengths: about 0.9 output / prompt of the
    preemptions a completion. Measured on nine loops of vLLM 0.32 (an instrumented scheduler's count of tokens scheduled
    again): within 1.3 x of the truth on each, where one constant is off by up to 3 x (docs/adr).
    """
    if sample.kv_restored:
        return LostShare(0.0, 0.0, 0.0)
    caching = sample.caches_prefixes
    if caching is None:
        return UNKNOWN_CACHING
    if not caching:
        return LostShare(limits.lost_share, limits.lost_share * LEAST_LOST)
    usual = limits.lost_share_prefix_caching
    prompt = output = ratio = None
    if finished is not None:
        prompt, output = finished.span.mean("request_prompt_tokens"), finished.span.mean("request_output_tokens")
        ratio = finished.ratio
    if not context or not prompt or output is None or not ratio:
        return LostShare(usual, usual * LEAST_LOST)
    decoding = min(1.0, DECODE_PREEMPTIONS * output / prompt / ratio)
    tokens = (1 - decoding) * min(block or ASSUMED_BLOCK, context) + decoding * min(output, context / 2)
    share = min(1.0, tokens / context)
    return LostShare(share, share * LEAST_LOST)


def recompute_tax(
    preemption_rate: float | None, useful: float | None, context: Context | None, lost: LostShare
) -> Reading:
    """Return the share of all computed tokens that is recomputation, as an estimate with bounds."""
    if preemption_rate is None or useful is None:
        return absent("needs preemption and token counters")
    if preemption_rate == 0:
        return Reading(0.0, 0.0, 0.0)
    if context is None:
        return absent("needs the KV capacity or finished requests to know how much a victim loses")

    def tax(share: float, tokens: float) -> float:
        again = preemption_rate * share * tokens
        return again / (again + useful) if again + useful > 0 else 0.0

    return Reading(tax(lost.estimate, context.tokens), tax(lost.least, context.least), tax(lost.most, context.most))


def largest_usage(samples: Sequence[EngineSample]) -> Reading:
    """Return the largest KV usage seen: what an instant shows dips while victims free their blocks."""
    largest = max((sample.kv_usage for sample in samples if sample.kv_usage is not None), default=None)
    if largest is None and samples and "kv_cache_usage_ratio" in samples[-1].unusable:
        return invalid("the server's KV usage is not between 0 and 1")
    return value(largest, "the server has no KV usage gauge")


def demand(means: Gauges) -> Reading:
    """KV usage if every waiting request ran as well: usage x (running + waiting) / running."""
    if means.kv_usage is None or means.running is None or means.waiting is None:
        return absent("needs KV usage, running and waiting")
    if means.running < 1:
        return absent("nothing is running, so a waiting request's share is unknown")
    return Reading(means.kv_usage * (means.running + means.waiting) / means.running)


def full_windows(sample: EngineSample, settings: Mapping[str, str]) -> Reading:
    """Return requests at the full context length that fit the cache: capacity / max_model_len.

    vLLM 0.24 on says it itself, in a label of cache_config_info; max_model_len is in no metric.
    """
    length = setting(settings, "max_model_len")
    if length and sample.kv_capacity_tokens is not None:
        return Reading(sample.kv_capacity_tokens / length)
    said = setting(settings, "kv_cache_max_concurrency")
    return value(said, "needs max_model_len: from the config, the start-up log or /v1/models")


def setting(settings: Mapping[str, str], name: str) -> float | None:
    """Return a numeric setting of the server, where it is known and a number."""
    try:
        return float(settings[name])
    except (KeyError, ValueError):
        return None


def stall_gaps(span: Span) -> Reading:
    """Inter-token gaps longer than 1 s, a second; exact where 1 s is a bucket edge."""
    gaps = span.observed("inter_token_latency_seconds")
    if gaps is None:
        return absent("the server has no inter-token histogram")
    short = span.observed_at_most("inter_token_latency_seconds", STALL_GAP_S)
    if short is None:
        return absent("the inter-token histogram has no bucket edge at 1 s")
    return Reading((gaps[0] - short) / span.seconds)


def truncated(span: Span, role: Role) -> Reading:
    """Return the share of finished responses that ended by length. Client disconnects are in no counter of vLLM's."""
    if role in (Role.PREFILL, Role.POOLING):
        return absent(f"a {role} engine does not end responses")
    finished = span.responses()
    if finished is None:
        return absent("the server does not count finished responses")
    total = sum(finished.values()) - finished.get("error", 0.0) - finished.get("abort", 0.0)
    if total <= 0:
        return absent("no request finished in the window")
    return Reading(finished.get("length", 0.0) / total)


def acceptance(span: Span) -> float | None:
    """Return the share of drafted tokens that the model accepted; None where it does not speculate."""
    new, old = span.last, span.first
    if not new.details or not old.details:
        return None
    drafted, accepted = (
        increase(new.detail(name), old.detail(name))
        for name in ("spec_decode_draft_tokens_total", "spec_decode_accepted_tokens_total")
    )
    return None if not drafted or accepted is None else accepted / drafted


def prefix_hit_ratio(span: Span) -> Reading:
    """Return the share of looked-up tokens that the prefix cache held."""
    looked, found = span.increase("prefix_cache_queries"), span.increase("prefix_cache_hits")
    if looked is None or found is None:
        return absent("the server has no prefix-cache counters")
    if looked <= 0:
        return absent("nothing was looked up in the window")
    return Reading(min(1.0, found / looked))


def abandoned(span: Span) -> Reading:
    """Return requests a second that got a first token and left without finishing: an estimate, clamped at 0.

    First tokens - finishes - change in running, less the victims that wait to resume.
    """
    started = span.observed("ttft_seconds")
    finished = span.increase("completions")
    now, before = span.last.running, span.first.running
    if started is None or finished is None or now is None or before is None:
        return absent("needs time to first token, finished responses and running")
    victims = min(
        span.increase("preemptions") or 0.0, max(0.0, (span.last.waiting or 0.0) - (span.first.waiting or 0.0))
    )
    return Reading(max(0.0, started[0] - finished - (now - before) - victims) / span.seconds)


def of_answers(span: Span, name: str) -> Histogram | None:
    """Observations of a family within the span without those of failed requests, which lie in the first bucket.

    vLLM observes a request that ends in error with no output token and 0 s a token: while most fail, every latency
    seems to improve (vllm/v1/metrics/stats.py; measured on 0.32).
    """
    histogram, errors = span.histogram(name), span.increase("errors")
    if histogram is None or not errors:
        return histogram
    failed = min(errors, histogram.counts[0])
    return Histogram(histogram.bounds, array("d", (count - failed for count in histogram.counts)), histogram.sum)


def tails(span: Span, role: Role) -> dict[str, Reading]:
    """p50, p99 and their ratio of time per output token, from both sources, and p99 time to first token."""
    readings: dict[str, Reading] = {"ttft_p99_seconds": quantile.quantile(span.histogram("ttft_seconds"), 0.99)}
    for family, suffix in (("tpot_seconds", ""), ("inter_token_latency_seconds", ".inter_token")):
        if role in (Role.PREFILL, Role.POOLING):
            p50 = p99 = p_ratio = absent(f"a {role} engine does not decode")
        else:
            histogram = of_answers(span, family) if family == "tpot_seconds" else span.histogram(family)
            p50, p99 = quantile.quantile(histogram, 0.5), quantile.quantile(histogram, 0.99)
            p_ratio = quantile.ratio(p99, p50)
        readings[f"tpot_p50_seconds{suffix}"] = p50
        readings[f"tpot_p99_seconds{suffix}"] = p99
        readings[f"tpot_p99_p50_ratio{suffix}"] = p_ratio
    return readings


def lengths(span: Span, role: Role) -> dict[str, Reading]:
    """Return the workload's shape: prompt and output lengths, their spread and their stragglers."""
    outputs = of_answers(span, "request_output_tokens")
    length = quantile.mean(outputs)
    readings = {
        "prompt_tokens_mean": quantile.mean_of(span.observed("request_prompt_tokens")),
        "output_tokens_mean": length,
        "output_tokens_p90": quantile.quantile(outputs, 0.9),
    }
    if role in (Role.PREFILL, Role.POOLING):
        spread = stragglers = absent(f"a {role} engine does not decode")
    else:
        spread = quantile.cv(outputs)
        stragglers = straggler_ratio(quantile.quantile(outputs, 0.99), length)
    return {**readings, "output_tokens_cv": spread, "output_tokens_straggler_ratio": stragglers}


def straggler_ratio(p99: Reading, mean: Reading) -> Reading:
    """p99 output length over the mean. Above 10, an SLO on TPOT needs to say which lengths it assumes."""
    if not mean.value or p99.lower is None or p99.upper is None:
        return absent(mean.why or p99.why)
    return Reading(
        None if p99.value is None else p99.value / mean.value,
        p99.lower / mean.value,
        p99.upper / mean.value,
        why=p99.why,
    )


def infer_role(span: Span, limits: Thresholds) -> Role | None:
    """Return what an engine does, from its finishes: prefill answers with one token, pooling with none.

    Where the span holds too few finishes, from all since the server started; None where those are too few as well.
    """
    outputs, short = span.observed("request_output_tokens"), span.observed_at_most("request_output_tokens", 1.0)
    failed = span.increase("errors") or 0.0
    if outputs is not None and short is not None:
        outputs, short = (outputs[0] - failed, outputs[1]), max(0.0, short - failed)
    lately = _role(
        span.increase("completions"), span.increase("generation_tokens"), span.increase("prompt_tokens"),
        None if outputs is None or short is None or outputs[0] <= 0 else short / outputs[0], limits,
    )  # fmt: skip
    if lately is not None:
        return lately
    ever = span.last
    lengths = ever.histograms.get("request_output_tokens")
    share = None if lengths is None else quantile.share_at_most(lengths, 1.0)
    return _role(ever.completions, ever.generation_tokens, ever.prompt_tokens, share, limits)


def _role(
    finished: float | None, generated: float | None, prompts: float | None, one_token: float | None, limits: Thresholds
) -> Role | None:
    """``one_token`` is the share of the finished that have no more."""
    if finished is None or finished < limits.min_completions:
        return None
    if generated == 0 and (prompts or 0.0) > 0:
        return Role.POOLING
    return Role.PREFILL if one_token is not None and one_token >= limits.prefill_share else Role.SERVE
