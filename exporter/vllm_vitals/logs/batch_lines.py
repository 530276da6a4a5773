"""The lines of a pushed batch: NDJSON, or the elements of one JSON array.

Input: a body. Output: its lines and records, in order, in steps. Invariant: a batch has at most ``most`` lines and
MAX_CONTAINERS objects and arrays, or none of it is taken; an element that is too deep or broken costs itself; beside
the body there is no more than one copy of it and one record at a time.
"""

import json
import re
from array import array
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


class Lines:
    """The lines of one body: `find` them all first, then iterate, which makes one after the other."""

    def __init__(self, body: bytes, max_line: int, most: int) -> None:
        self._max_line, self._most = max_line, most
        self._rest = body
        # The elements of an array, and where each begins and ends. A byte is a letter here: else one emoji would make
        # the text four times as large as the body.
        self._text, self._spans = "", array("Q")

    def find(self) -> Iterator[None]:
        """Find the lines, in steps. Raises TooManyError."""
        body = self._rest
        if body.count(b"{") + body.count(b"[") > MAX_CONTAINERS:
            raise TooManyError(f"more than {MAX_CONTAINERS} objects and arrays")
        if _ARRAY.match(body):
            text = body.decode("latin-1")
            if _begins_well(text, self._max_line):
                self._text = text
                end = yield from self._array()
                self._rest = body[end:].strip()  # an array a line, perhaps
        if self._rest.count(b"\n") + len(self._spans) // 2 > self._most:
            raise TooManyError(f"more than {self._most} lines")

    def __iter__(self) -> Iterator[Entry]:
        """Make the lines, of a batch that was found whole."""
        spans = iter(self._spans)
        for start, end in zip(spans, spans, strict=True):
            yield TOO_LONG if end - start > self._max_line else _entry(self._text[start:end].encode("latin-1"))
        framer = LineFramer(self._max_line)
        for start in range(0, len(self._rest), _CHUNK):
            yield from framer.feed(self._rest[start : start + _CHUNK])
        yield from framer.flush()

    def _array(self) -> Generator[None, None, int]:
        """Find the elements of the first array; the result is where it ends.

        Elements are decoded within a window of two lines' length, so that one that is too long is not decoded to its
        end.
        """
        text, max_line = self._text, self._max_line
        at, base, window = _next(text, text.index("[") + 1), 0, ""
        while at < len(text) and text[at] != "]":
            start = at
            if not window or start - base > max_line:
                base, window = start, text[start : start + 2 * max_line]
            try:
                at = base + _JSON.raw_decode(window, start - base)[1]
            except (ValueError, RecursionError):
                at = yield from _skip(text, start)
            self._spans.extend((start, at))
            if len(self._spans) > 2 * self._most:
                raise TooManyError(f"more than {self._most} lines")
            at = _next(text, at)
            if text[at : at + 1] == ",":
                at = _next(text, at + 1)
            elif text[at : at + 1] != "]":
                at = yield from _skip(text, at)  # no JSON between two elements
                at = _next(text, at + 1)
            yield
        return at + 1


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


def _entry(element: bytes) -> Entry:
    try:
        value = _JSON.decode(element.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return element
    if isinstance(value, dict):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return _NO_RECORD if value is not None else element


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
