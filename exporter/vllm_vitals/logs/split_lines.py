"""Pieces of lines that a container runtime split, until the rest comes.

Input: pieces of a stream, in order. Output: the whole line. Invariant: at most ``max_line_bytes`` are kept a stream;
beyond that only how many pieces there were and how large they are.
"""

from dataclasses import dataclass, field

_MAX_PARTS = 256


@dataclass(slots=True)
class _Held:
    parts: list[bytes] = field(default_factory=list)
    count: int = 0
    size: int = 0


class Pieces:
    """Holds what has come of the split line of each stream."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max = max_line_bytes
        self._held: dict[str, _Held] = {}

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of which a line is unfinished."""
        return tuple(self._held)

    def hold(self, stream: str, piece: bytes) -> None:
        """Keep a piece whose rest is still to come."""
        held = self._held.setdefault(stream, _Held())
        held.count += 1
        held.size += len(piece)
        if held.size > self._max:
            held.parts.clear()
        elif piece:
            held.parts.append(piece)
            if len(held.parts) > _MAX_PARTS:  # one byte at a time must not hold a list entry for each byte
                held.parts = [b"".join(held.parts)]

    def whole(self, stream: str, last: bytes) -> tuple[bytes | None, int]:
        """Put the line together: its bytes, None where they are too many, and how many pieces came before ``last``."""
        held = self._held.pop(stream, None)
        if held is None:
            return last, 0
        if held.size + len(last) > self._max:
            return None, held.count
        return b"".join((*held.parts, last)), held.count
