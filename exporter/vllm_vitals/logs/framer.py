"""Bytes to lines, without I/O. Input: chunks cut anywhere. Output: lines without their newline, or TOO_LONG.

Invariant: the lines depend only on the bytes, never on where the chunks were cut; memory stays below
``max_line_bytes`` plus one chunk. Only ``\\n`` ends a line: U+2028, form feeds and lone ``\\r`` are content.
"""

from typing import Final


class TooLong:
    """Stands for a line that had more than the allowed bytes; its content was dropped."""


TOO_LONG: Final = TooLong()
Line = bytes | TooLong


class LineFramer:
    """Holds the unfinished last line between chunks."""

    def __init__(self, max_line_bytes: int = 1 << 20) -> None:
        self._max = max_line_bytes
        self._parts: list[bytes] = []
        self._dropping = False
        self.pending = 0
        """Bytes since the last newline, dropped ones too: what a restart has to read again."""

    def feed(self, data: bytes) -> list[Line]:
        """Give the lines that ``data`` completes."""
        pieces = data.split(b"\n")
        tail = pieces.pop()
        lines: list[Line] = []
        if pieces:
            lines.append(self._complete(pieces[0]))
            if len(data) > self._max:
                lines.extend(TOO_LONG if len(piece) > self._max else piece for piece in pieces[1:])
            else:
                lines.extend(pieces[1:])
        self._hold(tail)
        return lines

    def flush(self) -> list[Line]:
        """Give the last line of an input that has ended without a newline, if there is one."""
        return [self._complete(b"")] if self.pending else []

    def _hold(self, piece: bytes) -> None:
        self.pending += len(piece)
        if self._dropping or self.pending > self._max:
            self._dropping = True
            self._parts.clear()
        elif piece:
            self._parts.append(piece)
            if len(self._parts) > 256:  # one byte at a time must not hold a list entry for each byte
                self._parts = [b"".join(self._parts)]

    def _complete(self, piece: bytes) -> Line:
        if not self.pending:
            return piece if len(piece) <= self._max else TOO_LONG
        self._hold(piece)
        line: Line = TOO_LONG if self._dropping else b"".join(self._parts)
        self._parts.clear()
        self._dropping = False
        self.pending = 0
        return line
