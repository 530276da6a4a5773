"""The workload's shape: lengths, what to benchmark with, and the max_tokens that the lengths call for.

Input: one model's engines. Output: `Shape`. The rules for max_tokens are by the coefficient of variation (CV = standard
deviation / mean) of output length: 1.5-2 x the mean up to 0.3, 1.5-2 x p90 with fewer sequences above 1. Invariant: a
recommendation carries the numbers that it was computed from.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_vitals.core import vital_signs
from vllm_vitals.core.distribution import Cut, fit, is_sure, one_cap
from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.latency import whole
from vllm_vitals.planner.review.load import Engines, Headroom
from vllm_vitals.planner.telemetry.telemetry import share_within

STEADY_CV, WIDE_CV = 0.3, 1.0
FLATTERING_HITS = 0.1  # from this share of cache hits on, a benchmark with one prompt shows another server
STRAGGLERS = 10.0  # p99 output over the mean from which an SLO on speed must say its lengths
CUT = 0.05  # share of answers that ended at a cap, from which lengths say nothing about a better cap
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of finished requests. ``share_over`` is (least, greatest) by threshold."""

    count: float
    mean: float | None
    p50: Reading
    p90: Reading
    p95: Reading
    p99: Reading
    cv: Reading
    straggler_ratio: Reading
    share_over: Mapping[int, tuple[float, float]]
    histogram: Histogram | None


@dataclass(frozen=True, slots=True)
class MaxTokens:
    """``class_``: steady, mixed, wide or unknown. ``low`` to ``high`` is what to set; None where no rule applies."""

    class_: str
    low: int | None
    high: int | None
    arithmetic: str
    caution: str


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A ready profile: input and output lengths with their share of requests, and concurrencies to walk through."""

    inputs: tuple[tuple[str, int], ...]
    output: int | None
    concurrencies: tuple[int, ...]
    kv_limit: float | None
    command: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Runaway:
    """How long one request without an end would hold a slot: tokens it may make, seconds, share of the server."""

    tokens: float
    seconds: float
    share: float | None


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything about lengths."""

    inputs: Lengths
    outputs: Lengths
    caps: Lengths
    max_tokens: MaxTokens
    benchmark: Benchmark
    runaway: Runaway | None


def shape(engines: Engines, room: Headroom, hits: float | None, truncated: float | None, tpot: float | None,
          settings: Mapping[str, float]) -> Shape:  # fmt: skip
    """See `Shape`. ``hits`` and ``truncated`` are shares; ``tpot`` is the mean in seconds."""
    inputs = lengths(whole(engines, "request_prompt_tokens"))
    caps = lengths(whole(engines, "request_max_tokens"))
    made, cap = whole(engines, "request_output_tokens"), one_cap(caps.histogram)
    cut = Cut(cap, round(truncated * made.count)) if made is not None and cap is not None and truncated else None
    outputs = lengths(made, cut)
    return Shape(
        inputs, outputs, caps, max_tokens(outputs, truncated),
        benchmark(inputs, outputs, room, hits), runaway(caps, tpot, room, settings),
    )  # fmt: skip


def lengths(histogram: Histogram | None, cut: Cut | None = None) -> Lengths:
    """Quantiles, spread and shares of one histogram, some of whose answers a cap may have ``cut``."""
    found = fit(histogram, cut=cut)
    p99, centre = found.quantile(0.99), found.mean()
    over = {}
    if histogram is not None and histogram.count > 0:
        for limit in (8_000, 32_000):
            low, high = share_within(histogram, float(limit))
            over[limit] = (1 - high, 1 - low)
    return Lengths(
        found.count,
        centre.value,
        found.quantile(0.5),
        found.quantile(0.9),
        found.quantile(0.95),
        p99,
        found.cv(),
        vital_signs.straggler_ratio(p99, centre),
        over,
        histogram,
    )


def max_tokens(outputs: Lengths, truncated: float | None) -> MaxTokens:
    """Return what the spread of output lengths calls for: nothing, where a cap cut answers or it is not sure.

    The natural length of a truncated response is unknown: a cap computed from it would only truncate again.
    """
    cut = ""
    if truncated is not None and truncated >= CUT:
        cut = (
            f"{words.share(truncated)} of the responses were truncated at a cap, so true lengths are longer: "
            "measure again after raising it."
        )
        return MaxTokens("unknown", None, None, "answers that were cut say nothing about how long they would be", cut)
    spread, mean, p90 = outputs.cv.value, outputs.mean, outputs.p90.value
    if spread is None or not mean or not is_sure(outputs.cv):
        return MaxTokens("unknown", None, None, outputs.cv.why or "no output lengths were seen", cut)
    bounds = f"CV {spread:.2f}" + (
        f" (between {outputs.cv.lower:.2f} and {outputs.cv.upper:.2f})"
        if outputs.cv.lower is not None and outputs.cv.upper is not None
        else ""
    )
    if spread <= STEADY_CV:
        text = f"{bounds} is at most {STEADY_CV}: 1.5 to 2 x the mean of {mean:.0f} tokens"
        return MaxTokens("steady", round(1.5 * mean), round(2 * mean), text, cut)
    if p90 is None:
        return MaxTokens(
            "wide" if spread > WIDE_CV else "mixed", None, None, f"{bounds}, but p90 is {outputs.p90.why}", cut
        )
    if spread > WIDE_CV:
        text = (
            f"{bounds} is above {WIDE_CV:g}: 1.5 to 2 x the p90 of {p90:.0f} tokens, with fewer sequences at a "
            "time (eviction becomes waiting, p99 becomes predictable); or predict lengths, with a bias upwards"
        )
        return MaxTokens("wide", round(1.5 * p90), round(2 * p90), text, cut)
    text = (
        f"{bounds} lies between {STEADY_CV} and {WIDE_CV:g}: no static cap fits by rule. 1.5 to 2 x the p90 of "
        f"{p90:.0f} tokens is the safe side; separate routes by kind of request would narrow it"
    )
    return MaxTokens("mixed", round(1.5 * p90), round(2 * p90), text, cut)


def benchmark(inputs: Lengths, outputs: Lengths, room: Headroom, hits: float | None) -> Benchmark:
    """Lengths to test with, from the requests observed."""
    points = [(name, round(value)) for name, reading in (("p50", inputs.p50), ("p90", inputs.p90), ("p99", inputs.p99))
              if (value := reading.value or reading.upper) is not None and value < 1e9]  # fmt: skip
    output = None if outputs.mean is None else max(1, round(outputs.mean))
    top = room.running.max or 8
    steps = tuple(c for c in CONCURRENCIES if c <= 2 * top) or (1,)
    command = ""
    if points and output is not None:
        command = (
            "vllm bench serve --dataset-name random --random-input-len {length} "
            f"--random-output-len {output} --ignore-eos --max-concurrency {{concurrency}} "
            "--num-prompts {10 x concurrency}"
        )
    warnings = [
        "Give every request its own beginning: the same prompt twice is answered from the prefix cache, and a first "
        "token that takes seconds is measured in tenths.",
        "Run each point at least three times: one run is no result.",
        "Leave max_num_seqs high and vary the client's concurrency: the curve is the same, without restarts.",
    ]
    if hits is not None and hits >= FLATTERING_HITS:
        warnings.insert(
            0,
            f"Prefix-cache hits: {words.share(hits)} of the prompt tokens were found in the cache. A benchmark "
            "with fresh prompts will be slower than this service, one with repeated prompts faster: report both.",
        )
    if room.fit is not None and steps[-1] > room.fit:
        warnings.append(
            f"Above {room.fit:.0f} requests at a time this context no longer fits the KV cache: what is measured there "
            "is preemption."
        )
    return Benchmark(tuple(points), output, steps, room.fit, command, tuple(warnings))


def runaway(caps: Lengths, tpot: float | None, room: Headroom, settings: Mapping[str, float]) -> Runaway | None:
    """Return what a request that never stops would cost, where the caps in use leave it room."""
    longest = settings.get("default_max_tokens") or caps.p99.value or caps.p99.lower
    length = settings.get("max_model_len")
    tokens = min(t for t in (longest, length) if t) if longest or length else None
    slots = room.slots or room.running.max
    if tokens is None or not tpot:
        return None
    return Runaway(tokens, tokens * tpot, 1 / slots if slots else None)
