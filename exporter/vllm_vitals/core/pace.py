"""An engine against its own past: how fast it decodes at a load, and how fast it usually does at the same load.

Input: one fast window a minute. Output: a `Pace`. What is compared is the mean gap between tokens at equal running,
resident KV and prefill share (25 %): those three explain what a batch does to it; what remains is the machine. A single
window proves nothing: the middle one of the last five is said, of three at least.
Under speculation a gap is one step, not one token, and shrinks when acceptance collapses: then acceptance and the
request's own TPOT are compared (vllm/v1/metrics/stats.py). Invariant: while it is slower the past stands still, so that
a slowdown does not become usual within a week; windows with evictions neither judge nor count.
"""

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import sqrt
from statistics import median

from vllm_vitals.core import vital_signs
from vllm_vitals.core.derive import WindowView
from vllm_vitals.core.thresholds import Thresholds

DAY = 86_400.0
ALIKE = 0.25
LEAST_PREFILL = 0.5  # prompt tokens computed per generated one; a difference below it is lost in a step
FROZEN_DAYS = 7  # a slowdown that lasts longer is how it is now
LOOKS, LEAST_LOOKS, LOOKS_S = 5, 3, 1_800.0  # comparisons that a verdict rests on, and how old the oldest may be
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


Row = tuple[float, float, float, float, float]  # running, resident tokens, prefill share, seconds a token, acceptance


class UsualPace:
    """The windows of the last day: running, resident KV tokens, prefill share, seconds a token, acceptance."""

    def __init__(self) -> None:
        self._times = array("d")
        self._running, self._tokens, self._prefill, self._gap, self._accepted = (array("f") for _ in range(5))
        self._looks: deque[tuple[float, float, float]] = deque(maxlen=LOOKS)  # at, gap over usual, acceptance
        self._next = 0.0
        self._pace: Pace | None = None

    def feed(self, view: WindowView, limits: Thresholds) -> Pace | None:
        """Return the pace of the newest fast window; looked up once a window, then as it was for up to 10 minutes."""
        at = view.at
        if at >= self._next:
            self._next = at + limits.fast_window
            row = _row(view, limits)
            if row is not None:
                self.look(at, view.fast.seconds, row, limits)
        if self._pace is not None and at - self._pace.at > STALE_S:
            self._pace = None
        return self._pace

    def look(self, at: float, seconds: float, row: Row, limits: Thresholds) -> Pace | None:
        """Compare one window of ``seconds`` with the past, and remember it unless it is slower."""
        gap, accepted = row[3], row[4]
        usual, before = self._usual(row, limits), self._pace
        acceptance = self._acceptance(limits) if accepted >= 0 else None
        half = _half(limits)
        # while it is slower, a window that cannot be compared is no usual one either
        slower = gap >= usual[0] * half if usual is not None else before is not None and before.since is not None
        if slower or (acceptance and accepted < acceptance / 2):
            self._forget(at - FROZEN_DAYS * DAY)
        else:
            self._forget(at - DAY)
            self._remember(at, row)
        if usual is None and acceptance is None:
            return self._pace  # as it was, while that is not too old
        self._looks.append((at, gap / usual[0] if usual is not None else 1.0, accepted))
        while at - self._looks[0][0] > LOOKS_S:
            self._looks.popleft()
        if len(self._looks) < LEAST_LOOKS:
            return self._pace
        factor, seen = median(look[1] for look in self._looks), median(look[2] for look in self._looks)
        expected, windows = usual if usual is not None else (gap, len(self._times))
        spoken = (None, None) if acceptance is None else (seen, acceptance)
        pace = Pace(at, factor * expected, expected, windows, None, *spoken)
        if factor >= half or pace.rejected:
            since = self._looks[0][0] - seconds if before is None or before.since is None else before.since
            pace = replace(pace, since=since)
        self._pace = pace
        return pace

    def _usual(self, row: Row, limits: Thresholds) -> tuple[float, int] | None:
        """Return seconds a token at this load, and from how many windows; None where the past does not say.

        At equal running, KV and prefill share it is their median; where those are few, of windows with more prefill as
        well. A slow server in front of the same traffic holds more requests than it ever did: there it is the line
        through the past, gap against running, which is how a batch behaves.
        """
        running, tokens, prefill, gap, accepted = row
        # as much prefill a step, or a second: either explains a gap alone, and a slow engine keeps one of the two
        slack, rate = max(ALIKE * prefill, LEAST_PREFILL), prefill * running / gap
        rate_slack = slack * running / gap
        least, least_rate, held = prefill - slack, rate - rate_slack, (1 - ALIKE) * tokens / running
        near, kv = max(0.5, ALIKE * running), ALIKE * tokens
        close = [index for index, r in enumerate(self._running) if abs(r - running) <= near]

        def comparable(indices: Iterable[int]) -> list[tuple[float, float, float, float]]:
            columns = self._columns()
            rows = ([column[index] for column in columns] for index in indices)
            return [
                (r, t, p, g)
                for r, t, p, g, a in rows
                if t >= held * r and (p >= least or p * r >= least_rate * g) and (a >= 0) == (accepted >= 0)
            ]

        alike = [(r, p, g) for r, t, p, g in comparable(close) if abs(t - tokens) <= kv]
        same = [g for r, p, g in alike if abs(p - prefill) <= slack or abs(p * r / g - rate) <= rate_slack]
        for gaps in (same, [g for _, _, g in alike]):
            if len(gaps) >= limits.baseline_windows:
                return median(gaps), len(gaps)
        past = comparable(range(len(self._times)))
        if len(past) < limits.baseline_windows:
            return None
        expected = _on_the_line([(r, g) for r, _, _, g in past], running, gap, _half(limits))
        return None if expected is None else (expected, len(past))

    def _acceptance(self, limits: Thresholds) -> float | None:
        known = [share for share in self._accepted if share >= 0]
        return median(known) if len(known) >= limits.baseline_windows else None

    def _remember(self, at: float, row: Row) -> None:
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


def _half(limits: Thresholds) -> float:
    """Return the factor at which a slowdown is held: half of what enters it."""
    return 1 + (limits.degraded_latency_factor - 1) / 2


def _on_the_line(past: list[tuple[float, float]], running: float, gap: float, half: float) -> float | None:
    """Return the gap that the line through the past gives at ``running``; None where it does not reach there.

    None as well where the gap lies within four standard errors of the line (at that distance) and far above it.
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
    return None if half * expected <= gap <= expected + SIGMAS * doubt else expected


def _row(view: WindowView, limits: Thresholds) -> Row | None:
    """Return load and speed of the newest fast window; None where it shows too little, or evictions lengthen gaps."""
    span, means = view.fast, view.means
    generated, computed = span.increase("generation_tokens"), vital_signs.computed_prompt_tokens(span)
    if span.seconds < limits.fast_window * 0.9 or span.increase("preemptions") != 0:
        return None
    if not generated or computed is None or not means.running or means.kv_usage is None:
        return None
    accepted = vital_signs.acceptance(span)
    name = "inter_token_latency_seconds" if accepted is None else "tpot_seconds"
    observed = span.observed(name)
    if observed is None or observed[1] <= 0 or observed[0] < (LEAST_GAPS if accepted is None else 1):
        return None
    tokens = means.kv_usage * (view.sample.kv_capacity_tokens or 1.0)
    gap = observed[1] / observed[0]
    return means.running, tokens, computed / generated, gap, -1.0 if accepted is None else accepted
