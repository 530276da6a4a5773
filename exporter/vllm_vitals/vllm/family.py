"""The form of the table: a quantity, the names under which releases of vLLM expose it, and how its series fold.

Output: `Name` and `Family` with constructors for each kind. Invariant: the names of a family stand in order of
preference and are never added together; two of them may be on the wire at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NewType

from vllm_vitals.core.fold_series import HISTOGRAM, NONZERO, NOTHING, PEAK, TOTAL, Fold, keyed

Wire = NewType("Wire", str)  # a name on the wire, without prefix
Kind = Literal["gauge", "counter", "histogram", "series"]
FIRST = "0.3"  # the first release that is looked at
Buckets = tuple[float, ...] | Callable[[int], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Name:
    """One spelling, without prefix and without a counter's ``_total``.

    The V1 engine has it, where ``v1``, from release ``since`` ("": always) and no longer in ``until`` ("": still); the
    V0 engine from release ``v0`` ("": never). ``in_blocks``: up to 0.8.5 it counts KV blocks, not tokens.
    """

    text: str
    since: str = ""
    until: str = ""
    v0: str = ""
    v1: bool = True
    in_blocks: bool = False

    def served(self, version: str) -> bool:
        """Tell whether a release (of the V0 engine before 0.8) exposes this name."""
        number = release(version)
        if number < (0, 8):
            return bool(self.v0) and release(self.v0) <= number
        return self.v1 and release(self.since) <= number and not (self.until and release(self.until) <= number)


def release(version: str) -> tuple[int, ...]:
    """Read "0.11.1" as numbers that compare; "" is before all."""
    return tuple(map(int, version.split("."))) if version else ()


@dataclass(frozen=True, slots=True)
class Family:
    """One quantity of an engine.

    ``name`` is the catalogue's (by which impossible samples are counted), ``field`` the one in `EngineSample`; a
    histogram is filed under its name. ``fold`` is NOTHING for what is known and not read. A "series" is read under its
    very name, whatever it is part of. ``only`` keeps the series with that label; ``labels`` are those that vLLM itself
    splits the family by; ``shared``: one number a server. ``when`` says what must be on for the family to be there.
    ``says``: it is a detail, kept under its name and these labels of ours, then those of vLLM's that its fold keeps.
    """

    name: str
    field: str
    fold: Fold
    names: tuple[Name, ...]
    kind: Kind
    only: tuple[str, str] | None = None
    shared: bool = False
    labels: tuple[str, ...] = ()
    buckets: Buckets = ()
    when: str = ""
    says: tuple[str, ...] | None = None

    @property
    def spellings(self) -> tuple[tuple[Wire, Name], ...]:
        """List every name on the wire: Ray also shows a counter without ``_total``, some writers only that."""
        ends = ("_total", "") if self.kind == "counter" else ("",)
        return tuple((Wire(name.text + end), name) for name in self.names for end in ends)

    @property
    def is_histogram(self) -> bool:
        """Tell whether it has buckets, a sum and a count."""
        return self.kind == "histogram"

    def wire(self, part: str = "") -> tuple[Wire, ...]:
        """List every name on the wire as vLLM itself writes it, preferred first; of a histogram the ``part``."""
        end = "_total" if self.kind == "counter" else part and "_" + part
        return tuple(Wire(name.text + end) for name in self.names)

    def bounds(self, max_model_len: int) -> tuple[float, ...]:
        """Give the default bucket bounds of a server with this context length."""
        return self.buckets(max_model_len) if callable(self.buckets) else self.buckets


def every(text: str, until: str = "", since: str = "") -> Name:
    """Name what V0 and V1 have."""
    return Name(text, since, until, v0=FIRST)


def v0_only(text: str) -> Name:
    """Name what only V0 had."""
    return Name(text, v0=FIRST, v1=False)


def _names(names: tuple[Name | str, ...]) -> tuple[Name, ...]:
    return tuple(every(name) if isinstance(name, str) else name for name in names)


def gauge(name: str, field: str, fold: Fold, *names: Name | str, labels: tuple[str, ...] = (), shared: bool = False,
          when: str = "") -> Family:  # fmt: skip
    """Make a row for a gauge."""
    return Family(name, field, fold, _names(names), "gauge", None, shared, labels, (), when)


def counter(name: str, field: str, *names: Name | str, fold: Fold = TOTAL, only: tuple[str, str] | None = None,
            labels: tuple[str, ...] = (), shared: bool = False, when: str = "") -> Family:  # fmt: skip
    """Make a row for a counter."""
    return Family(name, field, fold, _names(names), "counter", only, shared, labels, (), when)


def histogram(name: str, bounds: Buckets, *names: Name | str, when: str = "") -> Family:
    """Make a row for a histogram."""
    return Family(name, name, HISTOGRAM, _names(names), "histogram", buckets=bounds, when=when)


def detail(name: str, *names: Name, field: str = "", says: tuple[str, ...] = (), labels: tuple[str, ...] = (),
           ignores: tuple[str, ...] = (), when: str = "", zero_is_absent: bool = False) -> Family:  # fmt: skip
    """Make a row for a counter that is only shown; ``ignores`` are labels whose values are added up."""
    fold = keyed(labels, NONZERO if zero_is_absent else TOTAL)
    return Family(
        name, field or "/".join((name, *says)), fold, names, "counter", labels=labels + ignores, when=when, says=says
    )


def detail_gauge(name: str, *names: Name, field: str = "", says: tuple[str, ...] = (), labels: tuple[str, ...] = (),
                 when: str = "") -> Family:  # fmt: skip
    """Make a row for a gauge that is only shown."""
    return Family(
        name, field or "/".join((name, *says)), keyed(labels, PEAK), names, "gauge", labels=labels, when=when, says=says
    )


def detail_series(name: str, *names: Name, says: tuple[str, ...] = (), labels: tuple[str, ...] = (),
                  ignores: tuple[str, ...] = (), when: str = "") -> Family:  # fmt: skip
    """Make a row for the sum or count of a histogram that is only shown."""
    fold = keyed(labels, TOTAL)
    return Family(name, "/".join((name, *says)), fold, names, "series", labels=labels + ignores, when=when, says=says)


def unread(kind: Kind, *names: Name | str, field: str = "", when: str = "", bounds: Buckets = ()) -> Family:
    """Make a row for what vLLM exposes and we do not read, so that only news is counted as unknown."""
    known = _names(names)
    return Family("", field or known[0].text, NOTHING, known, kind, when=when, buckets=bounds)
