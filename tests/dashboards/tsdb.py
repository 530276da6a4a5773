"""Write a Prometheus block whose series share their chunks: weeks of hundreds of servers in seconds.

Input: courses (values at equal steps, by name) and series (labels, course). Output: a block's
folder, as tsdb/docs/format has it. Invariant: Prometheus decodes every sample of every series as if each had chunks of
its own; only the disk does not hold them twice. Why not promtool: a fleet's week is 600 million lines of text.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

DAY = 86400
_SAMPLES = 120  # of a chunk, as Prometheus itself cuts them
_ULID = "01JJJJJJJJ0000000000000000"
# What Prometheus writes where a scrape failed: a series has no value from here on.
STALE = struct.unpack(">d", b"\x7f\xf0\0\0\0\0\0\x02")[0]
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when (epoch s; whole chunks of every course)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Course:
    """Values, ``step`` seconds apart; it begins anew when it ends, and holds whole chunks."""

    values: Sequence[float]
    step: int


def write(folder: Path, span: Span, courses: Mapping[str, Course], series: Iterable[tuple[Labels, str]]) -> None:
    """Write one block of these series; a label pair, and the name of what it went through."""
    block = folder / _ULID
    (block / "chunks").mkdir(parents=True)
    chunks, entries = bytearray(b"\x85\xbd\x40\xdd\x01\0\0\0"), {}
    for name, course in courses.items():
        entries[name] = _course(chunks, span, course)
    (block / "chunks" / "000001").write_bytes(chunks)
    count = _index(block / "index", entries, sorted(set(series)))
    stats = {"numSamples": 1, "numSeries": count, "numChunks": count}
    about = {
        "ulid": _ULID, "minTime": span.start * 1000, "maxTime": span.end * 1000, "stats": stats,
        "compaction": {"level": 1, "sources": [_ULID]}, "version": 1,
    }  # fmt: skip
    (block / "meta.json").write_text(json.dumps(about), encoding="utf-8")


def _course(chunks: bytearray, span: Span, course: Course) -> bytes:
    """Append a course's chunks; return what a series says of them in the index."""
    said, last_end, last_at = bytearray(), 0, 0
    values, step = course.values, course.step
    times = range(span.start, span.end, step * _SAMPLES)
    said += _unsigned(len(times))
    bodies: dict[int, bytes] = {}
    for number, start in enumerate(times):
        first = number * _SAMPLES % len(values)
        if first not in bodies:
            bodies[first] = xor([values[(first + i) % len(values)] for i in range(_SAMPLES)], step * 1000)
        data = struct.pack(">H", _SAMPLES) + _signed(start * 1000) + bodies[first]
        at, begin, end = len(chunks), start * 1000, (start + step * (_SAMPLES - 1)) * 1000
        chunks += _unsigned(len(data)) + b"\x01" + data + struct.pack(">I", crc(b"\x01" + data))
        if number:
            said += _unsigned(begin - last_end) + _unsigned(end - begin) + _signed(at - last_at)
        else:
            said += _signed(begin) + _unsigned(end - begin) + _unsigned(at)
        last_end, last_at = end, at
    return bytes(said)


def xor(values: Sequence[float], step_ms: int) -> bytes:
    """Return a chunk after its first time: Gorilla's encoding (Pelkonen and others 2015) as Prometheus writes it."""
    raw = [int.from_bytes(struct.pack(">d", value), "big") for value in values]
    bits, size = raw[0], 64
    for byte in _unsigned(step_ms):
        bits, size = bits << 8 | byte, size + 8
    leading, trailing, known = 0, 0, False
    for place, (one, other) in enumerate(pairwise(raw)):
        if place:
            bits, size = bits << 1, size + 1  # each as long after its predecessor as that one
        delta = one ^ other
        if not delta:
            bits, size = bits << 1, size + 1
            continue
        lead, trail = min(64 - delta.bit_length(), 31), (delta & -delta).bit_length() - 1
        if known and lead >= leading and trail >= trailing:
            bits, size = bits << 2 | 0b10, size + 2
        else:
            leading, trailing, known = lead, trail, True
            bits, size = bits << 13 | 0b11 << 11 | lead << 6 | (64 - lead - trail) & 63, size + 13
        width = 64 - leading - trailing
        bits, size = bits << width | delta >> trailing, size + width
    pad = -size % 8
    return (bits << pad).to_bytes((size + pad) // 8, "big")


def _index(path: Path, entries: Mapping[str, bytes], series: Sequence[tuple[Labels, str]]) -> int:
    words = sorted({word for labels, _ in series for pair in labels for word in pair} | {""})
    place = {word: number for number, word in enumerate(words)}
    tails = {name: (tail, crc(tail), _Shift(len(tail))) for name, tail in entries.items()}
    with path.open("wb") as file:
        file.write(b"\xba\xaa\xd7\x00\x02")
        symbols = struct.pack(">I", len(words)) + b"".join(_text(word) for word in words)
        toc = [file.tell()]
        file.write(_framed(symbols))
        toc.append(file.tell())
        postings: dict[tuple[str, str], list[int]] = {("", ""): []}
        for labels, course in series:
            file.write(b"\0" * (-file.tell() % 16))
            number = file.tell() // 16
            tail, of_tail, shift = tails[course]
            head = _unsigned(len(labels)) + b"".join(
                _unsigned(place[name]) + _unsigned(place[value]) for name, value in labels
            )
            file.write(_unsigned(len(head) + len(tail)) + head + tail)
            file.write(struct.pack(">I", shift.after(crc(head)) ^ of_tail))
            for pair in (("", ""), *labels):
                postings.setdefault(pair, []).append(number)
        toc += [file.tell(), 0]
        offsets = []
        for pair in sorted(postings):
            file.write(b"\0" * (-file.tell() % 4))
            offsets.append((pair, file.tell()))
            refs = postings[pair]
            file.write(_framed(struct.pack(f">{len(refs) + 1}I", len(refs), *refs)))
        toc[3] = file.tell()
        file.write(_framed(struct.pack(">I", 0)))
        table = file.tell()
        said = b"".join(b"\x02" + _text(name) + _text(value) + _unsigned(at) for (name, value), at in offsets)
        file.write(_framed(struct.pack(">I", len(offsets)) + said))
        # symbols, series, label indices, their table, postings, their table
        body = struct.pack(">6Q", toc[0], toc[1], toc[2], toc[3], toc[2], table)
        file.write(body + struct.pack(">I", crc(body)))
    return len(series)


def _framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body + struct.pack(">I", crc(body))


def _text(word: str) -> bytes:
    raw = word.encode()
    return _unsigned(len(raw)) + raw


def _unsigned(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _signed(value: int) -> bytes:
    return _unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901 - eight turns of one number
        found.append(byte)
    return tuple(found)


_TABLE = _table()


def crc(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of these bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


class _Shift:
    """What ``length`` bytes that follow make of a CRC, bit by bit: the CRC of both is that, xor the second's."""

    def __init__(self, length: int) -> None:
        # One bit each, moved through as many zero bytes, by squaring.
        self._rows = [1 << bit for bit in range(32)]
        step = [_TABLE[(1 << bit) & 0xFF] ^ (1 << bit) >> 8 for bit in range(32)]
        while length:
            if length & 1:
                self._rows = [_times(step, row) for row in self._rows]
            step = [_times(step, row) for row in step]
            length >>= 1

    def after(self, value: int) -> int:
        """Return the CRC moved on."""
        return _times(self._rows, value)


def _times(rows: Sequence[int], value: int) -> int:
    found = 0
    while value:
        low = value & -value
        found ^= rows[low.bit_length() - 1]
        value ^= low
    return found
