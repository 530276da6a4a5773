"""Durations as people and Prometheus write them, in files and options alike.

Input: text. Output: seconds, and back. Invariant: what is refused is refused in words that say the mend. Nothing here
needs pydantic: an option is read before anything that reads a file is loaded.
"""

import re

from vllm_vitals.config.show import show

MAX_DURATION_S = 10_000 * 86_400.0  # longer is a slip of the keyboard, and more digits are an infinity


class DurationError(ValueError):
    """No duration; the text says what to write instead."""


# Prometheus' units, largest first; a year is 365 days (prometheus/common, model/time.go).
_MS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]+){unit})?" for unit in _MS))
_BARE = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")
_LOOSE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)")
_WORDS = {
    word: unit
    for unit, words in {
        "y": "y yr year years", "w": "w wk week weeks", "d": "d day days", "h": "h hr hrs hour hours",
        "m": "m min mins minute minutes", "s": "s sec secs second seconds", "ms": "ms msec millisecond milliseconds",
    }.items()
    for word in words.split()
}  # fmt: skip


def parse_duration(value: object) -> float:
    """Read ``500ms``, ``5s``, ``1m30s``, ``2h``, ``7d``, ``1w``, ``1y`` as Prometheus does; return seconds.

    Only text: YAML reads 1:30 as 90. Raises `DurationError`.
    """
    found = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if found is None and value != "0":
        mend = _mended(value)
        how = f"write {mend}" if mend else "write one such as 30s, 5m or 1h30m"
        raise DurationError(f"{show(value)} is no duration: {how}")
    parts = found.groupdict(default="0") if found is not None else {}
    seconds = sum(int(number[:20]) * _MS[unit] for unit, number in parts.items()) / 1000
    if seconds > MAX_DURATION_S:
        raise DurationError(f"{show(value)} is longer than {duration_text(MAX_DURATION_S)}")
    return seconds


def duration_text(seconds: float) -> str:
    """Write seconds as the shortest duration that `parse_duration` reads back, to the millisecond: 90 is ``1m30s``."""
    left, parts = round(seconds * 1000), []
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, _MS[unit])
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def _mended(value: object) -> str:
    """Return what was probably meant by something that is no duration; empty where that is open."""
    if isinstance(value, bool):
        return ""
    if isinstance(value, int | float) or (isinstance(value, str) and _BARE.fullmatch(value)):
        number = float(value)
        if not 0 <= number <= MAX_DURATION_S:
            return ""
        return f"{number:.0f}s" if number.is_integer() else f"{round(number * 1000)}ms"
    text = value.strip().lower() if isinstance(value, str) else ""
    parts = _LOOSE.findall(text[:100])
    if not parts or _LOOSE.sub("", text).strip() or any(unit not in _WORDS for _, unit in parts):
        return ""
    seconds = sum(float(number) * _MS[_WORDS[unit]] for number, unit in parts) / 1000
    return duration_text(seconds) if seconds <= MAX_DURATION_S else ""
