"""How requests ended, over the shortest window that proves anything: R's completions, errors and aborts."""

from dataclasses import dataclass
from math import sqrt
from operator import attrgetter

from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.window import Span, Window

_COMPLETIONS = attrgetter("completions")


def exceeds(events: float, completions: float, level: float, at_least: float) -> bool:
    """Return whether ``events`` per completion are at ``level`` beyond what chance would do to a calm engine.

    1.28 standard deviations of an overdispersed Poisson count (variance 1.5 x mean) are asked on top; without it a
    benign engine at 0.15 and 2-5 completions a minute raises some 150 false entries a day.
    """
    expected = level * completions
    return events >= at_least and events >= expected + 1.28 * sqrt(1.5 * expected)


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
_UNUSUAL = ("error", "abort", "repetition")


def finishes(window: Window, slow: Span, limits: Thresholds) -> Finishes | None:
    """Return requests by outcome, where any ended otherwise than whole; None where none did.

    Where fewer than 10 ended in the slow window, it is all of that.
    """
    ever = slow.last.responses or {}
    if not any(ever.get(reason) for reason in _UNUSUAL):
        return None
    if not (slow.increase("errors") or slow.increase("aborts") or (slow.responses() or {}).get("repetition")):
        return None
    return _outcomes(window.span_with(ENOUGH_FINISHES, limits.fast_window, limits.slow_window, _ended) or slow)


def some_errors(window: Window, slow: Span, limits: Thresholds) -> Finishes | None:
    """Return requests by outcome over the shortest span in which the least share that counts is enough errors.

    A small share of a brisk traffic is no ten errors a minute, and ten finishes hold none: 200 finishes decide on 5 %,
    or all of the slow window. None where none failed.
    """
    if not slow.last.errors or not slow.increase("errors"):
        return None
    enough = limits.failing_errors / limits.degraded_error_share
    return _outcomes(window.span_with(enough, limits.fast_window, limits.slow_window, _ended) or slow)


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
