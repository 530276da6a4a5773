"""When the engines stop sufficing: demand by weekday and hour, its growth, and how well the past would have foretold
it.

Input: requests/s that came, by hour, over weeks; what one engine carries. Output: `Forecast`. The growth is that of
each day's busiest hour (see `growth`); the date is when the period's p99 of five-minute demand, grown at that rate, is
what N engines carry. Invariant: no date without a growth that stands out of the noise, and none without its range,
which holds that of the growth and of the capacity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log

from vllm_vitals.planner.review.money import Money
from vllm_vitals.planner.review.trend import GROWS, HORIZON_DAYS, Line, Trend, line, trend, verdict_of
from vllm_vitals.planner.telemetry.grid import DAY

HOUR = 3600
WEEK_DAYS = 7
KNOWN_HOURS = 20  # of 24: a day of which less is known has no busiest hour
MORE_ENGINES = 2  # how many beyond the need are given a date
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FIRST = 3  # 1970-01-01 was a Thursday


@dataclass(frozen=True, slots=True)
class Suffices:
    """Until when so many engines carry the peak, none of them spare (epoch s); None: longer than a year."""

    engines: int
    until: float | None
    earliest: float | None
    latest: float | None


@dataclass(frozen=True, slots=True)
class Backtest:
    """The last ``days`` days, foretold from those before: mean and largest error (shares), and the mean error of taking
    each day as the same weekday before.
    """

    days: int
    error: float
    worst: float
    naive: float


@dataclass(frozen=True, slots=True)
class Weekday:
    """One weekday (UTC): requests/s in its busiest and in its quietest hour (of the mean day), and which these are."""

    name: str
    busiest: float
    busiest_hour: int
    quietest: float
    quietest_hour: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """``trend`` is of each day's busiest hour; ``hours`` the mean requests/s by weekday and hour (UTC)."""

    trend: Trend
    weekdays: tuple[Weekday, ...]
    hours: tuple[tuple[float | None, ...], ...]
    suffices: tuple[Suffices, ...]
    backtest: Backtest | None


def forecast(hours: Sequence[tuple[float, float]], end: float, peak: float | None, bill: Money) -> Forecast | None:
    """``hours`` are (epoch s of the hour's end, requests/s); ``peak`` is the p99 of five-minute demand in the period
    that ends at ``end``. None without a whole day.
    """
    days = busiest(hours, end)
    if not days:
        return None
    found = trend("Demand, busiest hour of the day", "requests/s", days, None)
    profile = _profile(hours)
    return Forecast(
        found, tuple(_weekday(name, row) for name, row in zip(WEEKDAYS, profile, strict=True) if _whole(row)), profile,
        tuple(_suffices(found.fitted, found.verdict, end, peak, bill)), _backtest(days),
    )  # fmt: skip


def busiest(hours: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Return the busiest hour of each day, by the days' ends; days are counted back from ``end``."""
    days: dict[int, list[float]] = {}
    for at, rate in hours:
        days.setdefault(int((end - at) // DAY), []).append(rate)
    return [(end - day * DAY, max(days[day])) for day in sorted(days, reverse=True) if len(days[day]) >= KNOWN_HOURS]


def _profile(hours: Sequence[tuple[float, float]]) -> tuple[tuple[float | None, ...], ...]:
    cells: dict[tuple[int, int], list[float]] = {}
    for at, rate in hours:
        middle = at - HOUR / 2
        cells.setdefault((int(middle // DAY + _FIRST) % WEEK_DAYS, int(middle % DAY // HOUR)), []).append(rate)
    return tuple(
        tuple(sum(cell) / len(cell) if (cell := cells.get((day, hour))) else None for hour in range(24))
        for day in range(WEEK_DAYS)
    )


def _whole(row: Sequence[float | None]) -> bool:
    return all(value is not None for value in row)


def _weekday(name: str, row: Sequence[float | None]) -> Weekday:
    known = [value or 0.0 for value in row]
    high, low = max(known), min(known)
    return Weekday(name, high, known.index(high), low, known.index(low))


def _suffices(fitted: Line | None, verdict: str, end: float, peak: float | None, bill: Money) -> list[Suffices]:
    carries = bill.capacity
    if carries is None or not peak or fitted is None or bill.engines_for_peak is None:
        return []
    rate, low, high = fitted.growth.rate, fitted.growth.low, fitted.growth.high

    def until(engines: int, each: float, grown: float) -> float | None:
        """Return when a peak that grows reaches what engines carry; exponential where the growth is a share."""
        room = engines * each / peak
        if grown <= 0:
            return end if room < 1 else None
        weeks = (log(room) if fitted.mean is None else room - 1) / grown
        days = max(0.0, weeks * WEEK_DAYS)
        return end + days * DAY if days <= HORIZON_DAYS else None

    there = ceil(bill.engines - 1e-9)
    last = max(there, bill.engines_for_peak + MORE_ENGINES)
    first = max(1, min(there, bill.engines_for_peak))
    lower, upper = carries.lower or carries.requests_per_second, carries.upper or carries.requests_per_second
    if verdict != GROWS:
        return []
    return [
        Suffices(n, until(n, carries.requests_per_second, rate), until(n, lower, high), until(n, upper, low))
        for n in range(first, last + 1)[: MORE_ENGINES + 4]
    ]


def _backtest(days: Sequence[tuple[float, float]]) -> Backtest | None:
    """Foretell the last week from what was before it; None where that is too little."""
    last = days[-1][0]
    before = [each for each in days if each[0] < last - WEEK_DAYS * DAY + HOUR]
    fitted = line(before)
    if fitted is None:
        return None
    still = verdict_of(fitted.share(fitted.growth.low), fitted.share(fitted.growth.high)) not in ("grows", "falls")
    known: Mapping[float, float] = dict(days)
    errors, naive = [], []
    for at, value in days[len(before) :]:
        told, same = fitted.on(at, still=still), known.get(at - WEEK_DAYS * DAY)
        if told is not None and same is not None and value > 0:
            errors.append(abs(told / value - 1))
            naive.append(abs(same / value - 1))
    if not errors:
        return None
    return Backtest(len(errors), sum(errors) / len(errors), max(errors), sum(naive) / len(naive))
