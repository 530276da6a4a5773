"""Text exposition to numbers, hardened: the traps of the format are refused or read right, never guessed.

In: the bytes of ``GET /metrics`` and which metric names are wanted. Out: `Exposition`, or `ExpositionError` with a
reason from `snapshot.SCRAPE_ERRORS`. Invariant: a body that was cut short is an error wherever the cut can be seen; a
line that cannot be read, or contradicts another, is a fault of its own metric name and of no other.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan
from typing import NamedTuple

from vllm_vitals.core.incremental import Blocks, ParsedBody, Rows
from vllm_vitals.core.sample_line import COMMENT, SAMPLE, is_sound, read, shown
from vllm_vitals.core.truncation import ends_inside_a_family

# What one body may ask of us. vLLM 0.32 has 614 lines an engine, 215 of them wanted, 92 families; the longest is 1 KiB.
MAX_SERIES = 100_000
MAX_WANTED = 60_000
MAX_FAMILIES = 5_000
MAX_LINE = 256 * 1024  # characters; a list of hundreds of LoRA adapters stands in one label
_HUGE = re.compile(rb"(?m)^[^\n]{65536,}")


class ExpositionError(Exception):
    """A body that cannot be used. ``reason`` is one of `snapshot.SCRAPE_ERRORS`, ``detail`` one bounded line."""

    def __init__(self, reason: str, detail: str):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class Fault(NamedTuple):
    """Why the series of one name are not to be trusted, in the words of an `ExpositionError`."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Series:
    """A metric name and its decoded labels."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Exposition:
    """The series read, in the order of the body, their values in the same order, and the families seen.

    ``families`` holds names as declared, and the names of samples that stand under no declaration of their own.
    ``faults`` has the first fault of each wanted name; what else stands under that name is read all the same.
    ``ended``: the body closes as OpenMetrics does.
    """

    series: Sequence[Series]
    families: frozenset[str]
    skeleton: ParsedBody
    faults: Mapping[str, Fault]
    ended: bool

    @property
    def values(self) -> list[float]:
        """Give one value a series."""
        return self.skeleton.values


def parse(body: bytes, wanted: frozenset[str] | None = None, max_series: int = MAX_SERIES) -> Exposition:
    """Read the wanted series (None: all) of a body in text format 0.0.4 or OpenMetrics. Raises `ExpositionError`.

    Forgives nothing: the first fault of a wanted name is the error. Malformed lines of unwanted names are skipped. A
    family with a wanted name may bring its other series along.
    """
    exposition = learn(split(body, max_series), wanted)
    for fault in exposition.faults.values():
        raise ExpositionError(*fault)
    return exposition


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
    # Here, not where every body is cut: one that has more families than the last is learnt again.
    families = max(len(blocks.texts), sum(text.count(b"\n# TYPE ") for text in blocks.texts))
    if families > MAX_FAMILIES:
        raise ExpositionError("too_many_series", f"{families} families, more than the limit of {MAX_FAMILIES}")
    seen = _Seen(wanted)
    rows: list[Rows | None] = []
    for number, text in enumerate(blocks.texts):
        block = (blocks.opening if number else b"") + text
        last = number == len(blocks.texts) - 1
        try:
            lines = block.decode().split("\n")
        except UnicodeDecodeError:
            lines = _salvage(block, seen)
            _refuse_long_line(lines, seen)
            _rows(text, lines, seen, last=last)
            rows.append(None)
        else:
            _refuse_long_line(lines, seen)
            rows.append(_rows(text, lines, seen, last=last))
        seen.line += len(lines)
    ended = next((line for line in reversed(lines) if line.strip()), "").startswith("# EOF")
    if not seen.series and not seen.sound and not ended:
        for fault in (*seen.faults.values(), *seen.foreign.values()):
            raise ExpositionError(*fault)
        raise _not_metrics(blocks.texts[0])
    if ends_inside_a_family(lines):
        raise ExpositionError("truncated", f"the body stops inside a family before line {seen.line}")
    if (unfinished := seen.malformed) and unfinished[0] == seen.line - 1:
        raise ExpositionError(*unfinished[1])  # where the body ends, more than this line may be missing
    if seen.repeats:
        blocks = Blocks(b"", [])  # a series on two lines: every body has to be checked again
    skeleton = ParsedBody(blocks, rows, seen.values)
    return Exposition(seen.series, frozenset(seen.families), skeleton, seen.faults, ended)


def _refuse_long_line(lines: list[str], seen: "_Seen") -> None:
    """Bound what a line that has to be taken apart may cost; others are passed over, however long."""
    for line in lines:
        if len(line) > MAX_LINE and (sample := SAMPLE.match(line)) and seen.wants(sample[1]):
            many = f"a line of {len(line)} characters, more than the limit of {MAX_LINE}"
            raise ExpositionError("too_large", f"{many}: {shown(line)}")


def _salvage(block: bytes, seen: "_Seen") -> list[str]:
    """Decode a block that is not UTF-8 line by line, noting the lines that are not."""
    lines = []
    for number, line in enumerate(block.split(b"\n"), seen.line):
        lines.append(line.decode(errors="replace"))
        if lines[-1].encode() != line:
            seen.foreign[number] = Fault("encoding", f"line {number} is not UTF-8: {shown(lines[-1])}")
    return lines


@dataclass(slots=True)
class _Seen:
    """What the lines so far have given. ``sound``: a declaration or an unwanted sample shows that they are metrics.

    ``faults`` are by metric name, ``foreign`` (not UTF-8) by line; ``malformed`` is the last line of a wanted name that
    could not be read.
    """

    wanted: frozenset[str] | None
    series: list[Series] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    families: set[str] = field(default_factory=set)
    slots: dict[tuple[str, frozenset[tuple[str, str]]], int] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    foreign: dict[int, Fault] = field(default_factory=dict)
    malformed: tuple[int, Fault] | None = None
    line: int = 1
    repeats: bool = False
    sound: bool = False

    def wants(self, name: str) -> bool:
        """Tell whether this very name is wanted."""
        return self.wanted is None or name in self.wanted

    def blame(self, name: str, fault: Fault) -> None:
        """Keep a wanted name's first fault."""
        if self.wants(name):
            self.faults.setdefault(name, fault)


def _rows(text: bytes, lines: list[str], seen: _Seen, *, last: bool) -> Rows | None:
    """Read one block; return how it is built where a later one may differ in its numbers."""
    samples = [SAMPLE.match(line) for line in lines]
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
        seen.sound = any(len(line) <= MAX_LINE and is_sound(line) for line in lines)
    may_hide_a_cut = last and kind in ("histogram", "summary", "")
    if not regular or not own or may_hide_a_cut or _is_wanted_inside(declared, seen.wanted):
        return None
    return Rows(head, tail, declared.encode())


def _declare(lines: Iterable[str], seen: _Seen) -> tuple[str, str]:
    """Find the name and type that a block declares last."""
    declared = kind = ""
    for line in lines:
        if not line.startswith(("#", " ", "\t")) or not (comment := COMMENT.match(line)):
            continue
        seen.sound = True
        if comment[1] == "TYPE":
            declared, kind = comment[2], comment[3] or ""
            seen.families.add(declared)
    return declared, kind


def _ends(text: bytes, lines: list[str], start: int, end: int) -> tuple[bytes, bytes]:
    """Give what stands before and after the samples, in bytes, newlines included."""
    after = sum(len(line.encode()) + 1 for line in lines[end:])
    rows = sum(len(line.encode()) + 1 for line in lines[start:end]) - 1
    size = len(text) - after
    return text[: size - rows], text[size:]


def _read_lines(lines: list[str], samples: list[re.Match[str] | None], seen: _Seen) -> Iterator[bytes]:
    """Take in a block's series; yield each line up to its value."""
    for number, (line, sample) in enumerate(zip(lines, samples, strict=True), seen.line):
        if sample is None:
            continue
        name = sample[1]
        try:
            labels, cut, value = read(line, sample)
        except ValueError as error:
            fault = seen.foreign.get(number) or Fault("malformed", f"line {number}: {error}: {shown(line)}")
            seen.blame(name, fault)
            seen.malformed = (number, fault) if seen.wants(name) else seen.malformed
            continue
        if number in seen.foreign:
            seen.blame(name, seen.foreign[number])
            continue
        if seen.wanted is not None and len(seen.series) >= MAX_WANTED:
            raise ExpositionError("too_many_series", f"more than the limit of {MAX_WANTED} series of vLLM's engines")
        slot = seen.slots.setdefault((name, frozenset(labels.items())), len(seen.series))
        if slot == len(seen.series):
            seen.series.append(Series(name, labels))
            seen.values.append(value)
            yield line[:cut].encode()
            continue
        seen.repeats = True
        same = value == seen.values[slot] or (isnan(value) and isnan(seen.values[slot]))
        if not same:
            seen.blame(name, Fault("duplicate", f"line {number} repeats a series with another value: {shown(line)}"))


def _is_wanted_inside(name: str, wanted: frozenset[str] | None) -> bool:
    """Tell whether a wanted name begins with this one, so that lines which do need a closer look."""
    ordered = _ordered(wanted or frozenset())
    at = bisect_left(ordered, name)
    return at < len(ordered) and ordered[at].startswith(name)


@lru_cache(maxsize=4)
def _ordered(names: frozenset[str]) -> list[str]:
    return sorted(names)


def burden(body: bytes | bytearray) -> str:
    """Say what makes a body so large, for the person who has to find it: its lines, or one that is huge."""
    longest = max(_HUGE.finditer(body), key=lambda line: line.end() - line.start(), default=None)
    if longest is None:
        return f"{body.count(10):,} lines, none of them huge"
    start = bytes(longest[0][:128]).decode(errors="replace")
    name = SAMPLE.match(start)
    return f"one line has {longest.end() - longest.start():,} bytes: {name[1] if name else shown(start)}"


def _unfinished(body: bytes) -> ExpositionError:
    """Say why a body that does not end in a newline is refused: an exposition cut short, or none at all."""
    lines = body.decode(errors="replace").split("\n")
    if not body.startswith(b"<") and any(COMMENT.match(line) or is_sound(line) for line in lines):
        return ExpositionError("truncated", f"the body stops inside line {len(lines)}, after {len(body)} bytes")
    return _not_metrics(body)


def _not_metrics(body: bytes) -> ExpositionError:
    first = body.decode(errors="replace").lstrip().split("\n", 1)[0]
    return ExpositionError("not_metrics", f"not an exposition: it begins with {shown(first)}")
