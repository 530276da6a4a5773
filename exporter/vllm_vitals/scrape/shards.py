"""Which daemon of several watches a target: rendezvous hashing.

Inputs: a target's name and how many shards there are. Output: the one shard that owns it. Invariant: every process
gives the same answer, each target has exactly one owner, and adding a shard moves only what the new shard takes.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b

MAX_SHARDS = 1000
_SHARD = re.compile(r"([0-9]{1,4})/([0-9]{1,4})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``count`` daemons; ``index`` counts from 1."""

    index: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def owns(self, name: str) -> bool:
        """Return whether the target called ``name`` is this shard's."""
        return self.count == 1 or owner(name, self.count) == self.index


WHOLE = Shard()


def parse_shard(text: str) -> Shard:
    """Understand ``2/5``. Raises ValueError with one line."""
    match = _SHARD.fullmatch(text.strip())
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count <= MAX_SHARDS:
        raise ValueError(f'expected a shard such as "2/5" (from 1/5 to 5/5, at most {MAX_SHARDS}), got "{text[:20]}"')
    return Shard(index, count)


def owner(name: str, count: int) -> int:
    """Return the shard from 1 to ``count`` with the highest weight for ``name`` (Thaler and Ravishankar, 1998)."""
    key = name.encode(errors="surrogateescape")
    return max(range(1, count + 1), key=lambda index: (_weight(index, key), index))


def _weight(index: int, key: bytes) -> bytes:
    return blake2b(key, digest_size=8, salt=index.to_bytes(4, "big")).digest()
