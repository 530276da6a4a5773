"""Which pushes were counted already, by the id that their sender gave them.

Input: a source, an id, a body. Output: whether that batch is new. Invariant: the newest MAX_BATCHES ids of each source
are known, and they are stored in the checkpoint beside the counts of their lines: both are on disk, or neither.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

MAX_BATCHES = 1000
_DIGEST_BYTES = 12

Known = Literal["new", "counted", "other body"]


def digest(content: bytes) -> str:
    """Make a short name of some bytes."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


class Batches:
    """Ids of batches, and the digest of the body that each came with."""

    def __init__(self, plain: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._known: dict[str, dict[str, str]] = {source: dict(some) for source, some in (plain or {}).items()}

    def look_up(self, source: str, key: str, body: str) -> Known:
        """Say whether a batch was counted. ``body`` is a digest."""
        found = self._known.get(source, {}).get(digest(key.encode()))
        if found is None:
            return "new"
        return "counted" if found == body else "other body"

    def add(self, source: str, key: str, body: str) -> None:
        """Remember a batch that is counted; the oldest gives way."""
        known = self._known.setdefault(source, {})
        while len(known) >= MAX_BATCHES:
            del known[next(iter(known))]
        known[digest(key.encode())] = body

    def keep(self, sources: set[str]) -> None:
        """Forget the sources that are no longer read."""
        for gone in self._known.keys() - sources:
            del self._known[gone]

    def plain(self) -> dict[str, Any]:
        """Show the ids as JSON can hold them, oldest first."""
        return dict(self._known)
