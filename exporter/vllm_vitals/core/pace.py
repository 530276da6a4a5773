"""An engine against its own past: how fast it decodes at a load, and how fast it usually does at the same load.

Input: one fast window a minute. Output: a `Pace`. What is compared is the mean gap between tokens at equal running,
resident KV (25 %) and no more prefill: those three explain what a batch does to it; what remains is the machine.
Under speculation a gap is one step, not one token, and shrinks when acceptance collapses: then acceptance and the
request's own TPOT are compared (vllm/v1/metrics/stats.py). Invariant: while it is slower the past stands still, so that
a slowdown never becomes usual; windows with evictions neither judge nor count.
"""

from array import array
from dataclasses import dataclass
from statistics import median

from vllm_vitals.core import signals
from vllm_vitals.core.derive import WindowView
from vllm_vitals.core.thresholds import Thresholds

DAY = 86_400.0
ALIKE = 0.25
LEAST_PREFILL = 0.5  # prompt tokens computed per generated one; a difference below it is lost in a step
LEAST_GAPS = 50.0  # tokens in a window whose mean gap says something
STALE_S = 600.0  # a comparison may be so old: traffic pauses


@dataclass(frozen=True, slots=True)
class Pace:
    """``now`` and ``usual``: seconds a token (mean). ``since`` (epoch s) while slower. ``windows`` it rests on.

    ``acceptance`` and ``usual_acceptance``: shares of drafted tokens that were accepted, where it speculates.
    """

    at: float
    now: float
    usual: float
    windows: int
    since: float | None = None
    acceptance: float | None = None
    usual_acceptance: float | None = None

    @property
    def factor(self) -> float:
        """How many times its usual a token takes."""
        return self.now / self.usual

    @property
    def rejected(self) -> bool:
        """Whether less than half of the usual share of drafted tokens is accepted."""
        if self.acceptance is None or self.usual_acceptance is None:
            return False
        return self.acceptance < self.usual_acceptance / 2


class UsualPace:
    """The windows of the last day: running, resident KV tokens, prefill tokens/s, seconds a token, acceptance."""

    def __init__(self) -> None:
        self._times = array("d")
        self._running, self._tokens, self._prefill, self._gap, self._accepted = (array("f") for _ in range(5))
        self._next = 0.0
        self._pace: Pace | None = None

    def feed(self, view: WindowView, limits: Thresholds) -> Pace | None:
        """Return the pace of the newest fast window; looked up once a window, then as it was for up to 10 minutes."""
        at = view.at
        if at >= self._next:
            self._next = at + limits.fast_window
            self._look(view, limits)
        if self._pace is not None and at - self._pace.at > STALE_S:
            self._pace = None
        return self._pace

    def _look(self, view: WindowView, limits: Thresholds) -> None:
        row = _row(view, limits)
        if row is None:
            return
        self._forget(view.at - DAY)
        running, tokens, prefill, gap, accepted = row
        # less prefill explains no slowdown; and where it is less than half a token a generated one, no more does
        slack = max(ALIKE * prefill, LEAST_PREFILL * running / gap)
        alike = [
            (g, a)
            for r, t, p, g, a in zip(self._running, self._tokens, self._prefill, self._gap, self._accepted, strict=True)
            if abs(r - running) <= max(0.5, ALIKE * running)
            and abs(t - tokens) <= ALIKE * tokens
            and p >= prefill - slack
            and (a >= 0) == (accepted >= 0)
        ]
        before = self._pace
        if len(alike) < limits.baseline_windows:
            self._pace = None
            self._remember(view.at, row)
            return
        usual, known = median(g for g, _ in alike), median(a for _, a in alike)
        rejected = 0 <= accepted < known / 2
        slower = rejected or gap >= usual * (1 + (limits.degraded_latency_factor - 1) / 2)
        since = (
            None if not slower else before.since if before and before.since is not None else view.at - view.fast.seconds
        )
        spoken = (accepted, known) if accepted >= 0 else (None, None)
        self._pace = Pace(view.at, gap, usual, len(alike), since, *spoken)
        if not slower:
            self._remember(view.at, row)

    def _remember(self, at: float, row: tuple[float, float, float, float, float]) -> None:
        self._times.append(at)
        for column, number in zip(self._columns(), row, strict=True):
            column.append(number)

    def _columns(self) -> tuple["array[float]", ...]:
        return self._running, self._tokens, self._prefill, self._gap, self._accepted

    def _forget(self, before: float) -> None:
        if not self._times or self._times[0] >= before:
            return
        stale = sum(1 for t in self._times if t < before)
        for column in (self._times, *self._columns()):
            del column[:stale]


def _row(view: WindowView, limits: Thresholds) -> tuple[float, float, float, float, float] | None:
    """Return load and speed of the newest fast window; None where it shows too little, or evictions lengthen gaps."""
    span, means = view.fast, view.means
    generated, computed = span.increase("generation_tokens"), signals.computed_prompt_tokens(span)
    if span.seconds < limits.fast_window * 0.9 or span.increase("preemptions") != 0:
        return None
    if not generated or computed is None or not means.running or means.kv_usage is None:
        return None
    accepted = signals.acceptance(span)
    name = "inter_token_latency_seconds" if accepted is None else "tpot_seconds"
    observed = span.observed(name)
    if observed is None or observed[1] <= 0 or observed[0] < (LEAST_GAPS if accepted is None else 1):
        return None
    tokens = means.kv_usage * (view.sample.kv_capacity_tokens or 1.0)
    gap = observed[1] / observed[0]
    return means.running, tokens, computed / span.seconds, gap, -1.0 if accepted is None else accepted
