"""Numbers as people read them: units always there, three digits, ranges where the truth is only known between bounds.

Input: plain numbers and `Reading`s. Output: text. Invariant: what is not known reads "not known" and why, never 0.
"""

from datetime import UTC, datetime
from math import inf, isfinite

from vllm_vitals.core.snapshot import Reading
from vllm_vitals.core.states import State
from vllm_vitals.planner.review.forecast import Backtest
from vllm_vitals.planner.review.growth import MIN_DAYS
from vllm_vitals.planner.review.trend import GROWS, NO_VERDICT, STEADY, TOO_FEW, Trend

NOT_KNOWN = "not known"
SPACE = "\u00a0"  # a number and its unit stay on one line


def number(value: float | None, unit: str = "") -> str:
    """Three digits that count, thousands apart: 1,230,000 tokens; 0.0213 s."""
    if value is None or not isfinite(value):
        return NOT_KNOWN
    whole = abs(value) >= 1000 or value == int(value)
    text = f"{value:,.0f}" if whole else f"{value:.3g}"
    return f"{text}{SPACE}{unit}" if unit else text


def share(value: float | None) -> str:
    """Return a ratio as per cent, with as many digits as a small one needs."""
    if value is None or not isfinite(value):
        return NOT_KNOWN
    per_cent = 100 * value
    if 99 <= abs(per_cent) < 100:
        return f"{per_cent:.2f}{SPACE}%"  # objectives live here
    if per_cent == 0 or abs(per_cent) >= 10:
        return f"{per_cent:,.0f}{SPACE}%"
    return f"{per_cent:.2g}{SPACE}%"


def change(value: float | None) -> str:
    """Return a relative change with its sign."""
    if value is None or not isfinite(value):
        return NOT_KNOWN
    if abs(value) < 0.0005:
        return f"±0{SPACE}%"
    return f"{value * 100:+.0f}{SPACE}%" if abs(value) >= 0.1 else f"{value * 100:+.1f}{SPACE}%"


def seconds(value: float | None) -> str:
    """Return a duration in the unit that fits: 8.2 ms, 1.35 s, 4.5 min, 2.0 h."""
    if value is None or not isfinite(value):
        return NOT_KNOWN
    if value == 0:
        return f"0{SPACE}s"
    for limit, factor, unit in ((1, 1000, "ms"), (120, 1, "s"), (7200, 1 / 60, "min"), (inf, 1 / 3600, "h")):
        if abs(value) < limit:
            return number(float(f"{value * factor:.3g}"), unit)
    return NOT_KNOWN


def minutes(value: float) -> str:
    """Say how long to go on, rounded up: 40 minutes, 3 hours."""
    if value <= 120 * 60:
        whole = max(1, -int(-value // 60))
        return f"{whole}{SPACE}minute{'s' if whole > 1 else ''}"
    return f"{-int(-value // 3600)}{SPACE}hours"


def reading(value: Reading, how: str = "seconds") -> str:
    """Return an estimate and its bounds; where there is no estimate the bounds, or why there are none."""
    say = {"seconds": seconds, "share": share, "number": number}[how]
    low, high = value.lower, value.upper
    if value.value is not None:
        exact = low is None or high is None or low == high
        about = "about " if value.why else ""  # the buckets leave it open
        return say(value.value) if exact else f"{about}{say(value.value)} ({say(low)} – {say(high)})"
    if low is not None and high == inf:
        return f"above {say(low)}"
    if low is not None and high is not None:
        return f"up to {say(high)}" if low == 0 else f"{say(low)} {'to' if low < 0 else '–'} {say(high)}"
    return NOT_KNOWN


def vital(value: Reading, unit: str = "") -> str:
    """Return an estimate alone, in its unit; where there is none the bounds."""
    if value.value is None:
        return reading(value, "seconds" if unit == "s" else "number")
    return seconds(value.value) if unit == "s" else number(value.value, unit)


def why(value: Reading, how: str = "seconds") -> str:
    """Return the same, with the reason where nothing is known."""
    text = reading(value, how)
    return f"{text}: {value.why}" if text == NOT_KNOWN and value.why else text


def when(at: float | None) -> str:
    """Return a time in UTC, to the minute."""
    return NOT_KNOWN if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def day(at: float | None) -> str:
    """Return a date in UTC."""
    return NOT_KNOWN if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def money(value: float | None, currency: str) -> str:
    """Return an amount."""
    return NOT_KNOWN if value is None else f"{value:,.2f}{SPACE}{currency}"


def prediction(value: float | None, error: float, name: str) -> str:
    """Return a predicted measure with how far it may be off; beyond a factor of two only its direction counts."""
    if value is None:
        return NOT_KNOWN
    how = seconds if name.startswith(("ttft", "tpot")) else share if name == "truncated" else number
    text = how(float(f"{value:.3g}"))
    if name == "truncated" or value == 0:
        return text
    return f"{text} ±{SPACE}{error:.0%}".replace("%", f"{SPACE}%") if error <= 1 else f"({text})"


def room(value: float | None, unit: str = "") -> str:
    """Return what is left; where it is less than nothing, what is short."""
    return f"short by {number(-value, unit)}" if value is not None and value < 0 else number(value, unit)


def gone(value: Reading) -> str:
    """Return the share of a distance that goes away, or that it grows instead."""
    if value.value is not None and value.value < 0:
        return f"none (it is {share(-value.value)} wider there)"
    return why(value, "share")


def reached(trend: Trend) -> str:
    """Return when a trend reaches its limit, or why it has no date."""
    if trend.weekly is None:
        return NOT_KNOWN
    if trend.limit is None:
        return "limit not known"
    if trend.verdict != GROWS:
        return NOT_KNOWN if trend.verdict == NO_VERDICT else "no growth"
    if trend.reached is None:
        return "not within a year at this rate"
    return until(trend.reached, trend.earliest, trend.latest)


def until(at: float | None, earliest: float | None, latest: float | None) -> str:
    """Return a date with its range; None is later than a year from now."""
    last = day(latest) if latest is not None else "beyond a year"
    if at is None:
        return f"beyond a year{f' (earliest {day(earliest)})' if earliest is not None else ''}"
    return f"{day(at)} (earliest {day(earliest)}, latest {last})"


def growth(trend: Trend) -> str:
    """Return the growth a week with its range."""
    if trend.weekly is None:
        return NOT_KNOWN
    return f"{change(trend.weekly)} ({change(trend.weekly_low)} to {change(trend.weekly_high)})"


def verdict(trend: Trend) -> str:
    """Return a trend's verdict, and why there is none."""
    if trend.verdict == TOO_FEW:
        return f"{TOO_FEW}: {len(trend.days)}, and {MIN_DAYS} separate weekdays from growth"
    if trend.verdict == NO_VERDICT and trend.more_weeks is not None:
        more = f"{trend.more_weeks} more week{'s' if trend.more_weeks > 1 else ''}"
        return f"{NO_VERDICT}: the noise hides {share(STEADY)} a week; {more} of history would show it"
    return trend.verdict


def backtest(found: Backtest) -> str:
    """Say how well the last days would have been foretold."""
    return (
        f"Predicted from what was before them, the last {found.days} days' busiest hours are off by "
        f"{share(found.error)} on average, {share(found.worst)} at most; "
        f"the same weekday before by {share(found.naive)}."
    )


def state(name: str) -> str:
    """Return a state as words; what is no state (a name made for no data) stays."""
    return State(name).spec.label if name in set(State) else name


FILTERS = {
    "number": number, "share": share, "change": change, "seconds": seconds, "reading": reading, "vital": vital,
    "why": why, "when": when,
    "day": day, "money": money, "state": state, "room": room, "gone": gone,
    "reached": reached, "until": until, "growth": growth, "verdict": verdict, "backtest": backtest,
}  # fmt: skip
