"""Time that never runs backwards or jumps, whatever the wall clock does.

Inputs: the system's monotonic and wall clocks (arguments, for tests). Outputs: `now`, epoch seconds that advance with
the monotonic clock, for everything that measures; `skew`, what to add to such a time before showing it to others.
"""

import time
from collections.abc import Callable

STEP_S = 0.5  # smaller differences are slewing, and following them would make every timestamp restless


class Clock:
    """One per process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._origin = wall() - monotonic()
        self._skew = 0.0

    def now(self) -> float:
        """Epoch seconds as the wall clock had them at start, plus what has really passed since."""
        return self._monotonic() + self._origin

    @property
    def skew(self) -> float:
        """How far the wall clock has been stepped since start, in seconds."""
        skew = self._wall() - self.now()
        if abs(skew - self._skew) > STEP_S:
            self._skew = skew
        return self._skew
