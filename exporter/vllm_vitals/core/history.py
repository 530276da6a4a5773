"""What one engine remembers beyond its window: progress, the calm before an episode, and its own usual values.

Each class holds one memory, is fed once per sample with the time of that sample, and never looks at a clock.
"""

from array import array
from dataclasses import dataclass
from math import floor, inf, log2
from statistics import median

from vllm_vitals.core import vital_signs
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Reading, absent
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.window import Span, Window, increase

DAY = 86_400.0
LIFE_GAPS = 10_000.0  # gaps between tokens from which the mean of an engine's life says what is usual


class Progress:
    """When tokens, steps or the KV high-water mark last moved while work was present.

    Step counters are the weaker proof (an engine can step through dummy batches, vllm-ascend#13648): while only they
    move, the patience is that of an engine that compiles.
    """

    def __init__(self) -> None:
        self._moved_at: float | None = None
        self._stepped_at: float | None = None
        self._spoke_at: float | None = None
        self._high_water = 0.0
        self._at_finish: EngineSample | None = None

    def feed(self, at: float, new: EngineSample, old: EngineSample | None, *, paused: bool = False) -> None:
        """Take in a sample; ``old`` is the one before it in this life, None at its start. Paused, it need not move."""
        work = new.work
        finished = old is not None and increase(new.completions, old.completions)
        if old is None or finished:
            self._at_finish = new
        spoke = old is None or bool(increase(new.generation_tokens, old.generation_tokens))
        stepped = old is None or bool(increase(new.steps, old.steps))
        moved = spoke or finished or (old is not None and bool(increase(new.prompt_tokens, old.prompt_tokens)))
        resting = paused or new.asleep or new.updating_weights or not work or (old is not None and not old.work)
        usage = new.kv_usage or 0.0
        # a long prefill moves nothing but KV usage
        if moved or resting or usage > self._high_water:
            self._moved_at, self._high_water = at, usage
        if stepped or moved or resting:
            self._stepped_at = at
        if spoke or resting:
            self._spoke_at = at

    def seconds_without_progress(self, at: float) -> float | None:
        """Return seconds without progress."""
        return None if self._moved_at is None else at - self._moved_at

    def still_stepping(self, at: float, within: float) -> bool:
        """Return whether the step counter moved lately although no token did."""
        return self._stepped_at is not None and at - self._stepped_at < within

    def seconds_without_token(self, at: float) -> float | None:
        """Return seconds without a generated token."""
        return None if self._spoke_at is None else at - self._spoke_at

    def inflight_estimate(self, sample: EngineSample) -> Reading:
        """Return tokens since the last completion per request present: some request has produced about that many.

        Requests that began since then count too where more of them made tokens than are present: vLLM counts nowhere
        those whose client has left.
        """
        work, then = sample.work, self._at_finish
        made = None if then is None else increase(sample.generation_tokens, then.generation_tokens)
        if not work or then is None or made is None:
            return absent("nothing is in flight")
        return Reading(made / max(work, (then.running or 0.0) + _started(sample, then)))


def _started(new: EngineSample, old: EngineSample) -> float:
    """Return requests that got their first token between two samples; 0 where that is not counted."""
    now, before = (sample.histograms.get("ttft_seconds") for sample in (new, old))
    return 0.0 if now is None or before is None else max(0.0, now.count - before.count)


@dataclass(frozen=True, slots=True)
class Calm:
    """An engine as it was before the first preemption of an episode: tokens/s, requests present, mean lengths.

    ``started`` is the mean prompt of the requests that got a first token, which shows another workload at once;
    ``prompt`` and ``output`` are those of the finished.
    """

    generation: float
    work: float
    prompt: float | None
    output: float | None
    started: float | None = None


class Episode:
    """From the first preemption after a window without any, to the next window without any."""

    def __init__(self) -> None:
        self.before: Calm | None = None
        self._running = False

    def feed(self, window: Window, limits: Thresholds) -> None:
        """WindowView whether an episode begins or ends; call before the newest sample is judged."""
        span = window.span(limits.fast_window)
        preemptions = None if span is None else span.increase("preemptions")
        if preemptions is None:
            return
        if preemptions == 0:
            self._running, self.before = False, None
            return
        if not self._running:
            self._running = True
            self.before = _calm_before(window, limits)

    def generation_vs_baseline(self, span: Span, work: float | None) -> float | None:
        """Return generation as a share of the calm's, with ``work`` requests present on average.

        None where no calm was seen; infinite where less work or other lengths explain a fall. Lengths that cannot be
        told (nothing finished) explain nothing.
        """
        rate, calm = span.rate("generation_tokens"), self.before
        if calm is None or rate is None or work is None:
            return None
        comparable = (
            work >= calm.work
            and _alike(span.mean("request_prompt_tokens"), calm.prompt)
            and _alike(span.mean("request_output_tokens"), calm.output)
            and _alike(_started_prompt(span), calm.started)
        )
        return rate / calm.generation if comparable else inf


def _calm_before(window: Window, limits: Thresholds) -> Calm | None:
    """Means over what the window holds without preemptions, where that is at least half a fast window."""
    calm = window.calm(limits.slow_window)
    if calm is None or calm[0].seconds < limits.fast_window / 2:
        return None
    span, samples = calm
    generation, work = span.rate("generation_tokens"), vital_signs.gauges(samples).work
    if not generation or work is None:
        return None
    prompt, output = span.mean("request_prompt_tokens"), span.mean("request_output_tokens")
    return Calm(generation, work, prompt, output, _started_prompt(span))


def _started_prompt(span: Span) -> float | None:
    """Return the mean prompt of requests that got their first token; absent in V0, which counts recomputation too."""
    started, prompts = span.observed("ttft_seconds"), span.increase("prompt_tokens")
    if span.last.recompute_counted or started is None or started[0] <= 0 or prompts is None:
        return None
    return prompts / started[0]


def _alike(now: float | None, before: float | None) -> bool:
    return now is None or before is None or (now <= 2 * before and before <= 2 * now)


class UsualLatency:
    """The engine's usual mean inter-token latency: follows slowly, and stands still while decode is starved.

    An engine that has served a while before it is first seen begins with the mean of its life so far.
    """

    def __init__(self) -> None:
        self._usual: float | None = None
        self._at = 0.0

    def feed(self, at: float, span: Span, prefill_factor: float | None, limits: Thresholds) -> float | None:
        """Take in the fast window's mean; answers how many times the usual it is, None without a usual or a gap."""
        mean = span.mean("inter_token_latency_seconds")
        if mean is None or mean <= 0:
            return None
        life = span.first.histograms.get("inter_token_latency_seconds")
        if self._usual is None and life is not None and life.count >= LIFE_GAPS and life.sum > 0:
            self._usual, self._at = life.sum / life.count, at
        if self._usual is None:
            if span.seconds >= limits.fast_window / 2:
                self._usual, self._at = mean, at
            return None
        factor = mean / self._usual
        crowded = prefill_factor is not None and prefill_factor >= limits.starved_prefill_factor
        if not (crowded and factor >= limits.starved_latency_factor / 2) and not span.increase("preemptions"):
            weight = min(1.0, (at - self._at) / limits.slow_window)
            self._usual += (mean - self._usual) * weight
        self._at = at
        return factor


class UsefulBaseline:
    """Useful tokens/s of the last day: one entry a fast window without preemption, with concurrency and length."""

    def __init__(self) -> None:
        self._times, self._running, self._length, self._useful = (array("d") for _ in range(4))
        self._reading = absent("no window yet")
        self._next = 0.0

    def feed(self, at: float, span: Span, running: float | None, limits: Thresholds) -> Reading:
        """Return the median useful rate at about this concurrency (25 %) and length; looked up once a fast window."""
        if at < self._next:
            return self._reading
        self._next = at + limits.fast_window
        useful, length = vital_signs.useful_rate(span), _length_class(span)
        if useful is None or running is None or length is None:
            self._reading = absent("no request finished in the window, so what to compare it with is unknown")
            return self._reading
        self._forget(at - DAY)
        alike = [
            u
            for r, c, u in zip(self._running, self._length, self._useful, strict=True)
            if c == length and abs(r - running) <= 0.25 * running
        ]
        if span.increase("preemptions") == 0 and span.seconds >= limits.fast_window * 0.9 and running > 0:
            for column, number in zip(self._columns(), (at, running, length, useful), strict=True):
                column.append(number)
        enough = len(alike) >= limits.baseline_windows
        self._reading = Reading(median(alike)) if enough else absent(
            f"{len(alike)} of {limits.baseline_windows} comparable windows without preemption seen"
        )  # fmt: skip
        return self._reading

    def _columns(self) -> tuple["array[float]", ...]:
        return self._times, self._running, self._length, self._useful

    def _forget(self, before: float) -> None:
        stale = sum(1 for t in self._times if t < before) if self._times and self._times[0] < before else 0
        for column in self._columns():
            del column[:stale]


def _length_class(span: Span) -> float | None:
    """log2 of the mean prompt length of the finished: requests within a factor 2 share a class."""
    mean = span.mean("request_prompt_tokens")
    return None if mean is None or mean <= 0 else float(floor(log2(mean)))
