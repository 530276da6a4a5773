"""Where it goes: one value a day over weeks, its weekdays and its growth, and when it reaches the limit.

Input: one value a day. Output: `Trend` with dates as epoch s. Values are compared as logarithms (growth is a share a
week); as shares of their mean where a day was at 0. Invariant: a rate whose interval holds 0 is no growth, no date is
given without its range, and where noise hides a growth that matters, that is the verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log

from vllm_vitals.planner.review.growth import MIN_DAYS, WEEK, Growth, growth
from vllm_vitals.planner.telemetry.grid import DAY

HORIZON_DAYS = 365.0
STEADY = 0.02  # a week: an interval that stays within is no growth that anybody plans for

GROWS, FALLS, LEVEL, NO_VERDICT, TOO_FEW = "grows", "falls", "level", "no verdict", "too few days"


@dataclass(frozen=True, slots=True)
class Trend:
    """``days`` are (epoch s of a day's end, its value). ``weekly`` is the growth a week as a share, with the ends of
    its 90 % interval. ``limit`` is what runs out.

    ``reached`` is when the busiest weekday meets the limit, ``earliest`` and ``latest`` from the ends of the interval;
    None: not within a year. ``more_weeks``: how many more would tell a growth of `STEADY`, where no verdict is
    possible.
    """

    what: str
    unit: str
    days: tuple[tuple[float, float], ...]
    limit: float | None
    verdict: str
    weekly: float | None = None
    weekly_low: float | None = None
    weekly_high: float | None = None
    more_weeks: int | None = None
    reached: float | None = None
    earliest: float | None = None
    latest: float | None = None
    fitted: "Line | None" = None


@dataclass(frozen=True, slots=True)
class Line:
    """The fitted growth; its day 0 ends at ``last`` (epoch s). ``mean`` is None where values are logarithms."""

    growth: Growth
    last: float
    mean: float | None

    def at(self, time: float, rate: float | None = None) -> float:
        """Return the value of the busiest weekday's level at a time."""
        return self._back(self.growth.top((time - self.last) / DAY, rate))

    def on(self, time: float, *, still: bool = False) -> float | None:
        """Return what the day that ends then is expected to have; ``still``: without growth."""
        level = self.growth.on(round((time - self.last) / DAY), 0.0 if still else None)
        return None if level is None else self._back(level)

    def share(self, rate: float) -> float:
        """Return a rate as a share a week."""
        return exp(rate) - 1 if self.mean is None else rate

    def crossing(self, limit: float, rate: float) -> float | None:
        """Return when the busiest weekday meets a limit at a rate; None: not within a year."""
        if rate <= 0 or limit <= 0:
            return None
        level = log(limit) if self.mean is None else limit / self.mean
        days = max(0.0, (level - self.growth.top(0.0, rate)) / rate * WEEK)
        return self.last + days * DAY if days <= HORIZON_DAYS else None

    def _back(self, level: float) -> float:
        return exp(level) if self.mean is None else level * self.mean


def line(days: Sequence[tuple[float, float]]) -> Line | None:
    """Fit days; None where they are too few."""
    if not days:
        return None
    last = max(at for at, _ in days)
    mean = None if all(value > 0 for _, value in days) else sum(value for _, value in days) / len(days)
    if mean is not None and mean <= 0:
        return None
    numbered = {round((at - last) / DAY): log(value) if mean is None else value / mean for at, value in days}
    found = growth(numbered)
    return None if found is None else Line(found, last, mean)


def trend(what: str, unit: str, days: Sequence[tuple[float, float]], limit: float | None) -> Trend:
    """Say where daily values go."""
    points = tuple(days)
    fitted = line(points)
    if fitted is None:
        idle = len(points) >= MIN_DAYS and all(value == 0 for _, value in points)
        return Trend(what, unit, points, limit, LEVEL if idle else TOO_FEW)
    found = fitted.growth
    low, high = fitted.share(found.low), fitted.share(found.high)
    verdict = verdict_of(low, high)
    more = None
    if verdict == NO_VERDICT:  # noise of a slope shrinks with time to the power of 3 / 2
        more = max(1, ceil(len(points) / WEEK * (((high - low) / 2 / STEADY) ** (2 / 3) - 1)))
    at, earliest, latest = (
        None if limit is None else fitted.crossing(limit, rate) for rate in (found.rate, found.high, found.low)
    )
    return Trend(
        what, unit, points, limit, verdict, fitted.share(found.rate), low, high, more, at, earliest, latest, fitted
    )


def verdict_of(low: float, high: float) -> str:
    """Return what an interval of growth a week says."""
    if low > 0 or high < 0:
        return GROWS if low > 0 else FALLS
    return LEVEL if low >= -STEADY and high <= STEADY else NO_VERDICT
