"""Growth a week in daily values that have weekdays, and how sure it is.

Input: values by day. Output: `Growth`. The model: each weekday has its level, all grow at one rate, and what is left
hangs together from day to day (AR(1): noise of today is rho x yesterday's plus its own). Weekdays and rate are fitted
by generalised least squares for each rho from 0 to 0.9; each weighs as much as the restricted likelihood (REML) gives
it, so that four weeks, which cannot tell rho well, widen the interval instead of narrowing it. Days may be missing:
over a gap of k days noise is rho^k of what it was. Invariant: noise of one day is never taken for growth because
weekdays differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt

from vllm_vitals.planner.student_t import below

WEEK = 7
MIN_DAYS = 14  # below, a weekday was seen once, and cannot be told from growth
_TOGETHER = tuple(k / 10 for k in range(10))  # rho
_TINY = 1e-9  # a day's noise is not taken as smaller than this


@dataclass(frozen=True, slots=True)
class Growth:
    """``rate`` a week with the ends of its 90 % interval, in the values' unit. ``levels`` are of each day of the cycle
    of seven on day ``centre``, the middle of what was seen, where they do not depend on the rate.
    """

    rate: float
    low: float
    high: float
    levels: Mapping[int, float]
    centre: float

    def on(self, day: int, rate: float | None = None) -> float | None:
        """Return what is expected on a day; None for a weekday that was never seen."""
        level = self.levels.get(day % WEEK)
        return None if level is None else level + self._grown(day, rate)

    def top(self, day: float, rate: float | None = None) -> float:
        """Return the busiest weekday's level on a day."""
        return max(self.levels.values()) + self._grown(day, rate)

    def _grown(self, day: float, rate: float | None) -> float:
        return (self.rate if rate is None else rate) * (day - self.centre) / WEEK


@dataclass(frozen=True, slots=True)
class _Fit:
    rate: float
    error: float
    levels: Sequence[float]
    support: float


def growth(values: Mapping[int, float]) -> Growth | None:
    """Fit values by day number; None where they are too few to tell weekdays from growth."""
    days = sorted(values)
    kinds = sorted({day % WEEK for day in days})
    freedom = len(days) - len(kinds) - 1
    if len(days) < MIN_DAYS or freedom < 1:
        return None
    centre = sum(days) / len(days)
    rows = [[*(float(day % WEEK == kind) for kind in kinds), (day - centre) / WEEK] for day in days]
    fits = [_fitted(days, rows, [values[day] for day in days], rho) for rho in _TOGETHER]
    most = max(each.support for each in fits)
    weights = [exp(each.support - most) for each in fits]
    total = sum(weights)

    def chance(rate: float) -> float:
        """Return how likely the rate is smaller."""
        parts = zip(weights, fits, strict=True)
        return sum(w * below((rate - each.rate) / each.error, freedom) for w, each in parts) / total

    def mean(values: Sequence[float]) -> float:
        return sum(w * value for w, value in zip(weights, values, strict=True)) / total

    reach, rates = 1e3 * max(each.error for each in fits), [each.rate for each in fits]
    low, high = (_where(chance, share, min(rates) - reach, max(rates) + reach) for share in (0.05, 0.95))
    levels = {kind: mean([each.levels[index] for each in fits]) for index, kind in enumerate(kinds)}
    return Growth(mean([each.rate for each in fits]), low, high, levels, centre)


def _fitted(days: Sequence[int], rows: Sequence[Sequence[float]], values: Sequence[float], rho: float) -> _Fit:
    """Return generalised least squares at one rho, by differences that have no noise in common."""
    table = [[*row, value] for row, value in zip(rows, values, strict=True)]
    white, spread = [table[0]], 0.0
    for (before, now), (earlier, day) in zip(pairwise(table), pairwise(days), strict=True):
        carried = rho ** (day - earlier)
        own = 1 - carried * carried
        white.append([(b - carried * a) / sqrt(own) for a, b in zip(before, now, strict=True)])
        spread += log(own)
    width = len(rows[0])
    square = [[sum(row[i] * row[j] for row in white) for j in range(width + 1)] for i in range(width + 1)]
    whole = sum(abs(row[-1]) for row in table) / len(table)
    factor = _cholesky(square)  # its last row solves, its last corner is what is left
    freedom = len(days) - width
    rest = max(factor[-1][-1] ** 2, freedom * (_TINY * max(whole, 1.0)) ** 2)
    solved = [0.0] * width
    for i in range(width - 1, -1, -1):
        solved[i] = (factor[-1][i] - sum(factor[j][i] * solved[j] for j in range(i + 1, width))) / factor[i][i]
    error = sqrt(rest / freedom) / factor[width - 1][width - 1]
    support = -spread / 2 - sum(log(factor[i][i]) for i in range(width)) - freedom / 2 * log(rest)
    return _Fit(solved[-1], error, solved[:-1], support)


def _cholesky(square: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the lower triangle whose product with itself is ``square``; a corner that rounding made negative is 0."""
    lower = [[0.0] * len(square) for _ in square]
    for i in range(len(square)):
        for j in range(i + 1):
            left = square[i][j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            lower[i][j] = sqrt(max(left, 0.0)) if i == j else left / lower[j][j]
    return lower


def _where(chance: Callable[[float], float], share: float, low: float, high: float) -> float:
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < share else (low, middle)
    return (low + high) / 2
