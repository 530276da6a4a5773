"""What vLLM's frontend counts, as the engine reports it (vllm/v1/metrics/stats.py, loggers.py, 0.32).

Input: steps and finished requests. Output: counters and histograms in vLLM's own units. Invariants: recomputation
after a preemption is in no counter; a client that hangs up leaves no finished request; gauges change only when the
engine steps.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_vitals.simulator.request import Request

# vllm/v1/metrics/buckets.py
REQUEST_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                   480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
               80.0, 160.0, 640.0, 2560.0)  # fmt: skip
INTER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
               80.0)  # fmt: skip
ITERATION = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def token_buckets(max_model_len: int) -> tuple[float, ...]:
    """Return the 1-2-5 series up to `max_model_len` (vllm/v1/metrics/loggers.py build_1_2_5_buckets)."""
    edges = (digit * 10**power for power in range(12) for digit in (1, 2, 5))
    return tuple(float(edge) for edge in edges if edge <= max_model_len)


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

    def __post_init__(self) -> None:
        tokens = token_buckets(self.max_model_len)
        bounds = {
            "request_prompt_tokens": tokens, "request_generation_tokens": tokens, "iteration_tokens_total": ITERATION,
            "request_max_num_generation_tokens": tokens, "request_params_n": CHOICES,
            "request_params_max_tokens": tokens, "time_to_first_token_seconds": FIRST_TOKEN,
            "inter_token_latency_seconds": INTER_TOKEN, "request_time_per_output_token_seconds": INTER_TOKEN,
            "e2e_request_latency_seconds": REQUEST_LATENCY, "request_queue_time_seconds": REQUEST_LATENCY,
            "request_inference_time_seconds": REQUEST_LATENCY, "request_prefill_time_seconds": REQUEST_LATENCY,
            "request_decode_time_seconds": REQUEST_LATENCY, "request_num_preemptions": PREEMPTIONS,
            "request_prefill_kv_computed_tokens": tokens,
        }  # fmt: skip
        self.histograms = {name: Histogram(edges) for name, edges in bounds.items()}

    def first_admission(self, request: Request) -> None:
        """Prefix look-ups count once, when a request is first admitted; a victim's do not (S:138-155)."""
        self.prefix_queries += request.prompt
        self.device_hits += request.cached

    def first_token(self, request: Request) -> int:
        """Count a prompt with its first output; return the prompt tokens that were computed for it."""
        self.prompt_tokens += request.prompt
        self.cached_tokens += request.cached
        self.histograms["time_to_first_token_seconds"].observe(request.first_token_at - request.arrival)
        return request.prompt - request.cached

    def fail(self, request: Request) -> None:
        """Count a request that ended in `error`: a first output without a token, and no prompt (seen on 0.32.0)."""
        self.histograms["time_to_first_token_seconds"].observe(request.first_token_at - request.arrival)
        self.finish(request)

    def finish(self, request: Request) -> None:
        """Count a finished request (S:586-620)."""
        self.responses[request.reason] += 1
        decode = request.finished_at - request.first_token_at
        values = {
            "request_prompt_tokens": request.prompt, "request_generation_tokens": request.output,
            "request_max_num_generation_tokens": request.output, "request_params_n": 1,
            "request_params_max_tokens": request.max_tokens,
            "request_time_per_output_token_seconds": decode / (request.output - 1) if request.output > 1 else 0.0,
            "e2e_request_latency_seconds": request.finished_at - request.arrival,
            "request_queue_time_seconds": request.scheduled_at - request.arrival,
            "request_inference_time_seconds": request.finished_at - request.scheduled_at,
            "request_prefill_time_seconds": request.first_token_at - request.scheduled_at,
            "request_decode_time_seconds": decode, "request_num_preemptions": request.preemptions,
            "request_prefill_kv_computed_tokens": request.prompt - request.cached,
        }  # fmt: skip
        histograms = self.histograms
        for name, value in values.items():
            histograms[name].observe(value)
