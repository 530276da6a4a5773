"""The newest responses of one series. Input: one row a response. Output: the values of the last ``span`` seconds.

Invariant: at most ``capacity`` rows, the newest ones; within them every figure is exact, not bucketed.
"""

import math
from array import array
from collections.abc import Sequence

from vllm_vitals.core.snapshot import Reading, absent

CAPACITY = 2048
MIN_COUNT = 20
_NAN = math.nan


class ResponseWindow:
    """A ring of columns: time, TPOT s, output, at its cap (0/1), predicted, thinking; tokens, NaN where not said."""

    def __init__(self) -> None:
        self._columns = tuple(array("d") for _ in range(6))
        self._next = 0
        self.version = 0
        """Changes with every row that is added."""

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(
        self,
        at: float,
        tpot: float | None,
        output: int | None,
        truncated: bool,
        predicted: float | None,
        thinking: int | None,
    ) -> None:
        """Append one response; the oldest gives way."""
        self.version += 1
        said = (tpot, output, float(truncated), predicted, thinking)
        row = (at, *(_NAN if value is None else value for value in said))
        if len(self._columns[0]) < CAPACITY:
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
            return
        for column, value in zip(self._columns, row, strict=True):
            column[self._next] = value
        self._next = (self._next + 1) % CAPACITY

    def since(self, start: float) -> "Rows":
        """Give the rows that are not older than ``start``."""
        keep = [index for index, at in enumerate(self._columns[0]) if at >= start]
        return Rows(*([column[index] for index in keep] for column in self._columns[1:]))

    def oldest(self, start: float) -> float:
        """Give the time of the oldest row that is not older than ``start``; infinity where there is none."""
        return min((at for at in self._columns[0] if at >= start), default=math.inf)


class Rows:
    """Columns of some responses; ``+`` puts those of several series together."""

    def __init__(self, *columns: list[float]) -> None:
        self._columns = columns or tuple([] for _ in range(5))
        self.tpot, self.output, self.truncated, self.predicted, self.thinking = self._columns

    def __add__(self, other: "Rows") -> "Rows":
        return Rows(*(mine + theirs for mine, theirs in zip(self._columns, other._columns, strict=True)))

    @property
    def answers(self) -> list[float]:
        """Tokens after the thinking, of responses that were not cut."""
        rows = zip(self.output, self.thinking, self.truncated, strict=True)
        return [output - thinking for output, thinking, cut in rows if not cut]

    def __len__(self) -> int:
        return len(self.truncated)


def known(values: Sequence[float]) -> list[float]:
    """Leave out the values that are not there."""
    return [value for value in values if not math.isnan(value)]


def quantile(values: Sequence[float], q: float) -> Reading:
    """Compute the exact quantile with linear interpolation; absent below MIN_COUNT values."""
    present = sorted(known(values))
    if len(present) < MIN_COUNT:
        return absent(f"{len(present)} responses with a value, {MIN_COUNT} needed")
    position = q * (len(present) - 1)
    low = math.floor(position)
    high = min(low + 1, len(present) - 1)
    return Reading(present[low] + (present[high] - present[low]) * (position - low))


def mean(values: Sequence[float]) -> Reading:
    """Compute the mean; absent below MIN_COUNT values."""
    present = known(values)
    if len(present) < MIN_COUNT:
        return absent(f"{len(present)} responses with a value, {MIN_COUNT} needed")
    return Reading(math.fsum(present) / len(present))


def variation(values: Sequence[float]) -> Reading:
    """Compute the coefficient of variation (population standard deviation over mean)."""
    average = mean(values)
    if average.value is None:
        return average
    if average.value == 0:
        return absent("every value is 0")
    present = known(values)
    spread = math.sqrt(math.fsum((value - average.value) ** 2 for value in present) / len(present))
    return Reading(spread / average.value)
