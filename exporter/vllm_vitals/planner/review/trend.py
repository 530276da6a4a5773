"""Where it goes: daily peaks over weeks, a line through them, and when that line reaches the limit.

Input: one value a day. Output: `Trend` with dates as epoch s. Least squares with a 90 % interval of the slope
(Student's t). Invariant: a slope whose interval holds 0 is no trend, and no date is given without its range.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from vllm_vitals.planner.telemetry.grid import DAY

MIN_DAYS = 7
HORIZON_DAYS = 365.0
_Z90 = 1.6449


@dataclass(frozen=True, slots=True)
class Trend:
    """``days`` are (epoch s of a day's end, its peak). ``slope`` a day with its interval. ``limit`` is what runs out.

    ``reached`` is when the line meets the limit, ``earliest`` and ``latest`` from the ends of the slope's interval;
    None: not within a year. ``verdict``: grows, falls, no trend, too few days.
    """

    what: str
    unit: str
    days: tuple[tuple[float, float], ...]
    limit: float | None
    verdict: str
    slope: float | None = None
    slope_low: float | None = None
    slope_high: float | None = None
    centre: tuple[float, float] | None = None
    reached: float | None = None
    earliest: float | None = None
    latest: float | None = None

    def line(self, at: float) -> float | None:
        """Return the fitted value at a time."""
        if self.slope is None or self.centre is None:
            return None
        return self.centre[1] + self.slope * (at - self.centre[0]) / DAY


def trend(what: str, unit: str, days: Sequence[tuple[float, float]], limit: float | None) -> Trend:
    """Fit a line to daily peaks."""
    points = tuple(days)
    if len(points) < MIN_DAYS:
        return Trend(what, unit, points, limit, "too few days")
    x0, y0 = sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)
    spread = sum(((x - x0) / DAY) ** 2 for x, _ in points)
    slope = sum((x - x0) / DAY * (y - y0) for x, y in points) / spread
    rest = sum((y - y0 - slope * (x - x0) / DAY) ** 2 for x, y in points)
    freedom = len(points) - 2
    reach = student(freedom) * sqrt(rest / freedom / spread)
    low, high = slope - reach, slope + reach
    verdict = "grows" if low > 0 else "falls" if high < 0 else "no trend"
    last = points[-1][0]

    def crossing(rate: float) -> float | None:
        if limit is None or rate <= 0:
            return None
        at = max(last, x0 + (limit - y0) / rate * DAY)
        return at if at - last <= HORIZON_DAYS * DAY else None

    return Trend(
        what, unit, points, limit, verdict, slope, low, high, (x0, y0), crossing(slope), crossing(high), crossing(low)
    )


def student(freedom: int) -> float:
    """Return the two-sided 90 % quantile of Student's t (Cornish-Fisher expansion, within 1 % from 3 degrees on)."""
    z = _Z90
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third
