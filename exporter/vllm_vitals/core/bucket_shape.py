"""The smooth shape behind a histogram's buckets.

Input: counts, edges and sum. Output: a `Shape`. Invariant: every bucket edge keeps exactly the share below it that was
counted.

The logarithm of the value is drawn over the normal score of the rank: a log-normal is a straight line there, and each
bucket edge with observations on both sides is a point that the line must meet. Between the points it is a monotone
cubic (Fritsch and Carlson, SIAM J. Numer. Anal. 17, 1980); beyond the outermost it goes on straight and bends so as
never to leave the outermost bucket. How steep the two ends are, and how each bucket's filling leans, is what counts
leave open: the sum settles it, each as far as it moves the sum and as it is uncertain (a Gaussian prior, five steps).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, log, sqrt
from statistics import NormalDist

from vllm_vitals.core.sample import Histogram

_score, _rank = NormalDist().inv_cdf, NormalDist().cdf

# Prior standard deviations of log steepness at the lower and the upper end, and of how a bucket's filling leans; chosen
# with `_REACH` by bench.distributions, on recordings and synthetic shapes together.
_ENDS, _LEAN = (0.6, 0.6), 0.25
# Two buckets alone: how steep, against the steepest that leaves the outer buckets empty, and how sure that is.
_ALONE, _ALONE_SD = 0.65, 0.3
_REACH = 0.55  # steepest end, against the one that would put half an observation beyond its bucket
_ONE = 0.6  # the same for one bucket alone
_OPEN = 1.0  # steepest where the outer bucket has no end
_GAP = 1e-3  # how much of a normal score an empty bucket is given
_DOUBT = 0.15  # no end is surer: many observations settle a log-normal, not that it is one
_WIDER = 1.4  # an upper end may be quite another shape, a wait that ends abruptly: its doubt is so much wider
_STEPS, _STEP, _FAR = 5, 0.6, 2.5
_GAUSS = ((0.1127016654, 0.2777777778), (0.5, 0.4444444444), (0.8872983346, 0.2777777778))
_ENDS_AT = (0.0, 0.6, 0.84, 0.936, 0.9744, 1.0)  # an end's panels, as shares of it, finer towards the extreme
_PAIR = (0.2113248654, 0.7886751346)


@dataclass(slots=True)
class _End:
    """Beyond the outermost point: ``sign`` -1 below, 1 above. ``room`` is how far its bucket reaches (log)."""

    sign: int
    point: float
    score: float
    room: float
    steep: float
    doubt: float = 0.0
    nodes: Sequence[tuple[float, float]] = ()

    def at(self, score: float, factor: float) -> float:
        """Log of the value at this score, with this end ``factor`` times as steep."""
        way = self.steep * factor * (score - self.score) * self.sign
        if self.room < inf:
            part = way / self.room
            way /= (1.0 + part * part * part * part) ** 0.25
        return self.point + self.sign * way

    def moments(self, factor: float) -> tuple[float, float]:
        """Return the parts of the mean and of the mean square."""
        first = second = 0.0
        for weight, score in self.nodes:
            value = exp(min(self.at(score, factor), 200.0))
            first += weight * value
            second += weight * value * value
        return first, second


class Shape:
    """Log value over normal score: an end, a monotone cubic, an end."""

    def __init__(self, points: Sequence[float], scores: Sequence[float], lower: _End, upper: _End) -> None:
        """Points at ``scores``, both ascending; at least one."""
        self.points, self.scores, self.lower, self.upper = points, scores, lower, upper
        self.lean = 0.0
        self.slopes = _slopes(points, scores)
        self.capped: tuple[float, float] | None = None
        self._inner = [
            (weight * (_rank(right) - _rank(left)), index, place)
            for index, (left, right) in enumerate(pairwise(scores))
            for share, weight in _GAUSS
            for place in ((_score(_rank(left) + share * (_rank(right) - _rank(left))) - left) / (right - left),)
        ]

    def at(self, score: float, factor: float = 1.0) -> float:
        """Log of the value at a score; ``factor`` makes both ends so much steeper."""
        if score <= self.scores[0]:
            return self.lower.at(score, factor)
        if score >= self.scores[-1]:
            return self.upper.at(score, factor)
        index = bisect_right(self.scores, score) - 1
        left = self.scores[index]
        return self._cubic(index, (score - left) / (self.scores[index + 1] - left))

    def _cubic(self, index: int, place: float) -> float:
        if self.lean:
            place = place ** exp(self.lean)
        width = self.scores[index + 1] - self.scores[index]
        square = place * place
        cube = square * place
        return (
            self.points[index] * (2 * cube - 3 * square + 1)
            + self.points[index + 1] * (3 * square - 2 * cube)
            + width * (self.slopes[index] * (cube - 2 * square + place) + self.slopes[index + 1] * (cube - square))
        )

    def _between(self) -> tuple[float, float]:
        first = second = 0.0
        for weight, index, place in self._inner:
            value = exp(self._cubic(index, place))
            first += weight * value
            second += weight * value * value
        return first, second

    def moments(self, low: float = 1.0, high: float = 1.0) -> tuple[tuple[float, float], ...]:
        """(mean, mean square) in parts: lower end, between, upper end; its ends ``low``, ``high`` times as steep."""
        return self.lower.moments(low), self._between(), self._top(high)

    def _top(self, factor: float) -> tuple[float, float]:
        if self.capped is None:
            return self.upper.moments(factor)
        at, share = self.capped
        return share * at, share * at * at

    def likely(self, share: float) -> tuple[float, float, float]:
        """(low, value, high) at a share of the observations: the value, and where it would lie with likelier ends."""
        score = _score(share)
        end = self.lower if score < self.scores[0] else self.upper
        value = exp(self.at(score))
        other = sorted(exp(min(self.at(score, exp(d)), 200.0)) for d in (-end.doubt, end.doubt))
        return other[0], value, other[1]

    def spread(self) -> tuple[float, float, float]:
        """Return standard deviation / mean, (low, value, high) alike."""
        found = []
        for sign in (-1.0, 0.0, 1.0):
            low, high = exp(sign * self.lower.doubt), exp(sign * self.upper.doubt)
            first, second = map(sum, zip(*self.moments(low, high), strict=True))
            found.append(sqrt(max(0.0, second - first * first)) / first)
        return min(found), found[1], max(found)

    def share_below(self, x: float) -> float:
        """Return the share of the observations below x."""
        low, high = -9.0, 9.0
        wanted = log(x) if x > 0 else -inf
        for _ in range(48):
            middle = (low + high) / 2
            low, high = (middle, high) if self.at(middle) < wanted else (low, middle)
        return _rank((low + high) / 2)


def shape_of(histogram: Histogram, cut: tuple[float, float] | None = None) -> Shape:
    """Return the shape of a histogram that holds observations; ``cut`` is (cap, how many were cut there)."""
    count, mean = histogram.count, histogram.sum / histogram.count
    floor, ceiling, points, scores = _points(histogram, cut)
    if not points:
        return _one_bucket(floor, ceiling, mean, count)
    extreme = _score(1 - 0.5 / max(count, 2.0))
    lower = _End(-1, points[0], scores[0], points[0] - floor, 0.0)
    upper = _End(1, points[-1], scores[-1], ceiling - points[-1], 0.0)
    _give_nodes(lower, upper)
    shape = Shape(points, scores, lower, upper)
    if cut is not None:
        shape.capped = (cut[0], cut[1] / count)
    reach = [end.room / max(0.3, extreme - end.sign * end.score) for end in (lower, upper)]
    if len(points) == 1:
        _settle_alone(shape, min(_ALONE * min(reach), _OPEN), mean, count)
        return shape
    for end, slope, most in ((lower, shape.slopes[0], reach[0]), (upper, shape.slopes[-1], reach[1])):
        end.steep = min(slope, _REACH * most if end.room < inf else _OPEN)
    _settle(shape, mean, count)
    return shape


def _points(histogram: Histogram, cut: tuple[float, float] | None) -> tuple[float, float, list[float], list[float]]:
    """(log of the lowest and of the highest edge, log of each edge between, normal score of the share below it).

    Of a run of empty buckets only its two edges are kept. A cap is a point as well: what was cut there lies beyond it.
    """
    counts, bounds, count = histogram.counts, histogram.bounds, histogram.count
    least = 1e-9 * count  # differences of counters, and sums of them, are not whole
    first = next(i for i, c in enumerate(counts) if c > least)
    last = next(i for i, c in enumerate(counts) if c >= count - least)
    points, scores = list[float](), list[float]()
    for index in range(first, last):
        empty = index > first and counts[index] <= counts[index - 1] + least
        if empty and counts[index + 1] <= counts[index] + least:
            continue
        score = _score(counts[index] / count)
        points.append(log(bounds[index]))
        scores.append(max(score, scores[-1] + _GAP) if scores else score)
    floor = log(bounds[first - 1]) if first else -inf
    ceiling = log(bounds[last]) if last < len(bounds) else inf
    if cut is not None:
        share = 1 - cut[1] / count
        if share > 0 and (not scores or _score(share) > scores[-1] + _GAP):
            points.append(log(cut[0]))
            scores.append(_score(share))
        ceiling = inf
    return floor, ceiling, points, scores


def _slopes(points: Sequence[float], scores: Sequence[float]) -> list[float]:
    """Slope at each point so that the cubic between two never turns back."""
    widths = [right - left for left, right in pairwise(scores)]
    straight = [(right - left) / width for (left, right), width in zip(pairwise(points), widths, strict=True)]
    if not straight:
        return [0.0]
    inner = [
        (3 * (a + b)) / ((2 * b + a) / p + (b + 2 * a) / q)
        for (a, b), (p, q) in zip(pairwise(widths), pairwise(straight), strict=True)
    ]
    return [straight[0], *inner, straight[-1]]


def _give_nodes(lower: _End, upper: _End) -> None:
    """Choose where the ends' moments are summed: (share of all observations, normal score), finer at the extreme."""
    for end in (lower, upper):
        beyond = _rank(-end.score * end.sign)
        end.nodes = [
            (beyond * (far - near) / 2, end.sign * -_score(max(beyond * (1 - near - (far - near) * place), 1e-15)))
            for near, far in pairwise(_ENDS_AT)
            for place in _PAIR
        ]


def _one_bucket(floor: float, ceiling: float, mean: float, count: float) -> Shape:
    """Shape observations in one bucket: the mean is known, the spread only as far as it leaves other buckets empty."""
    centre = min(max(log(max(mean, 1e-12)), floor + 1e-9), ceiling - 1e-9)
    extreme = max(_score(1 - 0.5 / max(count, 2.0)), 0.7)
    wide = min(ceiling - centre, centre - floor, extreme * _OPEN) / extreme
    steep = max(_ONE * wide, 1e-9)
    point = centre - steep * steep / 2
    lower = _End(-1, point, 0.0, max(point - floor, 1e-9), steep, doubt=1.0)
    upper = _End(1, point, 0.0, max(ceiling - point, 1e-9), steep, doubt=1.0)
    _give_nodes(lower, upper)
    return Shape([point], [0.0], lower, upper)


def _noise(parts: Sequence[tuple[float, float]], shares: Sequence[float], count: float) -> float:
    """Variance of the mean of so many observations once each bucket's share is known."""
    inside = (second - first * first / share for (first, second), share in zip(parts, shares, strict=True) if share > 0)
    return sum(inside) / count + 1e-12


def _settle_alone(shape: Shape, steep: float, mean: float, count: float) -> None:
    """Fit one point: both ends are equally steep, as the mean and the empty buckets beyond require together."""
    below = _rank(shape.scores[0])
    above = 0.0 if shape.capped is not None else 1 - below

    def cost(step: float) -> float:
        shape.lower.steep = shape.upper.steep = steep * exp(step)
        parts = shape.moments()
        off = sum(first for first, _ in parts) - mean
        noise = _noise((parts[0], parts[2]), (below, above), count)
        return 0.5 * (step / _ALONE_SD) ** 2 + 0.5 * off * off / noise

    tried = [(cost(0.2 * step), 0.2 * step) for step in range(-10, 7)]
    least, best = min(tried)
    low, high = best - 0.2, best + 0.2
    for _ in range(12):
        left, right = low + 0.382 * (high - low), high - 0.382 * (high - low)
        low, high = (low, right) if cost(left) < cost(right) else (left, high)
    best = (low + high) / 2
    weights = [(exp(least - each), step) for each, step in tried]
    spread = sum(weight * (step - best) ** 2 for weight, step in weights) / sum(weight for weight, _ in weights)
    shape.lower.doubt = shape.upper.doubt = max(sqrt(spread), _DOUBT)
    shape.lower.steep = shape.upper.steep = steep * exp(best)


def _settle(shape: Shape, mean: float, count: float) -> None:
    """Several points: lean and ends move as little as their priors allow until the mean comes out."""
    ends = (shape.lower, shape.upper)
    first_steep = [end.steep for end in ends]
    priors = (_ENDS[0] ** 2, _LEAN**2, _ENDS[1] ** 2 if shape.capped is None else 0.0)
    shares = (_rank(shape.scores[0]), _rank(shape.scores[-1]) - _rank(shape.scores[0]), 1 - _rank(shape.scores[-1]))
    moved = [0.0, 0.0, 0.0]
    pull, total = [0.0, 0.0, 0.0], 1.0
    for _ in range(_STEPS):
        here = shape.moments()
        shape.lean += 0.05
        there = shape.moments(exp(0.05), exp(0.05))
        pull = [(b[0] - a[0]) / 0.05 for a, b in zip(here, there, strict=True)]
        wanted = mean - sum(first for first, _ in here) + sum(p * m for p, m in zip(pull, moved, strict=True))
        total = sum(v * p * p for v, p in zip(priors, pull, strict=True)) + _noise(here, shares, count)
        aims = [v * p * wanted / total for v, p in zip(priors, pull, strict=True)]
        moved = [
            max(-_FAR, min(_FAR, was + max(-_STEP, min(_STEP, aim - was))))
            for was, aim in zip(moved, aims, strict=True)
        ]
        shape.lean = moved[1]
        for end, start, step in zip(ends, first_steep, (moved[0], moved[2]), strict=True):
            end.steep = start * exp(step)
    for end, prior, part, by in ((shape.lower, priors[0], pull[0], 1.0), (shape.upper, priors[2], pull[2], _WIDER)):
        end.doubt = max(by * sqrt(max(0.0, prior * (1 - prior * part * part / total))), _DOUBT)
