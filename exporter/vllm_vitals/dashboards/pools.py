"""Pools: the engines of a model whose KV caches hold about as many tokens, so that capacity is never mixed.

Input: records of `vllm_vitals.rules.boards`. Output: PromQL by pool and by band of concurrency. Invariant: reads a
minute's records, so that a week of a fleet costs what a week of one engine does; a pool without a size has no daemon.
"""

from vllm_vitals.dashboards import recorded
from vllm_vitals.dashboards.promql import most, ratio
from vllm_vitals.dashboards.recorded import of_model, over
from vllm_vitals.rules import boards
from vllm_vitals.rules.promql import number

BY = f"model_name, {boards.SIZE}"
LEGEND = f"{{{{model_name}}}} · KV {{{{{boards.SIZE}}}}}"
# Where more requests bring no tenth more, the knee is passed.
_MOST = 0.9


def drawn(record: str) -> str:
    """Return a record over each step, a line a pool, of the pools where it was highest."""
    return most(f"max by ({BY}) {over('max', of_model(record))}", BY, recorded.peak(record, BY))


def hourly(record: str, count: int, ago: str = "") -> str:
    """Return a record's largest value of the hour before each step, of the ``count`` pools where it was highest."""
    each = f"max by ({BY}) (max_over_time({of_model(record)}[1h]{ago and f' offset {ago}'}))"
    return most(each, BY, recorded.peak(record, BY), count)


def peak(record: str) -> str:
    """Return a record's largest value in the range."""
    return f"max by ({BY}) (max_over_time({of_model(record)}[$__range]))"


def middle(record: str) -> str:
    """Return a record's median over the range."""
    return f"max by ({BY}) (quantile_over_time(0.5, {of_model(record)}[$__range]))"


def engines() -> str:
    """Return how many engines a pool has now."""
    return f"max by ({BY}) ({of_model(boards.ENGINES)})"


def lefts(by: str) -> str:
    """Return engine-minutes of the range by how much of the KV cache was left, as a histogram's buckets."""
    return f"sum by ({by}, le) (sum_over_time({of_model(boards.LEFT)}[$__range]))"


def left(q: float) -> str:
    """Return a quantile of what was left, over engines and minutes."""
    return f"histogram_quantile({q:g}, {lefts(BY)})"


def nearly_full(most: float = 0.1) -> str:
    """Return the share of engine-minutes with at most so much left."""
    part, whole = (of_model(boards.LEFT, f'le="{le}"') for le in (number(most), "+Inf"))
    return ratio(*(f"sum by ({BY}) (sum_over_time({each}[$__range]))" for each in (part, whole)))


def banded(part: str, whole: str, by: str = f"{BY}, {boards.BAND}", *matchers: str) -> str:
    """Return a value's mean over the engine-minutes of each band of concurrency."""
    return ratio(
        *(f"sum by ({by}) (sum_over_time({of_model(record, *matchers)}[$__range]))" for record in (part, whole))
    )


def knee() -> str:
    """Return the first number of requests of the lowest band that makes nearly as many tokens as the best one."""
    useful = f"({banded(boards.BAND_USEFUL, boards.IN_BAND)})"
    good = f"{useful} >= on ({BY}) group_left () ({_MOST} * max by ({BY}) ({useful}))"
    starts = " or ".join(
        f'label_replace(vector({low}), "{boards.BAND}", "{name}", "", "")' for name, low, _ in boards.bands() if low
    )
    return f"min by ({BY}) (({good}) * 0 + on ({boards.BAND}) group_left () ({starts}))"
