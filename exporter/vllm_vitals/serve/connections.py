"""How many connections there may be, and how long one may be silent.

Input: connections as they come and go. Output: whether one more may come; those that have been silent too long.
Invariant: connections never use the file descriptors that scrapes need, and one that says nothing whole is closed.
"""

import resource
from typing import Protocol

HEAD_S = 10.0  # for a TLS handshake, and for the first whole head of a request
IDLE_S = 75.0  # between requests: longer than Prometheus' usual interval of a minute
KEPT_FOR_SCRAPES = 40  # of our file descriptors, besides half of the rest
MAX_CONNECTIONS = 512
LONG_S = 3.0


def most(limit: int | None = None) -> int:
    """Return how many connections fit beside scrapes under this limit of open files (None: the one in force)."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    return MAX_CONNECTIONS if files < 0 else max(4, min(MAX_CONNECTIONS, (files - KEPT_FOR_SCRAPES) // 2))


class Connection(Protocol):
    """What is known of one: whether a request of it is being answered, whether any was, since when it is silent."""

    busy: int
    served: bool
    silent_since: float
    opened_at: float


class Connections:
    """All that are open. Times are the event loop's (s)."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open: set[Connection] = set()
        self.lingered = 0  # connections that were open for long and are gone
        self._shaking: dict[Connection, float] = {}

    def may_come(self, now: float) -> bool:
        """Return whether there is room for one more."""
        self._shaking = {one: since for one, since in self._shaking.items() if since >= now - HEAD_S}
        return len(self.open) + len(self._shaking) < self.most

    def give_way(self) -> Connection | None:
        """Return the connection to close: silent for longest, first those that never sent; None: all are busy."""
        silent = [one for one in self.open if not one.busy]
        if not silent:
            return None
        first = min(silent, key=lambda one: (one.served, one.silent_since))
        self.open.discard(first)
        return first

    def accepted(self, one: Connection, now: float) -> None:
        """Register an accepted connection; with TLS it must shake hands first."""
        self._shaking[one] = now

    def opened(self, one: Connection, now: float) -> None:
        """Note that a connection can send requests now."""
        self._shaking.pop(one, None)
        one.silent_since = one.opened_at = now
        self.open.add(one)

    def closed(self, one: Connection, now: float) -> None:
        """Forget a closed connection."""
        self._shaking.pop(one, None)
        self.open.discard(one)
        self.lingered += now - one.opened_at > LONG_S

    def silent(self, now: float) -> list[Connection]:
        """Return the connections without a whole request for too long."""
        return [
            one for one in self.open if not one.busy and now - one.silent_since > (IDLE_S if one.served else HEAD_S)
        ]
