"""Quantiles and moments of a histogram, with the bounds that its buckets allow.

A bucket says only how many observations lie between its edges, so every answer carries the edges. Nothing is
interpolated into the +Inf bucket, and a quantile in the first bucket (whose lower edge is only zero) has no estimate:
a constant 5 ms would read "p50 5 ms, p99 9.9 ms" there, whatever the truth.
"""

from array import array
from bisect import bisect_left
from math import inf, sqrt
from operator import sub

from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.snapshot import Reading, absent, invalid


def delta(new: Histogram, old: Histogram) -> Histogram | None:
    """Observations between two scrapes of one life, or None where the buckets differ or a count fell."""
    if new.bounds != old.bounds:
        return None
    counts = array("d", map(sub, new.counts, old.counts))
    if min(counts) < 0:
        return None
    return Histogram(new.bounds, counts, new.sum - old.sum)


def bucket_of(histogram: Histogram, q: float) -> int | None:
    """Index of the bucket that holds the q-quantile, q > 0 (Prometheus' rank: q x count), or None when empty."""
    count = histogram.counts[-1]
    return bisect_left(histogram.counts, q * count) if count > 0 else None


def edges(histogram: Histogram, index: int) -> tuple[float, float]:
    """Lower and upper edge of a bucket; the first starts at 0, the last ends at +Inf."""
    lower = histogram.bounds[index - 1] if index > 0 else 0.0
    upper = histogram.bounds[index] if index < len(histogram.bounds) else inf
    return lower, upper


def quantile(histogram: Histogram | None, q: float) -> Reading:
    """Return the q-quantile in the family's unit: estimated by linear interpolation, bounded by its bucket's edges."""
    if histogram is None:
        return absent("the server does not expose this histogram")
    index = bucket_of(histogram, q)
    if index is None:
        return absent("no request finished in the window")
    lower, upper = edges(histogram, index)
    if upper == inf:
        return Reading(None, lower, inf, why=f"above the last bucket ({lower:g})")
    if index == 0:
        return Reading(None, 0.0, upper, why=f"below resolution: inside the first bucket (up to {upper:g})")
    before = histogram.counts[index - 1]
    share = (q * histogram.count - before) / (histogram.counts[index] - before)
    return Reading(lower + (upper - lower) * share, lower, upper)


def ratio(high: Reading, low: Reading) -> Reading:
    """high / low with bounds; the estimate is absent where both lie in one bucket or either has none."""
    if high.lower is None or low.upper is None or high.upper is None or low.lower is None:
        return absent(high.why or low.why)
    lower = max(1.0, high.lower / low.upper) if low.upper not in (0.0, inf) else 1.0
    upper = high.upper / low.lower if low.lower > 0 else inf
    if high.value is None or low.value is None or high.lower == low.lower:
        return Reading(None, lower, upper, why="below resolution: the buckets cannot tell the two quantiles apart")
    return Reading(high.value / low.value, lower, upper)


def mean(histogram: Histogram | None) -> Reading:
    """Exact mean: vLLM gives the sum."""
    return mean_of(None if histogram is None else (histogram.count, histogram.sum))


def mean_of(observed: tuple[float, float] | None) -> Reading:
    """Return the same from (count, sum) alone."""
    if observed is None:
        return absent("the server does not expose this histogram")
    count, total = observed
    return Reading(total / count) if count > 0 else absent("no request finished in the window")


def share_at_most(histogram: Histogram, edge: float) -> float | None:
    """Return the share of observations <= edge, exact, or None when edge is no bucket bound or nothing was observed."""
    if histogram.count <= 0 or edge not in histogram.bounds:
        return None
    return histogram.counts[histogram.bounds.index(edge)] / histogram.count


def cv(histogram: Histogram | None) -> Reading:
    """Coefficient of variation, standard deviation / mean.

    The mean is exact. The second moment is estimated as if each bucket were filled alike, as far towards its upper
    edge as the sum demands, and bounded by the least and the greatest that counts, edges and sum together allow.
    """
    centre = mean(histogram)
    if histogram is None or centre.value is None:
        return centre
    if centre.value <= 0:
        return invalid("the mean is not positive")
    cells = _cells(histogram)
    low = _least_second_moment(cells, histogram.sum)
    high = _greatest_second_moment(cells, histogram.sum)
    likely = _likely_second_moment(cells, histogram.sum) if cells[-1][1] < inf else None
    count, middle = histogram.count, centre.value

    def deviation(moment: float) -> float:
        return sqrt(max(0.0, moment / count - middle**2)) / middle

    lower, upper = deviation(low), inf if high == inf else deviation(high)
    if likely is None:
        return Reading(None, lower, upper, why="some lengths lie above the last bucket")
    return Reading(min(max(deviation(likely), lower), upper), lower, upper)


def _cells(histogram: Histogram) -> list[tuple[float, float, float]]:
    """(lower edge, upper edge, observations) of each bucket that holds any."""
    counts, bounds = histogram.counts, histogram.bounds
    own = map(sub, counts, (0.0, *counts))
    return [cell for cell in zip((0.0, *bounds), (*bounds, inf), own, strict=True) if cell[2] > 0]


def _likely_second_moment(cells: list[tuple[float, float, float]], total: float) -> float:
    """Return every bucket's mean at the same share of its width, so that the sum comes out right."""
    width = sum(n * (b - a) for a, b, n in cells)
    share = min(max((total - sum(n * a for a, _, n in cells)) / width, 0.0), 1.0)
    inside = share * (1 - share) / 3  # 1/12 of the width squared when filled evenly
    return sum(n * ((a + share * (b - a)) ** 2 + inside * (b - a) ** 2) for a, b, n in cells)


def _least_second_moment(cells: list[tuple[float, float, float]], total: float) -> float:
    """Mass as close to one value as the edges allow: buckets below it at their upper edge, above at their lower."""
    moment, below, above = 0.0, 0.0, sum(n * a for a, _, n in cells)
    for index, (a, b, n) in enumerate(cells):
        above -= n * a
        point = max(a, (total - below - above) / n)
        if point <= b:
            return moment + n * point**2 + sum(m * c * c for c, _, m in cells[index + 1 :])
        moment, below = moment + n * b * b, below + n * b
    return moment


def _greatest_second_moment(cells: list[tuple[float, float, float]], total: float) -> float:
    """Mass at the edges: the sum left over, once all mass lies at the lower edges, goes to the widest reach first."""
    spare = total - sum(n * a for a, _, n in cells)
    moment = sum(n * a * a for a, _, n in cells)
    for a, b, n in reversed(cells):
        if spare <= 0:
            break
        if b == inf:
            return inf
        moved = min(spare, n * (b - a))
        moment += moved * (a + b)
        spare -= moved
    return moment
