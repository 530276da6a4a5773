"""A body that came compressed, although none was asked for, within a byte cap.

Input: chunks and what `Content-Encoding` says. Output: chunks. Invariant: never more bytes at once than asked for, so
that a bomb of a megabyte costs no gigabyte.
"""

import zlib
from collections.abc import Iterator

_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class Unpacker:
    """Unpacks one body."""

    def __init__(self, encoding: str) -> None:
        """Raise ValueError where the encoding is none that we read."""
        encoding = encoding.strip().lower()
        self._inflate = None if encoding in ("", "identity") else _inflate(encoding)

    def feed(self, chunk: bytes, room: int) -> Iterator[bytes]:
        """Yield what a chunk holds, at most about ``room`` bytes at a time. Raise ValueError for what is damaged."""
        if self._inflate is None:
            yield chunk
            return
        while chunk:
            try:
                yield self._inflate.decompress(chunk, max(1, room))
            except zlib.error as error:
                raise ValueError(f"the body is compressed and damaged: {error}") from None
            chunk = self._inflate.unconsumed_tail


def _inflate(encoding: str) -> "zlib._Decompress":
    if encoding not in _WBITS:
        raise ValueError(f"the body is compressed as {encoding[:20]!a}, although no compression was asked for")
    return zlib.decompressobj(_WBITS[encoding])
