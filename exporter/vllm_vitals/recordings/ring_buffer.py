"""The last minutes of one target's scrapes in memory, small: each body is kept as what the next one changed.

Input: scrapes in order. Output: the same scrapes, byte for byte. Invariant: never more than the given seconds and
bytes; the oldest go first, which costs nothing because each is encoded by its successor.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from vllm_vitals.core.snapshot import Scrape

_CHANGED, _WHOLE = b"c", b"w"


@dataclass(slots=True)
class _Kept:
    """A scrape without its body, and the body packed against the next one; none for the newest and for failures."""

    scrape: Scrape
    had_body: bool
    packed: bytes = b""


class ScrapeRingBuffer:
    """``seconds`` of scrapes in at most ``max_bytes``."""

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._seconds, self._max_bytes = seconds, max_bytes
        self._kept: deque[_Kept] = deque()
        self._body: bytes | None = None  # the newest body there is
        self._newest: _Kept | None = None  # whose it is
        self._packed_bytes = 0

    def push(self, scrape: Scrape) -> None:
        """Add the newest scrape."""
        kept = _Kept(replace(scrape, body=None), scrape.body is not None)
        if scrape.body is not None and len(scrape.body) > self._max_bytes:
            self.clear()  # alone more than may be kept: packing it would be wasted
            return
        if scrape.body is not None:
            if self._newest is not None and self._body is not None:
                self._newest.packed = pack(self._body, scrape.body)
                self._packed_bytes += len(self._newest.packed)
            self._body, self._newest = scrape.body, kept
        self._kept.append(kept)
        while self._kept and (self._kept[0].scrape.at < scrape.at - self._seconds or self.nbytes > self._max_bytes):
            self._drop_oldest()

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self._body, self._newest, self._packed_bytes = None, None, 0

    @property
    def nbytes(self) -> int:
        """Bytes of bodies held."""
        return self._packed_bytes + len(self._body or b"")

    def copy(self) -> "list[tuple[Scrape, bytes | None]]":
        """Return what `unroll` needs, oldest first; cheap, and safe to hand to another thread."""
        return [
            (kept.scrape, (self._body if kept is self._newest else kept.packed) if kept.had_body else None)
            for kept in self._kept
        ]

    def _drop_oldest(self) -> None:
        oldest = self._kept.popleft()
        self._packed_bytes -= len(oldest.packed)
        if oldest is self._newest:
            self._newest = self._body = None


def unroll(kept: Iterable[tuple[Scrape, bytes | None]]) -> list[Scrape]:
    """Return the scrapes of a `ScrapeRingBuffer.copy`, oldest first."""
    return list(_backwards(list(kept)))[::-1]


def _backwards(kept: list[tuple[Scrape, bytes | None]]) -> Iterator[Scrape]:
    later: bytes | None = None
    for scrape, data in reversed(kept):
        if data is None:
            yield scrape
            continue
        later = data if later is None else unpack(data, later)
        yield replace(scrape, body=later)


def pack(body: bytes, later: bytes) -> bytes:
    """``body`` as its lines that ``later`` has otherwise; whole where the two are built differently.

    Mostly a counter moved: of such a line its last word is kept, behind "=", and the rest is in ``later``.
    """
    lines, others = body.split(b"\n"), later.split(b"\n")
    if len(lines) != len(others):
        return _WHOLE + zlib.compress(body, 1)
    changed = []
    for number, (line, other) in enumerate(zip(lines, others, strict=True)):
        if line != other:
            name, space, value = line.rpartition(b" ")
            same = space and other.startswith(name) and other.rfind(b" ") == len(name)
            changed.append(b"%d=%b" % (number, value) if same else b"%d %b" % (number, line))
    return _CHANGED + zlib.compress(b"\n".join(changed), 1)


def unpack(packed: bytes, later: bytes) -> bytes:
    """Return the body that `pack` made ``packed`` of."""
    text = zlib.decompress(packed[1:])
    if packed[:1] == _WHOLE:
        return text
    lines = later.split(b"\n")
    for change in text.split(b"\n") if text else ():
        digits = len(change) - len(change.lstrip(b"0123456789"))
        number, kind, rest = int(change[:digits]), change[digits : digits + 1], change[digits + 1 :]
        lines[number] = lines[number].rpartition(b" ")[0] + b" " + rest if kind == b"=" else rest
    return b"\n".join(lines)
