"""Text exposition to numbers, hardened: the traps of the format are refused or read right, never guessed.

In: the bytes of ``GET /metrics`` and which metric names are wanted. Out: `Exposition`, or `ExpositionError` with a
reason from `snapshot.SCRAPE_ERRORS`. Invariant: a body that was cut short is an error wherever the cut can be seen.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan

from vllm_vitals.core.incremental import Blocks, ParsedBody, Rows

MAX_SERIES = 200_000
_SAMPLE = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)([ \t]*\{|[ \t]+|)")
_BLOCK = re.compile(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\}[ \t]*')
_LABEL = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*|"(?:[^"\\]|\\.)*+")[ \t]*=[ \t]*"((?:[^"\\]|\\.)*+)"[ \t]*(?:,[ \t]*|$)'
)
_ESCAPE = re.compile(r'\\[\\n"]')
_COMMENT = re.compile(r"[ \t]*#[ \t]*(TYPE|HELP)[ \t]+(\S+)(?:[ \t]+(\S+))?")
_PART = re.compile(r"_(bucket|sum|count)$")
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


@dataclass(frozen=True, slots=True)
class Exposition:
    """The series read, in the order of the body, their values in the same order, and the families seen.

    ``families`` holds names as declared, and the names of samples that stand under no declaration of their own.
    """

    series: Sequence[Series]
    families: frozenset[str]
    skeleton: ParsedBody

    @property
    def values(self) -> list[float]:
        """One value a series."""
        return self.skeleton.values


def parse(body: bytes, wanted: frozenset[str] | None = None, max_series: int = MAX_SERIES) -> Exposition:
    """Read the wanted series (None: all) of a body in text format 0.0.4 or OpenMetrics. Raises `ExpositionError`.

    Malformed lines of unwanted names are skipped. A family with a wanted name may bring its other series along.
    """
    return learn(split(body, max_series), wanted)


def split(body: bytes, max_series: int = MAX_SERIES) -> Blocks:
    """Cut a body into one block a family, refusing what cannot be a whole exposition."""
    if len(body) > max_series and (lines := body.count(b"\n")) > max_series:
        raise ExpositionError("too_many_series", f"{lines} lines, more than the limit of {max_series}")
    if not body or body.isspace():
        raise ExpositionError("empty", "the body is empty")
    if not body.endswith(b"\n") or body.startswith(b"<"):
        raise _unfinished(body)
    opening = b"# HELP " if b"\n# HELP " in body else b"# TYPE "
    texts = body.split(b"\n" + opening)
    texts[-1] = texts[-1][:-1]
    return Blocks(opening, texts)


def learn(blocks: Blocks, wanted: frozenset[str] | None = None) -> Exposition:
    """Take blocks apart for the first time. Raises `ExpositionError`."""
    seen = _Seen(wanted)
    rows = []
    for number, text in enumerate(blocks.texts):
        opening = blocks.opening if number else b""
        lines = _decoded(opening + text).split("\n")
        rows.append(_rows(text, lines, seen, last=number == len(blocks.texts) - 1))
        seen.line += len(lines)
    if not seen.series and not seen.sound:
        raise _not_metrics(_decoded(blocks.texts[0]))
    _refuse_cut_family(lines, seen.line)
    if seen.repeats:
        blocks = Blocks(b"", [])  # a series on two lines: every body has to be checked again
    return Exposition(seen.series, frozenset(seen.families), ParsedBody(blocks, rows, seen.values))


@dataclass(slots=True)
class _Seen:
    """What the lines so far have given. ``sound``: a declaration or an unwanted sample shows that they are metrics."""

    wanted: frozenset[str] | None
    series: list[Series] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    families: set[str] = field(default_factory=set)
    slots: dict[tuple[str, frozenset[tuple[str, str]]], int] = field(default_factory=dict)
    line: int = 1
    repeats: bool = False
    sound: bool = False

    def wants(self, name: str) -> bool:
        """Whether this very name is wanted."""
        return self.wanted is None or name in self.wanted


def _rows(text: bytes, lines: list[str], seen: _Seen, *, last: bool) -> Rows | None:
    """Read one block; return how it is built where a later one may differ in its numbers."""
    samples = [_SAMPLE.match(line) for line in lines]
    names = {sample[1] for sample in samples if sample}
    declared, kind = _declare(lines, seen)
    own = bool(declared) and all(name.startswith(declared) for name in names)
    if not own:
        seen.families.update(names)
    start = next((i for i, sample in enumerate(samples) if sample), 0)
    end = len(samples) - next((i for i, sample in enumerate(reversed(samples)) if sample), 0)
    regular = bool(names) and all(samples[start:end])
    head, tail = _ends(text, lines, start, end)
    if any(map(seen.wants, names)):
        first = len(seen.series)
        prefixes = tuple(_read_lines(lines, samples, seen))
        if not regular or len(prefixes) != end - start:
            return None
        return Rows(head, tail, b"", prefixes, sum(map(len, prefixes)) + len(prefixes) - 1, first)
    if not seen.sound and names:
        seen.sound = any(_is_sound(line) for line in lines)
    may_hide_a_cut = last and kind in ("histogram", "summary", "")
    if not regular or not own or may_hide_a_cut or _is_wanted_inside(declared, seen.wanted):
        return None
    return Rows(head, tail, declared.encode())


def _declare(lines: Iterable[str], seen: _Seen) -> tuple[str, str]:
    """The name and type that a block declares last."""
    declared = kind = ""
    for line in lines:
        if not line.startswith(("#", " ", "\t")) or not (comment := _COMMENT.match(line)):
            continue
        seen.sound = True
        if comment[1] == "TYPE":
            declared, kind = comment[2], comment[3] or ""
            seen.families.add(declared)
    return declared, kind


def _ends(text: bytes, lines: list[str], start: int, end: int) -> tuple[bytes, bytes]:
    """What stands before and after the samples, in bytes, newlines included."""
    after = sum(len(line.encode()) + 1 for line in lines[end:])
    rows = sum(len(line.encode()) + 1 for line in lines[start:end]) - 1
    size = len(text) - after
    return text[: size - rows], text[size:]


def _read_lines(lines: list[str], samples: list[re.Match[str] | None], seen: _Seen) -> Iterator[bytes]:
    """Take in a block's series; yield each line up to its value."""
    for offset, (line, sample) in enumerate(zip(lines, samples, strict=True)):
        if sample is None:
            continue
        try:
            labels, cut, value = _read(line, sample)
        except ValueError as error:
            if seen.wants(sample[1]):
                raise ExpositionError("malformed", f"line {seen.line + offset}: {error}: {_shown(line)}") from None
            continue
        slot = seen.slots.setdefault((sample[1], frozenset(labels.items())), len(seen.series))
        if slot == len(seen.series):
            seen.series.append(Series(sample[1], labels))
            seen.values.append(value)
            yield line[:cut].encode()
            continue
        seen.repeats = True
        same = value == seen.values[slot] or (isnan(value) and isnan(seen.values[slot]))
        if not same and seen.wants(sample[1]):
            raise ExpositionError(
                "duplicate", f"line {seen.line + offset} repeats a series with another value: {_shown(line)}"
            )


def _is_wanted_inside(name: str, wanted: frozenset[str] | None) -> bool:
    """Whether a wanted name begins with this one, so that lines which do need a closer look."""
    ordered = _ordered(wanted or frozenset())
    at = bisect_left(ordered, name)
    return at < len(ordered) and ordered[at].startswith(name)


@lru_cache(maxsize=4)
def _ordered(names: frozenset[str]) -> list[str]:
    return sorted(names)


def _read(line: str, sample: re.Match[str]) -> tuple[dict[str, str], int, float]:
    """Labels, where the value begins, and the value. Raises ValueError."""
    cut = sample.end()
    if not sample[2]:
        raise ValueError("no value after the name")
    if not sample[2].endswith("{"):
        return {}, cut, _number(line[cut:])
    block = _BLOCK.match(line, cut - 1)
    if block is None:
        raise ValueError("labels do not end")
    return _labels(block[1]), block.end(), _number(line[block.end() :])


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    text = text.strip(" \t")
    at = 1 if text.startswith(",") else 0  # the reference parser allows one
    while at < len(text):
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
    """The value, whatever timestamp or exemplar follows it."""
    value, *rest = text.split(None, 2) or [""]
    if rest and not rest[0].startswith("#"):
        _plain(rest[0])
        if len(rest) > 1 and not rest[1].startswith("#"):
            raise ValueError("more than a value and a timestamp")
    return _plain(value)


def _plain(text: str) -> float:
    """Python alone would also accept 1_000 and the digits of any script."""
    if "_" in text or not text.isascii():
        raise ValueError("bad number")
    try:
        return float(text)
    except ValueError:
        raise ValueError("bad number") from None


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        where = body[max(0, error.start - 40) : error.start + 40].decode(errors="replace")
        raise ExpositionError("encoding", f"not UTF-8 ({error.reason}) near {_shown(where)}") from None


def _unfinished(body: bytes) -> ExpositionError:
    """Why a body that does not end in a newline is refused: an exposition cut short, or none at all."""
    lines = body.decode(errors="replace").split("\n")
    if not body.startswith(b"<") and any(_COMMENT.match(line) or _is_sound(line) for line in lines):
        return ExpositionError("truncated", f"the body stops inside line {len(lines)}, after {len(body)} bytes")
    return _not_metrics(body.decode(errors="replace"))


def _not_metrics(text: str) -> ExpositionError:
    first = text.lstrip().split("\n", 1)[0]
    return ExpositionError("not_metrics", f"not an exposition: it begins with {_shown(first)}")


def _refuse_cut_family(lines: list[str], end: int) -> None:
    """A body cut between two lines shows it where it ends in a family's head, a histogram or a summary."""
    lines = [line for line in lines if line.strip()]
    comments = [comment for line in lines if (comment := _COMMENT.match(line))]
    if lines and lines[-1].startswith("# EOF"):
        return
    if comments and comments[-1].string == lines[-1]:
        cut = comments[-1][1] == "HELP"
    else:
        cut = _is_cut(lines, comments[-1][3] if comments else None)
    if cut:
        raise ExpositionError("truncated", f"the body stops inside a family before line {end}")


def _is_cut(lines: list[str], kind: str | None) -> bool:
    """Whether the last series among a family's lines lacks a part that a histogram or summary always has."""
    last: tuple[str, frozenset[tuple[str, str]]] | None = None
    parts: set[str] = set()
    for line in reversed(lines):
        sample = _SAMPLE.match(line)
        part = sample and _PART.search(sample[1])
        if sample is None or not part:
            break
        try:
            labels, _, _ = _read(line, sample)
        except ValueError:
            return False
        bound = labels.pop("le", "")
        ident = (sample[1][: part.start()], frozenset(labels.items()))
        last = last or ident
        if ident == last:
            parts.update((part[1], bound))
    if kind == "histogram" or "bucket" in parts:
        return last is not None and not parts >= {"+Inf", "sum", "count"}
    return kind == "summary" and len(parts & {"sum", "count"}) == 1


def _is_sound(line: str) -> bool:
    """Whether a line is a sample in every respect."""
    sample = _SAMPLE.match(line)
    if sample is None:
        return False
    try:
        _read(line, sample)
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    """A piece of the body that is safe to print: short, one line, no control characters."""
    short = text if len(text) <= 120 else text[:117] + "..."
    return "'" + "".join(c if c.isprintable() else "?" for c in short) + "'"
