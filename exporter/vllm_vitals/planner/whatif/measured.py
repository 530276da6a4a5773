"""What measured pairs say of a what-if's error bars: a file that `tune` writes, that people share and `whatif` reads.

Input: pairs of a prediction and what was then measured, as changes relative to the server before, so that a file holds
no address, no model and no absolute number. Output: a factor by metric for every bar. Each pair is one observation of
the scale of (miss / bar); the bars as they are stand for `PRIOR` observations that came out as they should. So a pair
that was near narrows the bars a little, one that was far widens them. Invariant: without pairs every factor is 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import Field

from vllm_vitals import whole_file
from vllm_vitals.config.values import Strict
from vllm_vitals.planner import versioned

SCHEMA = 1
MAX_BYTES, MAX_PAIRS = 1024 * 1024, 1000
PRIOR = 4.0  # pairs that the bars as they are count for: measured on other servers, they say less of this one
EIGHTY = 1.2816  # standard deviations that hold four in five
LEAST, MOST = 0.4, 3.0  # no factor beyond: a lucky series proves no perfect simulation
LEAST_BAR = 0.05  # two runs of one setting differ by about so much
FAR = 4.0  # a miss of more bars than these counts as these: one broken run says little of the others


class MeasuredError(Exception):
    """The file cannot be read. One line."""


class Foretold(Strict):
    """One metric of one pair: (after / before), predicted and measured; ``error`` is the bar, a share of predicted."""

    predicted: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    error: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    measured: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @property
    def miss(self) -> float:
        """How far the measured value is from the predicted one, in bars."""
        if self.predicted <= 0:
            return 0.0 if self.measured <= 0 else FAR
        return min(FAR, abs(self.measured / self.predicted - 1) / self.error)


class Pair(Strict):
    """One change that was predicted and then measured."""

    vllm: Annotated[str, Field(max_length=100)]
    knob: Annotated[str, Field(max_length=100)]
    before: Annotated[str, Field(max_length=100)]
    after: Annotated[str, Field(max_length=100)]
    trust: Annotated[str, Field(max_length=20)]
    metrics: Annotated[dict[str, Foretold], Field(max_length=50)]


class Measured(Strict, populate_by_name=True):
    """The file."""

    schema_version: Annotated[int, Field(alias="schema")] = SCHEMA
    pairs: list[Pair] = Field(default_factory=list, max_length=MAX_PAIRS)


@dataclass(frozen=True, slots=True)
class Bars:
    """By metric what every bar is multiplied by; ``pairs`` is how many that rests on."""

    factors: Mapping[str, float] = field(default_factory=dict)
    pairs: int = 0

    def of(self, name: str, error: float) -> float:
        """Return a bar, put right."""
        factor = self.factors.get(name)
        return error if factor is None else max(error * factor, min(error, LEAST_BAR))


def bars(pairs: Iterable[Pair]) -> Bars:
    """Return what pairs say of the bars."""
    every = list(pairs)
    misses: dict[str, list[float]] = {}
    for pair in every:
        for name, each in pair.metrics.items():
            misses.setdefault(name, []).append(each.miss)
    return Bars({name: _factor(found) for name, found in misses.items()}, len(every))


def _factor(misses: Sequence[float]) -> float:
    square = (PRIOR + sum((EIGHTY * miss) ** 2 for miss in misses)) / (PRIOR + len(misses))
    return min(MOST, max(LEAST, sqrt(square)))


def read(path: Path) -> list[Pair]:
    """Read a file of pairs. Raises `MeasuredError`."""
    content = whole_file.read(path, MAX_BYTES, MeasuredError)
    wrote = "of measured pairs that vllm-vitals tune wrote"
    return versioned.parse(path, content, Measured, SCHEMA, MeasuredError, wrote).pairs


def to_bytes(pairs: Sequence[Pair]) -> bytes:
    """Return the file's content."""
    document = Measured(pairs=list(pairs)[-MAX_PAIRS:]).model_dump(by_alias=True)
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
