"""An engine against its own past: how fast it decodes at a load, and how fast it usually does at the same load.

Input: one fast window a minute. Output: a `Pace`. What is compared is the mean gap between tokens at equal running,
resident KV (25 %) and no more prefill: those three explain what a batch does to it; what remains is the machine.
Under speculation a gap is one step, not one token, and shrinks when acceptance collapses: then acceptance and the
request's own TPOT are compared (vllm/v1/metrics/stats.py). Invariant: while it is slower the past stands still, so that
a slowdown never becomes usual; windows with evictions neither judge nor count.
"""

from array import array
from dataclasses import dataclass
from math import sqrt
from statistics import median

from vllm_vitals.core import signals
from vllm_vitals.core.derive import WindowView
from vllm_vitals.core.thresholds import Thresholds

DAY = 86_400.0
ALIKE = 0.25
LEAST_PREFILL = 0.5  # prompt tokens computed per generated one; a difference below it is lost in a step
LEAST_GAPS = 50.0  # tokens in a window whose mean gap says something
REACH, LEAST_SPREAD, SIGMAS = 2.5, 0.3, 4.0  # times the most that ever ran; requests; standard errors
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
        gap, accepted = row[3], row[4]
        usual, before = self._usual(row, limits), self._pace
        acceptance = self._acceptance(limits) if accepted >= 0 else None
        rejected = acceptance is not None and accepted < acceptance / 2
        slower = usual is not None and gap >= usual[0] * (1 + (limits.degraded_latency_factor - 1) / 2)
        if not slower and not rejected:
            self._remember(view.at, row)
        if usual is None and acceptance is None:
            self._pace = None
            return
        began = view.at - view.fast.seconds if before is None or before.since is None else before.since
        since = began if slower or rejected else None
        expected, windows = usual if usual is not None else (gap, len(self._times))
        spoken = (None, None) if acceptance is None else (accepted, acceptance)
        self._pace = Pace(view.at, gap, expected, windows, since, *spoken)

    def _usual(self, row: tuple[float, float, float, float, float], limits: Thresholds) -> tuple[float, int] | None:
        """Return seconds a token at this load, and from how many windows; None where the past does not say.

        At equal running and KV it is their median. A slow server in front of the same traffic holds more requests than
        it ever did: there it is the line through the past, gap against running, which is how a batch behaves.
        """
        running, tokens, prefill, gap, accepted = row
        # less prefill explains no slowdown; and where it is less than half a token a generated one, no more does
        slack = max(ALIKE * prefill, LEAST_PREFILL * running / gap)
        held = (1 - ALIKE) * tokens / running
        comparable = [
            (r, t, g)
            for r, t, p, g, a in zip(self._running, self._tokens, self._prefill, self._gap, self._accepted, strict=True)
            if p >= prefill - slack and t >= held * r and (a >= 0) == (accepted >= 0)
        ]
        alike = [
            g
            for r, t, g in comparable
            if abs(r - running) <= max(0.5, ALIKE * running) and abs(t - tokens) <= ALIKE * tokens
        ]
        if len(alike) >= limits.baseline_windows:
            return median(alike), len(alike)
        if len(comparable) < limits.baseline_windows:
            return None
        expected = _on_the_line([(r, g) for r, _, g in comparable], running, gap)
        return None if expected is None else (expected, len(comparable))

    def _acceptance(self, limits: Thresholds) -> float | None:
        known = [share for share in self._accepted if share >= 0]
        return median(known) if len(known) >= limits.baseline_windows else None

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


def _on_the_line(past: list[tuple[float, float]], running: float, gap: float) -> float | None:
    """Return the gap that the line through the past gives at ``running``; None where it does not reach there.

    Invariant: a gap within four standard errors of the line (at that distance) is as expected.
    """
    count = len(past)
    runs, gaps = [r for r, _ in past], [g for _, g in past]
    least, most = min(runs), max(runs)
    mean_r, mean_g = sum(runs) / count, sum(gaps) / count
    spread = sum((r - mean_r) ** 2 for r in runs)
    if running > REACH * most or spread <= count * LEAST_SPREAD**2:
        return None
    slope = max(0.0, sum((r - mean_r) * (g - mean_g) for r, g in past) / spread)
    error = sum((g - mean_g - slope * (r - mean_r)) ** 2 for r, g in past) / max(1, count - 2)
    at = max(least, running)
    expected = mean_g + slope * (at - mean_r)
    doubt = sqrt(error * (1 + 1 / count + (at - mean_r) ** 2 / spread))
    return max(expected, gap) if gap <= expected + SIGMAS * doubt else expected


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
