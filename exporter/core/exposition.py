"""Text exposition to numbers: hardened, and fast because a server's next body differs from its last in few lines.

In: the bytes of ``GET /metrics`` and which metric names are wanted. Out: `Exposition`, or `ExpositionError` with a
reason from `snapshot.SCRAPE_ERRORS`. `follow` re-reads only the lines that changed since `parse`. Invariant: a body
that `follow` accepts gives exactly what `parse` would give; whatever is unusual it leaves to `parse`.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, count
from math import isnan
from operator import ne

MAX_SERIES = 200_000
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf"[ \t]*({_NAME})[ \t]*(\{{|[ \t]|$)")
_BLOCK = re.compile(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\}[ \t]*')
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*|"(?:[^"\\]|\\.)*+")[ \t]*=[ \t]*"((?:[^"\\]|\\.)*+)"[ \t]*(?:,[ \t]*|$)')
_ESCAPE = re.compile(r'\\[\\n"]')
_COMMENT = re.compile(r"[ \t]*#[ \t]*(TYPE|HELP)[ \t]+(\S+)(?:[ \t]+(\S+))?")
_UNESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


class ExpositionError(Exception):
    """A body that cannot be used. ``reason`` is one of `snapshot.SCRAPE_ERRORS`, ``detail`` one bounded line."""

    def __init__(self, reason: str, detail: str):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Series:
    """A metric name and its decoded labels."""

    name: str
    labels: Mapping[str, str]


@dataclass(slots=True)
class Skeleton:
    """A body taken apart: its lines, where on each the value begins, and which slot of ``values`` it fills.

    A cut of 0 means that the line must not change; a slot of -1 that its value is not wanted.
    """

    lines: list[str]
    cuts: list[int]
    slots: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True)
class Exposition:
    """The wanted series in the order of the body, their values in the same order, and every metric name in it."""

    series: Sequence[Series]
    names: frozenset[str]
    skeleton: Skeleton

    @property
    def values(self) -> list[float]:
        """One value a series."""
        return self.skeleton.values


def parse(body: bytes, wanted: Callable[[str], bool] = lambda name: True, max_series: int = MAX_SERIES) -> Exposition:
    """Read every wanted series of a body in text format 0.0.4 or OpenMetrics.

    Malformed lines of unwanted names are skipped. Raises `ExpositionError`.
    """
    return learn(split(body, max_series), wanted)


def split(body: bytes, max_series: int = MAX_SERIES) -> list[str]:
    """Decode a body and split it into lines, refusing what cannot be a whole exposition.

    Splits on newline alone: `str.splitlines` would also cut at U+2028 and others, which are legal in label values.
    """
    newlines = body.count(b"\n")
    if newlines > max_series:
        raise ExpositionError("too_many_series", f"{newlines} lines, more than the limit of {max_series}")
    if not body or body.isspace():
        raise ExpositionError("empty", "the body is empty")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            raise ExpositionError("truncated", f"the body stops inside a character after {len(body)} bytes") from None
        raise ExpositionError("encoding", f"byte {error.start} is not UTF-8 ({error.reason})") from None
    lines = text.split("\n")
    if text.startswith("<"):
        raise _not_metrics(lines)
    if lines[-1]:
        _refuse_unfinished(lines, len(body))
    return lines


def learn(lines: list[str], wanted: Callable[[str], bool]) -> Exposition:
    """Take lines apart for the first time. Raises `ExpositionError`."""
    series: list[Series] = []
    seen: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
    skeleton = Skeleton(lines, [0] * len(lines), [-1] * len(lines), [])
    names: dict[str, bool] = {}
    declared: set[str] = set()
    distinct = True
    for number, line in enumerate(lines):
        sample = _SAMPLE.match(line)
        if sample is None:
            comment = _COMMENT.match(line)
            if comment and comment[1] == "TYPE":
                declared.add(comment[2])
            lines[number] = sys.intern(line)  # the same in every target's body: kept once
            continue
        name = sample[1]
        is_wanted = names.get(name)
        if is_wanted is None:
            is_wanted = names[name] = wanted(name)
        if not is_wanted:
            skeleton.cuts[number] = sample.end() if sample[2] else 0  # the rest of the line may change
            continue
        labels, cut, value = _read(line, sample, number)
        key = (name, frozenset(labels.items()))
        first = seen.setdefault(key, len(series))
        if first < len(series):
            _refuse_contradiction(skeleton.values[first], value, line, number)
            distinct = False
            continue
        skeleton.cuts[number] = cut
        skeleton.slots[number] = len(series)
        series.append(Series(name, labels))
        skeleton.values.append(value)
    if not series and not declared and not any(map(_is_sample, lines)):
        raise _not_metrics(lines)
    _refuse_cut_family(lines)
    if not distinct:
        skeleton.lines = []  # a series on two lines: every body has to be checked again
    return Exposition(series, frozenset(declared.union(names)), skeleton)


def follow(skeleton: Skeleton, lines: list[str]) -> list[int] | None:
    """Take over the values of a later body with the same series on the same lines; return the slots that changed.

    None means that the body is built differently: the skeleton is then spoilt and `learn` must be called.
    """
    before, cuts, slots, values = skeleton.lines, skeleton.cuts, skeleton.slots, skeleton.values
    if len(lines) != len(before):
        return None
    changed = []
    for number in compress(count(), map(ne, lines, before)):
        line = lines[number]
        cut = cuts[number]
        if not cut or not line.startswith(before[number][:cut]):
            return None
        slot = slots[number]
        if slot >= 0:
            text = line[cut:]
            try:
                values[slot] = float(text)
            except ValueError:
                return None
            if "_" in text or not text.isascii():
                return None
            changed.append(slot)
        before[number] = line
    return changed


def _read(line: str, sample: re.Match[str], number: int) -> tuple[dict[str, str], int, float]:
    """Labels, where the value begins, and the value of a wanted line."""
    labels: dict[str, str] = {}
    cut = sample.end()
    try:
        if line[cut - 1] == "{":
            block = _BLOCK.match(line, cut - 1)
            if block is None:
                raise ValueError("labels do not end")
            labels = _labels(block[1])
            cut = block.end()
        return labels, cut, _number(line[cut:])
    except ValueError as error:
        raise ExpositionError("malformed", f"line {number + 1}: {error}: {_shown(line)}") from None


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    if text.lstrip(" \t").startswith(","):  # the reference parser allows one
        at = text.index(",") + 1
    end = len(text.rstrip(" \t"))
    while at < end:
        label = _LABEL.match(text, at)
        if label is None:
            raise ValueError("bad label")
        name, value = label.groups()
        if name[0] == '"':
            name = _unescape(name[1:-1])
        if name in labels:
            raise ValueError("label given twice")
        labels[name] = _unescape(value) if "\\" in value else value
        at = label.end()
    return labels


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _UNESCAPED[match[0]], text)


def _number(text: str) -> float:
    """The value, whatever timestamp or exemplar follows it. Python alone accepts ``1_000`` and digits of any script."""
    value, *rest = text.split(None, 2) or [""]
    if rest and rest[0] != "#":
        _plain(rest[0])
        if len(rest) > 1 and not rest[1].startswith("#"):
            raise ValueError("more than a value and a timestamp")
    return _plain(value)


def _plain(text: str) -> float:
    if "_" in text or not text.isascii():
        raise ValueError("bad number")
    try:
        return float(text)
    except ValueError:
        raise ValueError("bad number") from None


def _refuse_contradiction(first: float, second: float, line: str, number: int) -> None:
    if first != second and not (isnan(first) and isnan(second)):
        raise ExpositionError("duplicate", f"line {number + 1} repeats a series with another value: {_shown(line)}")


def _refuse_unfinished(lines: list[str], size: int) -> None:
    """A body whose last line does not end: an exposition cut short, or no exposition at all."""
    if any(_COMMENT.match(line) or _is_sample(line) for line in lines[:-1]) or _COMMENT.match(lines[-1]):
        raise ExpositionError("truncated", f"the body stops inside line {len(lines)} after {size} bytes")
    raise _not_metrics(lines)


def _refuse_cut_family(lines: list[str]) -> None:
    """A body cut between two lines shows where it ends inside a histogram, a summary or a family's head."""
    end = len(lines)
    while end and (not lines[end - 1].strip() or lines[end - 1].startswith("# EOF")):
        end -= 1
    start = end
    while start and not lines[start - 1].lstrip(" \t").startswith("#"):
        start -= 1
    head = _COMMENT.match(lines[start - 1]) if start else None
    if start == end:
        cut = head is not None and head[1] == "HELP"
    else:
        cut = _is_cut(lines[start:end], head[3] if head and head[1] == "TYPE" else None)
    if cut:
        raise ExpositionError("truncated", f"the body stops inside a family at line {end}: {_shown(lines[end - 1])}")


def _is_cut(lines: list[str], kind: str | None) -> bool:
    """Whether the last series among a family's lines lacks a part that a histogram or summary always has."""
    last: tuple[str, frozenset[tuple[str, str]]] | None = None
    parts: set[str] = set()
    for line in reversed(lines):
        sample = _SAMPLE.match(line)
        suffix = sample and re.search(r"_(bucket|sum|count)$", sample[1])
        if sample is None or not suffix:
            break
        try:
            labels, _, _ = _read(line, sample, 0)
        except ExpositionError:
            return False
        bound = labels.pop("le", "")
        ident = (sample[1][: suffix.start()], frozenset(labels.items()))
        if last is not None and ident != last:
            continue
        last = ident
        parts.add(suffix[1])
        if bound == "+Inf":
            parts.add(bound)
    if kind == "histogram" or "bucket" in parts:
        return last is not None and not parts >= {"+Inf", "sum", "count"}
    return kind == "summary" and len(parts) == 1


def _is_sample(line: str) -> bool:
    sample = _SAMPLE.match(line)
    if sample is None:
        return False
    try:
        _read(line, sample, 0)
    except ExpositionError:
        return False
    return True


def _not_metrics(lines: list[str]) -> ExpositionError:
    first = next(line for line in lines if line.strip())
    return ExpositionError("not_metrics", f"not an exposition: it begins with {_shown(first)}")


def _shown(text: str) -> str:
    """A piece of the body that is safe to print: short, one line, no control characters."""
    short = text if len(text) <= 120 else text[:117] + "..."
    return "'" + "".join(c if c.isprintable() else "?" for c in short) + "'"
