"""Raw JSON values to times, durations, token counts and finish reasons.

Inputs: whatever a log holds. Outputs: numbers in base units, or None where the log is silent.
Invariant: a value that is there but cannot be true raises `ImpossibleError`; it never becomes 0 or None.
"""

import math
import re
from datetime import UTC, datetime, tzinfo
from typing import Any

from vllm_vitals.logs.events import FinishReason

MAX_TOKENS = 100_000_000
_DURATION = re.compile(r"([0-9.]+)\s*(ns|µs|us|ms|s|m)\Z")
_UNIT = {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_EPOCH_STEPS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
_NO_YEAR = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")

# OpenAI, Anthropic, Gemini and TGI spellings; whatever else is said counts as "other".
FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop", "eos_token": "stop", "stop_sequence": "stop", "end_turn": "stop", "completed": "stop",
    "length": "length", "max_tokens": "length", "max_output_tokens": "length", "max_length": "length",
    "tool_calls": "tool_calls", "tool_use": "tool_calls", "function_call": "tool_calls",
    "content_filter": "content_filter", "safety": "content_filter", "repetition": "repetition",
    "abort": "abort", "aborted": "abort", "cancelled": "abort",
    "error": "error", "failed": "error", "failure": "error",
}  # fmt: skip


class ImpossibleError(ValueError):
    """A number that is there but cannot be true."""


def tokens(value: Any) -> int:
    """Read a token count; accepts 7, 7.0 and "7"."""
    if type(value) is int:
        count = value
    else:
        number = _number(value)
        if number != int(number):
            raise ImpossibleError(f"{value!r} is not a count")
        count = int(number)
    if 0 <= count <= MAX_TOKENS:
        return count
    raise ImpossibleError(f"{value!r} is not a count of tokens")


def cap_tokens(value: Any) -> int | None:
    """Read a max_tokens; 0, -1 and the like mean that none was asked for."""
    if type(value) is int and value <= 0:
        return None
    return tokens(value)


def seconds(value: Any) -> float:
    """Read a duration: a number of seconds, or text with its unit ("1.5s", "425µs")."""
    if isinstance(value, str) and (match := _DURATION.match(value)):
        return _number(match[1]) * _UNIT[match[2]]
    number = _number(value)
    if number < 0:
        raise ImpossibleError(f"{value!r} is not a duration")
    return number


def milliseconds(value: Any) -> float:
    """Read a duration: a number of milliseconds, or text with its unit."""
    spelled = isinstance(value, str) and _DURATION.match(value)
    return seconds(value) if spelled else seconds(value) / 1000


def predicted(value: Any) -> float:
    """Read a predicted output length; may be fractional."""
    number = _number(value)
    if not 0 <= number <= MAX_TOKENS:
        raise ImpossibleError(f"{value!r} is not a length")
    return number


def finish_reason(value: Any) -> FinishReason:
    """Tell the reason in one vocabulary."""
    return FINISH_REASONS.get(str(value).lower(), "other")


def text(value: Any) -> str:
    """Make a short label; objects and lists say nothing."""
    if isinstance(value, dict | list):
        return ""
    short = str(value)[:200]
    return short if short.isascii() else short.encode("utf-8", "replace").decode()  # no lone surrogates


def truth(value: Any) -> bool:
    """Tell JMESPath's idea of true: 0 is, empty text and containers are not."""
    return bool(value) or (value == 0 and value is not False)


def epoch(value: Any, zone: tzinfo, near: float) -> float | None:
    """Read an epoch in s from a number of s, ms, us or ns, or from text.

    A text without a zone is in ``zone``, one without a year near ``near``. None where the text is no time: a strange
    time never costs an event.
    """
    if isinstance(value, str):
        try:
            stamp = datetime.fromisoformat(value)
            return (stamp if stamp.tzinfo else stamp.replace(tzinfo=zone)).timestamp()
        except OverflowError:
            return None
        except ValueError:
            return _epoch_text(value, zone, near)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e20:
        return None
    for above, divisor in _EPOCH_STEPS:
        if value > above:
            return value / divisor
    return float(value)


def _epoch_text(value: str, zone: tzinfo, near: float) -> float | None:
    if _NO_YEAR.fullmatch(value):
        return _nearest_year(value, zone, near)
    try:
        return epoch(float(value), zone, near)
    except ValueError:
        return None


def _nearest_year(value: str, zone: tzinfo, near: float) -> float | None:
    """Add the year to vLLM's "11-29 13:36:42": the one that brings it closest to the time of reading."""
    year = datetime.fromtimestamp(near, UTC).year
    stamps = []
    for candidate in (year - 1, year, year + 1):
        try:
            stamps.append(datetime.fromisoformat(f"{candidate:04d}-{value}").replace(tzinfo=zone).timestamp())
        except ValueError:
            continue
    return min(stamps, key=lambda stamp: abs(stamp - near)) if stamps else None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ImpossibleError(f"{value!r} is not a number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ImpossibleError(f"{value!r} is not a number") from None
    if not math.isfinite(number):
        raise ImpossibleError(f"{value!r} is not a finite number")
    return number
