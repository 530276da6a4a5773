"""Time, cut into equal windows: every series of a review has one value a window.

Window i covers (start + i x step, start + (i + 1) x step]. Steps are whole seconds. Invariant: grids of one review are
whole multiples of each other, so that a histogram's window is always a whole number of gauge windows.
"""

from dataclasses import dataclass

DAY = 86_400.0
FIVE_MINUTES = 300
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300)


@dataclass(frozen=True, slots=True)
class Grid:
    """``windows`` windows of ``step`` seconds from ``start`` (epoch s)."""

    start: float
    step: int
    windows: int

    @property
    def end(self) -> float:
        """The end of the last window."""
        return self.start + self.windows * self.step

    def at(self, window: float) -> float:
        """Return when a window begins."""
        return self.start + window * self.step

    def coarser(self, every: int) -> "Grid":
        """Windows of ``every`` of ours; the last may reach past our end."""
        return Grid(self.start, self.step * every, -(-self.windows // every))


def window_grid(start: float, end: float) -> Grid:
    """Five-minute windows for a day and more, shorter ones for less (some 300, never below 2 s)."""
    span = end - start
    step = FIVE_MINUTES if span >= DAY else max(2, step_at_least(span / 300))
    last = end // step * step if step >= 60 else float(int(end))
    return Grid(last - max(1, int((last - start) // step)) * step, step, max(1, int((last - start) // step)))


def state_grid(windows: Grid, engines: int, points: int) -> Grid:
    """Instants at which the state is read: as fine as ``points`` allow, from 15 s (1 s below six hours)."""
    span = windows.end - windows.start
    least = 15 if span >= DAY / 4 else 1
    step = max(least, step_at_least(span * engines / points))
    return Grid(windows.start, step, int(span // step))


def step_at_least(seconds: float) -> int:
    """Return the shortest round step that is not below ``seconds``; above five minutes, whole multiples of it."""
    for step in _STEPS:
        if step >= seconds:
            return step
    return int(-(-seconds // FIVE_MINUTES) * FIVE_MINUTES)
