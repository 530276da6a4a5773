"""How sure a difference between two runs is.

Input: two `Measure`s, each with a value and a weight for every part of its run. Output: a `Difference`. Invariant:
noise is never taken as smaller than what two runs of one setting differ by, which parts of one run cannot show.

A part's weight is what its value is a mean over (seconds, requests), so the whole is the weighted mean, and a part
pulls it by w (v - whole) / sum(w). Parts of two runs of one length are paired: what a replayed trace does at a minute
it does to both. Neighbouring parts hang together (a queue is one queue), which widens the noise by (1 + r) / (1 - r),
r their correlation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, log, sqrt
from typing import Protocol

from vllm_vitals.planner.student_t import threshold, two_sided

POWER = 0.84  # standard errors beyond the threshold at which four in five true differences are seen
_HOLD_TOGETHER = 0.6  # the largest correlation of neighbours that so few parts can tell


class Parts(Protocol):
    """What is compared; a part without an observation has no value."""

    @property
    def value(self) -> float | None:
        """The whole."""

    @property
    def repeats(self) -> Sequence[float | None]:
        """Each part."""

    @property
    def weights(self) -> Sequence[float]:
        """What each is a mean over."""


@dataclass(frozen=True, slots=True)
class Difference:
    """``relative`` is new / old - 1, ``size`` its logarithm, ``error`` the standard error of that.

    ``typical`` and ``typical_error`` are the same of the usual part, by the logarithms of parts: a mean that one hour's
    queue made is no difference. ``parts`` is the share of the error's square that more time would shrink. ``freedom``
    belongs to Student's t.
    """

    relative: float
    size: float
    error: float
    typical: float
    typical_error: float
    parts: float
    freedom: int

    def chance(self, allowed: float = 0.0) -> float:
        """Return how likely noise alone makes a difference as large (two-sided), beyond what is ``allowed`` (log)."""
        if self.size * self.typical <= 0:
            return 1.0
        sizes = ((self.size, self.error), (self.typical, self.typical_error))
        return max(two_sided(max(0.0, abs(size) - allowed) / error, self.freedom) for size, error in sizes)

    def sees(self, level: float) -> float:
        """Return the least relative difference that would be seen four times in five at this level."""
        return exp(min((threshold(level, self.freedom) + POWER) * self._worst, 3.0)) - 1

    def longer(self, level: float, wanted: float) -> float:
        """Return how many times as long a run must be to see ``wanted``; infinite where time alone does not help."""
        error = log(1 + wanted) / (threshold(level, 30) + POWER)
        left = error**2 - self._worst**2 * (1 - self.parts)
        return max(1.0, self._worst**2 * self.parts / left) if left > 0 else inf

    @property
    def _worst(self) -> float:
        return max(self.error, self.typical_error)


def difference(old: Parts, new: Parts, paired: bool, restart: float, skewed: bool = True) -> Difference | None:
    """Return how the new differs, or None without a value on both sides or without two parts on either.

    ``restart`` is the standard deviation (log) by which two runs of one setting differ. ``skewed``: a few parts may
    make the mean, as waiting does, so that the usual part must differ too.
    """
    if not old.value or not new.value or old.value < 0 or new.value < 0:
        return None
    if any(sum(weight > 0 for weight in each.weights) < 2 for each in (old, new)):
        return None
    size, logs = log(new.value / old.value), (_logs(old), _logs(new))
    square, freedom = _square((_pulls(old), _pulls(new)), paired)
    error = sqrt(square + restart**2)
    freedom = freedom * (error**2 / square) ** 2 if square > 0 else 1e6  # Satterthwaite: the rest is known
    typical, typical_square = size, square
    if skewed and logs[0] is not None and logs[1] is not None:
        typical = logs[1][0] - logs[0][0]
        typical_square, _ = _square((logs[0][1], logs[1][1]), paired)
    worst = max(square, typical_square)
    return Difference(
        new.value / old.value - 1, size, error, typical, sqrt(typical_square + restart**2),
        worst / (worst + restart**2) if worst else 0.0, max(1, int(min(freedom, 200.0))),
    )  # fmt: skip


def _square(pulls: tuple[Sequence[float], Sequence[float]], paired: bool) -> tuple[float, float]:
    """Return the variance of the difference of two means, from how their parts pull them, and its freedom."""
    sets: Sequence[Sequence[float]] = pulls
    if paired and len(pulls[0]) == len(pulls[1]):
        sets = [[b - a for a, b in zip(*pulls, strict=True)]]
    square, freedom = 0.0, inf
    for each in sets:
        together = _together(each)
        n, wider = len(each), (1 + together) / (1 - together)
        square += sum(pull * pull for pull in each) / (n * (n - 1)) * wider
        freedom = min(freedom, n - 1.0)
    return square, freedom


def _logs(each: Parts) -> tuple[float, list[float]] | None:
    """Return the mean logarithm of the parts and how each differs from it; None where a part has none."""
    values = [log(value) for value in each.repeats if value is not None and value > 0]
    if len(values) < len(each.repeats) or not values:
        return None
    centre = sum(values) / len(values)
    return centre, [value - centre for value in values]


def _pulls(each: Parts) -> list[float]:
    """Return how each part differs from the whole, relative to it, by its weight."""
    known = [(w, v) for w, v in zip(each.weights, each.repeats, strict=True) if v is not None and w > 0]
    total = sum(weight for weight, _ in known)
    if not total:
        return [0.0] * len(each.repeats)
    centre, usual = sum(w * v for w, v in known) / total, total / len(each.repeats)
    if not centre:
        return [0.0] * len(each.repeats)
    return [
        0.0 if v is None else w * (v - centre) / (usual * centre)
        for w, v in zip(each.weights, each.repeats, strict=True)
    ]


def _together(pulls: Sequence[float]) -> float:
    """Return the correlation of neighbours, put right for how few there are (Kendall 1954); never negative."""
    square = sum(pull * pull for pull in pulls)
    if len(pulls) < 4 or square <= 0:
        return 0.0
    found = sum(a * b for a, b in pairwise(pulls)) / square
    return min(max(found + (1 + 3 * found) / len(pulls), 0.0), _HOLD_TOGETHER)


def holm(chances: Sequence[float], level: float) -> list[bool]:
    """Return which differences stand when all are looked at: one in 1 / level comparisons without any is wrong."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    stand = [False] * len(chances)
    for done, index in enumerate(order):
        if chances[index] > level / (len(chances) - done):
            break
        stand[index] = True
    return stand
