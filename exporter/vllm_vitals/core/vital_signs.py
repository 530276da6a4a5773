"""The vital signs: one function each, from a window of samples to a `Reading`.

Rates and states come from the fast window, shares and quantiles from the slow one. A function that cannot know says
why (`absent`); none of them ever answers 0 for "not seen".
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_vitals.core import quantile
from vllm_vitals.core.sample import EngineSample, Histogram
from vllm_vitals.core.snapshot import Reading, Role, absent, invalid
from vllm_vitals.core.window import Span, increase

DEFERRED = 0.5  # share of the waiting from which a queue is not for lack of slots or KV
SOME_DEFERRED = 0.1  # ... from which it is worth a word
STALL_GAP_S = 1.0  # an inter-token gap that a reader of the stream notices


def value(number: float | None, why: str) -> Reading:
    """Return a reading of ``number``, or absent for ``why``."""
    return absent(why) if number is None else Reading(number)


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
        mean([sample.running for sample in samples]),
        mean([sample.waiting for sample in samples]),
        mean([sample.kv_usage for sample in samples]),
    )


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of what is known, None where nothing is."""
    try:
        return sum(values) / len(values) if values else None  # type: ignore[arg-type] # where all is known
    except TypeError:
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


def largest_usage(samples: Sequence[EngineSample]) -> Reading:
    """Return the largest KV usage seen: what an instant shows dips while victims free their blocks."""
    largest = max([sample.kv_usage for sample in samples if sample.kv_usage is not None], default=None)
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
    said = settings.get(name)
    try:
        return None if said is None else float(said)
    except ValueError:
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
