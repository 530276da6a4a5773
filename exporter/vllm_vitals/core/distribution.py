"""One answer to every question about a histogram: quantiles, spread and shares, with what the buckets prove.

Input: a `Histogram`, and what is known besides: a cap that answers were cut at, observations that are not users'.
Output: a `Distribution`. Invariant: bounds are what counts, edges and sum together allow, so they hold the truth;
the estimate is one smooth shape (`shape.Shape`) with exactly these counts, and as near to this sum as its smoothness
lets it. An estimate that the buckets hardly hold down says so in ``why`` (`is_sure`): nobody chooses a rule by it.

A q-quantile is the value of the observation with rank ceil(q x count), Prometheus' rank.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from math import ceil, inf, isfinite
from typing import NamedTuple

from vllm_vitals.core import quantile as buckets
from vllm_vitals.core.bucket_shape import Shape, shape_of
from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.snapshot import Reading, absent, invalid

# Widest likely range, upper / lower, of an estimate that may choose a rule. Measured in bench/distributions.py.
SURE_QUANTILE, SURE_CV = 1.5, 1.6
EVEN_CV = 0.05  # what varies less is even, however much less
FEW = 10  # observations below which no estimate is sure


class Cut(NamedTuple):
    """Answers that ended because they reached a cap: so many ``answers``, each of ``at`` tokens."""

    at: float
    answers: float


def is_sure(reading: Reading) -> bool:
    """Return whether a rule may be chosen by this number: it has a value, and no reason to doubt it."""
    return reading.value is not None and not reading.why


def one_cap(asked: Histogram | None) -> float | None:
    """Return the one max_tokens that every request asked for, or None where they differ or nothing was observed.

    ``asked`` is vllm:request_params_max_tokens. All lie in one bucket and the mean is a whole number: drawn from
    several caps, n of them do so once in n times, so fewer than 10 prove nothing.
    """
    if asked is None or asked.count < FEW:
        return None
    cap = asked.sum / asked.count
    index = bisect_left(asked.counts, asked.count)
    low, high = buckets.edges(asked, index)
    alone = index == 0 or asked.counts[index - 1] == 0
    return cap if alone and cap.is_integer() and low < cap <= high else None


def without(histogram: Histogram, strays: Iterable[tuple[float, float]]) -> Histogram:
    """Return the histogram less observations that are not users': (value, count) each, as far as its bucket holds them.

    A failed request leaves 0 or 1 token and a time per output token of 0; a canary's answer has a known length.
    """
    own = [b - a for a, b in zip((0.0, *histogram.counts), histogram.counts, strict=False)]
    total = histogram.sum
    for value, many in strays:
        index = bisect_left(histogram.bounds, value)
        taken = min(max(many, 0.0), own[index])
        own[index] -= taken
        total -= taken * value
    return Histogram(histogram.bounds, array("d", accumulate(own)), max(total, 0.0))


def fit(
    histogram: Histogram | None, *, cut: Cut | None = None, exclude: Iterable[tuple[float, float]] = ()
) -> "Distribution":
    """Return the distribution behind a histogram; nothing is computed before it is asked for."""
    strays = tuple(exclude)
    return Distribution(without(histogram, strays) if histogram is not None and strays else histogram, cut)


class Distribution:
    """What a histogram says about its observations, in its family's unit."""

    def __init__(self, histogram: Histogram | None, cut: Cut | None = None) -> None:
        """``histogram`` None: the server does not expose it. A ``cut`` that the buckets contradict is ignored."""
        self.histogram = histogram
        self.cut = cut if histogram is not None and cut is not None and _holds(histogram, cut) else None

    @cached_property
    def missing(self) -> Reading | None:
        """Why nothing can be said, or None where something can."""
        if self.histogram is None:
            return absent("the server does not expose this histogram")
        if self.histogram.count <= 0:
            return absent("no request finished in the window")
        if not isfinite(self.histogram.sum) or self.histogram.sum < 0:
            return invalid("the histogram's sum is impossible")
        return None

    @property
    def count(self) -> float:
        """Observations in all, 0 where there is no histogram."""
        return 0.0 if self.histogram is None else self.histogram.count

    @cached_property
    def _shape(self) -> Shape:
        assert self.histogram is not None  # noqa: S101 -- every caller looked at `missing` first
        return shape_of(self.histogram, None if self.cut is None else (self.cut.at, self.cut.answers))

    def mean(self) -> Reading:
        """Exact: vLLM gives the sum."""
        return self.missing or buckets.mean(self.histogram)

    def quantile(self, q: float) -> Reading:
        """Return the q-quantile, 0 < q <= 1, bounded by its bucket's edges and by what the sum leaves for it."""
        histogram = self.histogram
        if self.missing or histogram is None:
            return self.missing or absent("")
        rank = min(max(1, ceil(q * histogram.count - 1e-9)), histogram.count)  # sums of increases are not whole
        lower, upper = _bounds(histogram, rank)
        if self.cut is not None and rank > histogram.count - self.cut.answers:
            return Reading(self.cut.at, self.cut.at, self.cut.at)
        if self.cut is not None:
            upper = min(upper, self.cut.at)
        share = (rank - min(0.5, rank / 2)) / histogram.count
        low, value, high = self._shape.likely(share)
        return _estimate(value, lower, upper, (low, high), SURE_QUANTILE, self._doubt)

    def uncut(self, q: float) -> Reading:
        """Return the q-quantile as it would be had nothing been cut: above the cap only a lower bound is known."""
        if self.cut is None or self.missing or q * self.count <= self.count - self.cut.answers:
            return self.quantile(q)
        return Reading(None, self.cut.at, inf, why=f"cut at {self.cut.at:g}: the full length is unknown")

    def cv(self) -> Reading:
        """Coefficient of variation, standard deviation / mean, bounded by counts, edges and sum together."""
        reading = self.missing or buckets.cv(self.histogram)
        if self.missing or self.histogram is None or reading.status != "value":
            return reading
        low, value, high = self._shape.spread()
        upper = inf if reading.upper is None else reading.upper
        return _estimate(value, reading.lower or 0.0, upper, (max(low, EVEN_CV), high), SURE_CV, self._doubt)

    def share_above(self, x: float) -> Reading:
        """Return the share of observations > x: exact at an edge, else estimated within the bucket that holds x."""
        histogram = self.histogram
        if self.missing or histogram is None:
            return self.missing or absent("")
        index = bisect_left(histogram.bounds, x)
        upper = 1.0 - (histogram.counts[index - 1] / histogram.count if index else 0.0)
        lower = 1.0 - histogram.counts[index] / histogram.count
        if index < len(histogram.bounds) and histogram.bounds[index] == x:
            upper = lower
        if upper == lower:
            return Reading(lower, lower, lower)
        return Reading(min(max(1.0 - self._shape.share_below(x), lower), upper), lower, upper)

    @property
    def _doubt(self) -> str:
        """Why no number of this distribution is sure, or nothing."""
        return f"only {self.count:.0f} were observed" if self.count < FEW else ""


def _estimate(
    value: float, lower: float, upper: float, likely: tuple[float, float], sure: float, doubt: str
) -> Reading:
    """Return the value inside its bounds, with the doubt where it could as well be quite another."""
    low, high = max(likely[0], lower), min(likely[1], upper)
    if not doubt and high > sure * max(low, 1e-12):
        doubt = f"the buckets leave it open: likely {low:.3g} to {high:.3g}"
    return Reading(min(max(value, lower), upper), lower, upper, why=doubt if upper > lower else "")


def _holds(histogram: Histogram, cut: Cut) -> bool:
    """Return whether as many lie in the cap's bucket, and none above it."""
    index = bisect_left(histogram.bounds, cut.at)
    below = histogram.counts[index - 1] if index else 0.0
    return 0 < cut.answers <= histogram.counts[index] - below and histogram.counts[index] == histogram.count


def _bounds(histogram: Histogram, rank: float) -> tuple[float, float]:
    """Return what the observation of this rank can be: its bucket's edges, nearer where the sum leaves less room.

    It is greatest when all others are least: those below it at their lower edges, those above in its bucket as it is.
    """
    index = bisect_left(histogram.counts, rank - 1e-6 * rank)  # differences of counters are not whole
    lower, upper = buckets.edges(histogram, index)
    floor = ceiling = before = 0.0
    for at, (low, high, many) in enumerate(_cells(histogram)):
        floor += low * many
        ceiling += high * many if many else 0.0
        before += many if at < index else 0.0
    through = histogram.counts[index]
    most = lower + (histogram.sum - floor) / max(through - rank + 1, 1.0)
    least = upper - (ceiling - histogram.sum) / max(rank - before, 1.0) if isfinite(ceiling) else lower
    slack = 1e-9 * max(1.0, abs(histogram.sum))
    if most < lower - slack or least > upper + slack:
        return lower, upper  # the sum contradicts the buckets
    greatest = max(lower, min(upper, most))
    return max(lower, min(least, greatest)), greatest


def _cells(histogram: Histogram) -> Iterable[tuple[float, float, float]]:
    """(lower edge, upper edge, observations) of every bucket."""
    previous = 0.0
    for index, count in enumerate(histogram.counts):
        yield (*buckets.edges(histogram, index), count - previous)
        previous = count
