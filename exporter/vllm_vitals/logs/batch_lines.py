"""The lines of a pushed batch: NDJSON, or the elements of one JSON array.

Input: a body. Output: its lines and records, in order, in steps. Invariant: a batch has at most ``most`` lines and
MAX_CONTAINERS objects and arrays, or none of it is taken; an element that is too deep or broken costs itself.
"""

import json
import re
from collections.abc import Generator, Iterator
from typing import Any

from vllm_vitals.logs.framer import TOO_LONG, Line, LineFramer

# 8 MiB of "[]," would become 200 MB of lists; real records have 20 bytes and more for each of theirs.
MAX_CONTAINERS = 400_000
_CHUNK = 64 * 1024
_TOKENS_A_STEP = 2000
_JSON = json.JSONDecoder(strict=False)
_SPACE = re.compile(r"[ \t\r\n]*")
_ARRAY = re.compile(rb"\s*\[\s*(?:[{\[\"\]]|null\b)")
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{},]', re.DOTALL)
_NO_RECORD = b"[]"

Entry = Line | dict[str, Any]


class TooManyError(Exception):
    """More than one batch may hold; one line."""


def split(body: bytes, max_line: int, most: int, into: list[Entry]) -> Iterator[None]:
    """Put the lines of a body into a list, in steps. Raises TooManyError."""
    if body.count(b"{") + body.count(b"[") > MAX_CONTAINERS:
        raise TooManyError(f"more than {MAX_CONTAINERS} objects and arrays")
    if _ARRAY.match(body):
        text = body.decode("utf-8", "replace")
        if _begins_well(text, max_line):
            end = yield from _array(text, max_line, most, into)
            body = text[end:].strip().encode("utf-8", "replace")  # an array a line, perhaps
    if body.count(b"\n") + len(into) > most:
        raise TooManyError(f"more than {most} lines")
    framer = LineFramer(max_line)
    for start in range(0, len(body), _CHUNK):
        into += framer.feed(body[start : start + _CHUNK])
        yield
    into += framer.flush()


def _begins_well(text: str, max_line: int) -> bool:
    """Tell an array from lines of text that begin with a bracket."""
    start = _next(text, text.index("[") + 1)
    if text[start : start + 1] == "]":
        return True
    try:
        _JSON.raw_decode(text[start : start + max_line], 0)
    except json.JSONDecodeError:
        return len(text) - start > max_line and text[start] in '{["'  # longer than a line, perhaps
    except (ValueError, RecursionError):
        pass
    return True


def _array(text: str, max_line: int, most: int, into: list[Entry]) -> Generator[None, None, int]:
    """Put the elements of the first array into the list; the result is where it ends.

    Elements are decoded within a window of two lines' length, so that one that is too long is not decoded to its end.
    """
    at, base, window = _next(text, text.index("[") + 1), 0, ""
    while at < len(text) and text[at] != "]":
        start = at
        if not window or start - base > max_line:
            base, window = start, text[start : start + 2 * max_line]
        try:
            value, end = _JSON.raw_decode(window, start - base)
            at = base + end
        except (ValueError, RecursionError):
            at = yield from _skip(text, start)
            value = None
        into.append(_entry(value, text, start, at, max_line))
        if len(into) > most:
            raise TooManyError(f"more than {most} lines")
        at = _next(text, at)
        if text[at : at + 1] == ",":
            at = _next(text, at + 1)
        elif text[at : at + 1] != "]":
            at = yield from _skip(text, at)  # no JSON between two elements
            at = _next(text, at + 1)
        yield
    return at + 1


def _entry(value: Any, text: str, start: int, end: int, max_line: int) -> Entry:
    if end - start > max_line:
        return TOO_LONG
    if isinstance(value, dict):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return _NO_RECORD if value is not None else text[start:end].encode("utf-8", "replace")


def _skip(text: str, at: int) -> Generator[None, None, int]:
    """Find where a value ends that cannot be decoded: at the comma or bracket after it."""
    depth = 0
    for number, match in enumerate(_TOKEN.finditer(text, at)):
        mark = match[0]
        if mark in "{[":
            depth += 1
        elif mark in "}]":
            if depth == 0:
                return match.start()
            depth -= 1
        elif mark == "," and depth == 0:
            return match.start()
        if number % _TOKENS_A_STEP == 0:
            yield
    return len(text)


def _next(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
