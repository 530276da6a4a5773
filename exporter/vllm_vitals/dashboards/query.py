"""One expression of a panel."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and its legend. ``instant``: the last value only."""

    expr: str
    legend: str = "__auto"
    instant: bool = False
    format: str = "time_series"
