"""The recompute tax: the share of all computed tokens that evicted requests compute again, with its bounds."""

from dataclasses import dataclass

from vllm_vitals.core.outcomes import Completions
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Reading, absent
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.vital_signs import Gauges
from vllm_vitals.core.window import Span


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
    by_usage = None
    if means.kv_usage is not None and means.running and capacity is not None:
        by_usage = means.kv_usage * capacity / max(means.running, 1.0)
        if trusted:
            return Context(by_usage, by_usage, by_usage)
    prompt, output = finished.mean("request_prompt_tokens"), finished.mean("request_output_tokens")
    by_length = None if prompt is None or output is None else prompt + output / 2
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
MID_PREFILL_LOST = 120.0  # tokens of a victim in mid-prefill that others take while it waits, at most half an output


def lost_share(
    sample: EngineSample, finished: Completions | None, context: float | None, block: float | None, limits: Thresholds
) -> LostShare:
    """Return how much of its context a victim computes again.

    Without prefix caching 0.4 was measured in loops. With it a victim finds its blocks again unless others took them
    meanwhile: one that is evicted in mid-prefill loses a block, or where blocks are small what the others grow by until
    it fits again; one that decodes loses about as much as an output is long, at most half its context. How many decode
    follows from the lengths: about 0.9 output / prompt of the preemptions a completion. Held against an instrumented
    scheduler's count of tokens scheduled again on loops of vLLM 0.32, and for small blocks against the simulator's
    (docs/adr/0004).
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
    filling = min(max(block or ASSUMED_BLOCK, min(MID_PREFILL_LOST, output / 2)), context)
    tokens = (1 - decoding) * filling + decoding * min(output, context / 2)
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
