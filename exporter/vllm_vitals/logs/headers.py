"""Where vLLM's own record begins in a line of text.

Input: one line, with whatever a container runtime, a collector or a viewer put before it. Output: the place of vLLM's
header ("INFO 04-28 22:50:00 [loggers.py:257] "), of a JSON object, or nothing. Invariant: only the first WINDOW
characters are looked at, and a header that is quoted inside other JSON (a prompt about a log) is none.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

WINDOW = 200
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL")
# vLLM's formatter since 0.2 ("%m-%d %H:%M:%S", file and line); before 0.8 no "[" stands before the file.
_STAMP = re.compile(r" (\d\d-\d\d \d\d:\d\d:\d\d) \[?([^\]\s:]{1,200}:\d{1,9})\] ?")
_STAMP_LENGTH = 240
# Two records on one line: the second follows the first without a space, or after its own process prefix.
_GLUED_WITHIN = 64 * 1024
_PROCESS_END = re.compile(r"\d\) ")
_QUOTED = re.compile(r"\{\s?[\"']\w{1,64}[\"']\s?:")
_OBJECT = re.compile(r"(?<![\w\"'`\\{\[(,=])\{\s?\"")
# Colours: as bytes, and as rsyslog (#033), cat -v (^[) and JSON dumps (\x1b, \u001b, \033) show them.
_COLOUR = re.compile(r"\x1b\[[0-9;:?]{0,32}[A-Za-z]")
_SHOWN_COLOUR = re.compile(r"(?:#033|\^\[|\\x1b|\\u001b|\\033|␛)\[[0-9;:?]{0,32}[A-Za-z]")
_COLOURED_HEAD = 4096


@dataclass(frozen=True, slots=True)
class Header:
    """A header at ``start``; the message begins at ``end``. ``stamp`` has neither year nor zone."""

    start: int
    level: str
    stamp: str
    place: str
    end: int


def without_colour(line: str) -> str:
    """Take the colours off a line's beginning, where header and process prefix stand."""
    return _COLOUR.sub("", line[:_COLOURED_HEAD]) + line[_COLOURED_HEAD:]


def without_shown_colour(line: str) -> str | None:
    """Take off colours that something has spelled out; None where there are none."""
    head = line[: 2 * WINDOW]
    if "[" not in head or _SHOWN_COLOUR.search(head) is None:
        return None
    return _SHOWN_COLOUR.sub("", head) + line[2 * WINDOW :]


def find(line: str, window: int = WINDOW) -> Header | None:
    """Find the first header that begins within ``window`` characters."""
    for header in _headers(line, 0, window + _STAMP_LENGTH):
        if header.start > window:
            return None
        if not header.start or _free(line, header.start):
            return header
    return None


def glued(line: str, after: int, most: int) -> list[int]:
    """Find where further records begin on a line whose first header ends at ``after``."""
    further = (header.start for header in _headers(line, after, _GLUED_WITHIN) if _glued(line, header.start))
    return list(islice(further, most))


def _headers(line: str, start: int, end: int) -> Iterator[Header]:
    for match in _STAMP.finditer(line, start, end):
        at = match.start()
        if line.endswith(LEVELS, 0, at):
            level = next(name for name in LEVELS if line.endswith(name, 0, at))
            yield Header(at - len(level), level, match[1], match[2], match.end())


def _free(line: str, start: int) -> bool:
    before = line[start - 1]
    return not (before.isalnum() or before in "_'`\\") and _QUOTED.search(line, 0, start) is None


def _glued(line: str, start: int) -> bool:
    before = line[start - 1]
    return before not in "'\"`\\(" and (not before.isspace() or _PROCESS_END.match(line, start - 3) is not None)


def object_in(line: str) -> int:
    """Find where a JSON object begins after something else; -1 where none does."""
    match = _OBJECT.search(line, 1, WINDOW + 2)
    return match.start() if match else -1
