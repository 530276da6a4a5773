"""What vLLM's frontend counts, as the engine reports it (vllm/v1/metrics/stats.py, loggers.py, 0.32).

Input: steps and finished requests. Output: counters and histograms in vLLM's own units. Invariants: recomputation
after a preemption is in no counter; a client that hangs up leaves no finished request; gauges change only when the
engine steps.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_vitals.simulator.request import Request
from vllm_vitals.vllm.lookup import family

# By the fields of `vllm_vitals.vllm.families`.
_HISTOGRAMS = (
    "request_prompt_tokens", "request_output_tokens", "iteration_tokens", "request_longest_output", "request_choices",
    "request_max_tokens", "ttft_seconds", "inter_token_latency_seconds", "tpot_seconds", "e2e_latency_seconds",
    "queue_time_seconds", "inference_time_seconds", "prefill_time_seconds", "decode_time_seconds",
    "request_preemptions", "request_computed_tokens",
)  # fmt: skip
# What a finished request is observed in, in the order in which `EngineStats.finish` counts it.
_OF_REQUESTS = (
    "request_prompt_tokens", "request_output_tokens", "request_longest_output", "request_choices", "request_max_tokens",
    "tpot_seconds", "e2e_latency_seconds", "queue_time_seconds", "inference_time_seconds", "prefill_time_seconds",
    "decode_time_seconds", "request_preemptions", "request_computed_tokens",
)  # fmt: skip
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts per bucket (not cumulative; the last is +Inf) and the sum, in the family's unit."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add the same value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def observe_ramp(self, first: float, growth: float, steps: int, times: int) -> None:
        """Add ``first, first + growth, ...`` over `steps` steps, each `times` times; growth is not negative."""
        bounds, counts = self.bounds, self.counts
        low = bisect_left(bounds, first)
        high = bisect_left(bounds, first + growth * (steps - 1))
        done = 0
        for index in range(low, high):
            below = min(steps, int((bounds[index] - first) / growth) + 1)
            counts[index] += (below - done) * times
            done = below
        counts[high] += (steps - done) * times
        self.sum += times * (steps * first + growth * steps * (steps - 1) / 2)


@dataclass(slots=True)
class EngineStats:
    """The counters of one engine. Gauges are as of the end of its last step; ``prefilled`` includes recomputation.

    ``waiting`` includes the ``deferred``. ``accepted_at`` is accepted draft tokens by position, on average, so no whole
    numbers.
    """

    max_model_len: int
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    device_hits: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefilled: int = 0
    steps: int = 0
    sleep_level: int = 0
    deferred: int = 0
    external_queries: int = 0
    external_hits: int = 0
    queue_rejections: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_at: list[float] = field(default_factory=list)
    responses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    histograms: dict[str, Histogram] = field(default_factory=dict)
    _of_requests: tuple[Histogram, ...] = ()

    def __post_init__(self) -> None:
        self.histograms = {name: Histogram(family(name).bounds(self.max_model_len)) for name in _HISTOGRAMS}
        self._of_requests = tuple(self.histograms[name] for name in _OF_REQUESTS)

    def first_admission(self, request: Request) -> None:
        """Count a prefix look-up: once, when a request is first admitted; a victim's do not count (S:138-155)."""
        self.prefix_queries += request.prompt
        self.device_hits += request.cached

    def first_token(self, request: Request) -> int:
        """Count a prompt with its first output; return the prompt tokens that were computed for it."""
        self.prompt_tokens += request.prompt
        self.cached_tokens += request.cached
        self.histograms["ttft_seconds"].observe(request.first_token_at - request.arrival)
        return request.prompt - request.cached

    def fail(self, request: Request) -> None:
        """Count a request that ended in `error`: a first output without a token, and no prompt (seen on 0.32.0)."""
        self.histograms["ttft_seconds"].observe(request.first_token_at - request.arrival)
        self.finish(request)

    def finish(self, request: Request) -> None:
        """Count a finished request (S:586-620)."""
        self.responses[request.reason] += 1
        decode = request.finished_at - request.first_token_at
        output, arrival, scheduled = request.output, request.arrival, request.scheduled_at
        values = (
            request.prompt, output, output, 1, request.max_tokens, decode / (output - 1) if output > 1 else 0.0,
            request.finished_at - arrival, scheduled - arrival, request.finished_at - scheduled,
            request.first_token_at - scheduled, decode, request.preemptions, request.prompt - request.cached,
        )  # fmt: skip
        for histogram, value in zip(self._of_requests, values, strict=True):
            histogram.counts[bisect_left(histogram.bounds, value)] += 1
            histogram.sum += value
