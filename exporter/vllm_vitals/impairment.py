"""What keeps vllm-vitals itself from looking: its own file descriptors, its own event loop, its own disk.

Input: reports of trouble, as it happens. Output: what is in force now, in words. Invariant: what is ours is told as
ours and never becomes a verdict about a server; a trouble that was not reported again for a while is over.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, TypeGuard

Kind = Literal["file_descriptors", "event_loop", "disk"]
KINDS: tuple[Kind, ...] = ("file_descriptors", "event_loop", "disk")
# A trouble counts for so long after it was last met (s): longer than any scrape interval of Prometheus, and as long as
# it may take until a disk is written to again.
HELD_S: Mapping[str, float] = {"file_descriptors": 60.0, "event_loop": 60.0, "disk": 900.0}
TICK_S = 0.25
LATE_S = 1.0  # an event loop that is so late makes scrapes late
KEPT_S = 60.0
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


class Impairment:
    """One per process. ``now`` is any clock that only advances (s)."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._met: dict[Kind, tuple[float, str]] = {}
        self._lags: deque[tuple[float, float]] = deque(maxlen=int(KEPT_S / TICK_S))

    def meet(self, kind: Kind, why: str) -> None:
        """Report a trouble."""
        self._met[kind] = (self._now(), why)

    def over(self, kind: Kind) -> None:
        """Report that a trouble is over."""
        self._met.pop(kind, None)

    def active(self) -> Mapping[str, str]:
        """Return every impairment in force, and why."""
        now, met = self._now(), dict(self._met)
        return {kind: met[kind][1] for kind in KINDS if kind in met and met[kind][0] >= now - HELD_S[kind]}

    def lagged(self, now: float, lag: float) -> None:
        """Take in how much later than asked for the event loop woke up (s)."""
        self._lags.append((now, lag))
        if lag >= LATE_S:
            self.meet(
                "event_loop", f"the event loop stood still for {lag:.1f} s: this host or this process is overloaded"
            )

    def lag(self, seconds: float = KEPT_S) -> float:
        """Return the longest lag of the event loop over the last ``seconds``."""
        since = self._now() - seconds
        return max((lag for at, lag in self._lags if at >= since), default=0.0)

    async def watch(self) -> None:
        """Measure the event loop until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.lagged(self._now(), max(0.0, loop.time() - due))


def is_ours(error: BaseException | None) -> TypeGuard[OSError]:
    """Return whether an error tells of our own limits, not of the other end."""
    return isinstance(error, OSError) and error.errno in _OURS


def out_of_descriptors() -> bool:
    """Return whether no file can be opened now: a resolver says only that it failed."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return is_ours(error)
    return False
