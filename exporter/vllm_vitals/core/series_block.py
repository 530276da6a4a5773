"""SampleLines of text exposition as one text that only wants its values: most of a page is the same from poll to poll.

In: rows (a family, and the values of its own labels) and their numbers. Out: bytes by family. Invariant: a label value
is escaped, and a value written as short as it can be without loss.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from zlib import crc32

from vllm_vitals.catalog import BY_NAME
from vllm_vitals.core.sample import Histogram

Row = tuple[str, ...]  # a family's name, then one value for each label that is its own

MAX_LABEL_CHARS = 256
_CUT = b"\xff"  # a byte that no UTF-8 text holds
_WHOLE = 1e15  # below it a float that is whole is written as an integer


def escape(text: str) -> str:
    """Return a label value, escaped; an absurdly long one is cut, with a checksum that keeps it distinct."""
    if len(text) > MAX_LABEL_CHARS:
        text = f"{text[: MAX_LABEL_CHARS - 9]}~{crc32(text.encode(errors='replace')):08x}"
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def label_text(labels: Mapping[str, str]) -> str:
    """``a="1",b="2"``: what stands between the braces."""
    return ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())


def plain(value: float) -> float:
    """Return the number whose ``repr`` is the shortest text for it."""
    return int(value) if -_WHOLE < value < _WHOLE and value == int(value) else value


@dataclass(slots=True)
class SampleLines:
    """Rows and their values, in the order of the page. What is absent or not finite has no row."""

    rows: list[Row] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, value: float | None, *row: str) -> None:
        """Add one line."""
        if value is not None and isfinite(value):
            self.rows.append(row)
            self.values.append(plain(value))

    def fill(self, rows: Iterable[Row], values: Iterable[float | None]) -> None:
        """Add one line per known value."""
        for row, value in zip(rows, values, strict=True):
            if value is not None and isfinite(value):
                self.rows.append(row)
                self.values.append(plain(value))

    def put(self, rows: Sequence[Row], values: Sequence[float]) -> None:
        """SampleLines whose values are all known and `plain`."""
        self.rows += rows
        self.values += values


class SeriesBlock:
    """The lines of one label set, ``own``. Rows of one family stand together."""

    __slots__ = ("_families", "_histograms", "_own", "_rows", "_text")

    def __init__(self, own: str) -> None:
        self._own = own
        self._rows: list[Row] = []
        self._families: tuple[str, ...] = ()
        self._text = b""
        self._histograms: dict[str, tuple[Histogram, bytes]] = {}

    def render(self, lines: SampleLines) -> Iterator[tuple[str, bytes]]:
        """Return each family's lines. The text is kept while the rows are the same."""
        if lines.rows != self._rows:
            self._lay_out(lines.rows)
        return zip(self._families, (self._text % tuple(lines.values)).split(_CUT), strict=True)

    def histogram(self, name: str, histogram: Histogram) -> bytes:
        """Return all lines of a histogram, kept while it is the same object."""
        known = self._histograms.get(name)
        if known is None or known[0] is not histogram:
            known = self._histograms[name] = (histogram, _render_histogram(name, self._own, histogram))
        return known[1]

    def _lay_out(self, rows: list[Row]) -> None:
        families: dict[str, list[bytes]] = {}
        for row in rows:
            families.setdefault(row[0], []).append(_literal(_named(row) % self._own) + b" %a\n")
        self._rows, self._families = rows, tuple(families)
        self._text = _CUT.join(map(b"".join, families.values()))


@lru_cache(maxsize=4096)
def _named(row: Row) -> str:
    """Return a line up to its value, with %s for the labels that all lines of a sheet share."""
    metric, more = BY_NAME[row[0]], label_text(dict(zip(BY_NAME[row[0]].labels, row[1:], strict=True)))
    return f"{metric.full_name}{{%s{',' if more else ''}{more.replace('%', '%%')}}}"


def _literal(text: str) -> bytes:
    """Return a text as a part of a format."""
    return text.encode(errors="replace").replace(b"%", b"%%")


def _render_histogram(name: str, own: str, histogram: Histogram) -> bytes:
    """Write counts as they are, whole or not."""
    text, counts = _histogram(name, histogram.bounds), histogram.counts
    written: Iterable[float] = counts
    if not all(map(float.is_integer, counts)):
        text, written = text.replace(b"%d", b"%a"), map(plain, counts)
    values = (*written, plain(histogram.sum), plain(histogram.count))
    return text.replace(_CUT, _literal(own)) % values


@lru_cache(maxsize=512)
def _histogram(name: str, bounds: tuple[float, ...]) -> bytes:
    """Return a histogram's lines, to be filled with every count, then sum and count; `_CUT` stands for the labels."""
    full = BY_NAME[name].full_name.encode()
    edges = [repr(float(bound)).encode() for bound in bounds] + [b"+Inf"]
    buckets = b"".join(b'%b_bucket{%b,le="%b"} %%d\n' % (full, _CUT, edge) for edge in edges)
    return b"%b%b_sum{%b} %%a\n%b_count{%b} %%d\n" % (buckets, full, _CUT, full, _CUT)
