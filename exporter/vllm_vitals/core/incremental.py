"""Taking over the numbers of a body that is built like the last one, at the speed of C.

A scrape differs from the one before it in the values of some families. In: the body's blocks, one a family, and the
`ParsedBody` learnt from an earlier body. Out: which values changed. Invariant: what `apply_delta` accepts it reads
exactly as `exposition.learn` would; anything unusual it declines.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress, count
from operator import ne
from typing import NamedTuple


class Blocks(NamedTuple):
    """A body cut where a family begins; ``opening`` was cut away before every block but the first."""

    opening: bytes
    texts: list[bytes]


@dataclass(frozen=True, slots=True)
class Rows:
    """How a block is built: ``head``, then one line a series, then ``tail``.

    With ``prefixes`` every line is read: they are the series as written, ``width`` bytes with the newlines, and their
    values go to the slots from ``first`` on. Without, no line is wanted, and each begins with ``name``.
    """

    head: bytes
    tail: bytes
    name: bytes = b""
    prefixes: tuple[bytes, ...] = ()
    width: int = 0
    first: int = 0


@dataclass(slots=True)
class ParsedBody:
    """A body taken apart. A block whose rows are None must not change. No blocks: nothing can be followed."""

    blocks: Blocks
    rows: list[Rows | None]
    values: list[float]


def apply_delta(skeleton: ParsedBody, blocks: Blocks) -> list[int] | None:
    """Take over a later body's values; return the slots that changed.

    None means that the body is built differently: the skeleton is then spoilt and the body must be learnt.
    """
    before = skeleton.blocks
    if len(blocks.texts) != len(before.texts) or blocks.opening != before.opening:
        return None
    changed: list[int] = []
    for number in compress(count(), map(ne, blocks.texts, before.texts)):
        rows = skeleton.rows[number]
        middle = _middle(blocks.texts[number], rows) if rows else None
        if rows is None or middle is None:
            return None
        if rows.prefixes:
            slots = _take(skeleton.values, middle, rows)
            if slots is None:
                return None
            changed.extend(slots)
        elif not _are_all(middle, rows.name):
            return None
    skeleton.blocks = blocks
    return changed


def _middle(text: bytes, rows: Rows) -> bytes | None:
    """Give the lines between head and tail, if those are unchanged."""
    if not (text.startswith(rows.head) and text.endswith(rows.tail)):
        return None
    return text[len(rows.head) : len(text) - len(rows.tail)]


def _are_all(lines: bytes, name: bytes) -> bool:
    """Tell whether every line begins with the name; text that is not ASCII is left to the decoder."""
    return lines.isascii() and lines.startswith(name) and lines.count(b"\n") == lines.count(b"\n" + name)


def _take(values: list[float], middle: bytes, rows: Rows) -> Iterator[int] | None:
    """Give the slots of the values that are new, or None where a line is not its prefix and a plain number."""
    numbers = list(map(bytes.removeprefix, middle.split(b"\n"), rows.prefixes))
    digits = b"".join(numbers)
    # The length shows that every prefix was there; Python's float allows 1_000, the format does not.
    if len(digits) + rows.width != len(middle) or b"_" in digits:
        return None
    try:
        new = list(map(float, numbers))
    except ValueError:
        return None
    first, end = rows.first, rows.first + len(new)
    old = values[first:end]
    values[first:end] = new
    return compress(count(first), map(ne, new, old))
