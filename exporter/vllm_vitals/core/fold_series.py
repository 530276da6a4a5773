"""Several series of one engine become one value: how gauges, counters and histograms fold.

In: the values of a scrape, and which of them belong to one family of one engine. Out: the folded value (None where
nothing usable was said) and how many samples were dropped as impossible. Series of several processes (label ``pid``)
repeat a gauge, so the largest is right (an average shows 8 % for 65 %); of a counter each holds a share, so they are
added. Invariant: a counter with one impossible part is absent, never smaller than it was.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter, le
from typing import Any

from vllm_vitals.core.sample import Histogram
from vllm_vitals.vllm.routes import HttpKey, counted

Values = list[float]
TOLERANCE = 0.01  # a ratio or gauge this far outside its range is rounding, not nonsense
MAX_LABEL_VALUES = 16  # closed sets in vLLM have at most 6
LARGEST = 1e18  # a server that makes a million tokens a second for 30,000 years; products of two stay finite
MAX_BUCKETS = 256  # vLLM's widest histogram has 40: more is nonsense that every poll and page would pay for
MAX_KEYS = 32  # draft positions, tiers, operations
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Member:
    """One series of a family: its labels, which part of a histogram it is ("" if none), its slot in the values."""

    labels: Mapping[str, str]
    part: str
    slot: int


@dataclass(frozen=True, slots=True)
class Fold:
    """``arrange`` sorts a family's members once; ``apply`` turns values and that arrangement into (value, dropped)."""

    arrange: Callable[[Sequence[Member]], Any]
    apply: Callable[[Values, Any], tuple[Any, int]]


def _slots(members: Iterable[Member]) -> tuple[int, ...]:
    return tuple(member.slot for member in members)


def _grouped(members: Iterable[Member], label: str, missing: str = "") -> dict[str, list[Member]]:
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.labels.get(label, missing), []).append(member)
    return groups


def _peak(values: Values, slots: tuple[int, ...]) -> tuple[float | None, int]:
    """Take the largest of a gauge >= 0 that every process repeats."""
    usable = [values[slot] for slot in slots if -TOLERANCE <= values[slot] < LARGEST]
    return max(0.0, *usable) if usable else None, len(slots) - len(usable)


def _ratio(values: Values, slots: tuple[int, ...]) -> tuple[float | None, int]:
    usable = [values[slot] for slot in slots if -TOLERANCE <= values[slot] <= 1 + TOLERANCE]
    return min(1.0, max(0.0, *usable)) if usable else None, len(slots) - len(usable)


def _total(values: Values, slots: tuple[int, ...]) -> tuple[float | None, int]:
    parts = [values[slot] for slot in slots]
    dropped = sum(not 0 <= part < LARGEST for part in parts)
    return None if dropped else sum(parts), dropped


def _earliest(values: Values, slots: tuple[int, ...]) -> tuple[float | None, int]:
    usable = [values[slot] for slot in slots if 0 < values[slot] < LARGEST]
    return min(usable, default=None), len(slots) - len(usable)


def _distinct(values: Values, slots: tuple[int, ...]) -> tuple[tuple[float, ...] | None, int]:
    """Give every value that is said, ascending: several start times are several processes, or several servers."""
    usable = [values[slot] for slot in slots if 0 < values[slot] < LARGEST]
    return tuple(sorted(set(usable))[:MAX_LABEL_VALUES]) or None, len(slots) - len(usable)


def _by_route(members: Sequence[Member]) -> dict[HttpKey, tuple[int, ...]]:
    routes: dict[HttpKey, list[Member]] = {}
    for member in members:
        if (key := counted(member.labels)) is not None:
            routes.setdefault(key, []).append(member)
    return {key: _slots(group) for key, group in routes.items()}


def _answers(values: Values, routes: Mapping[HttpKey, tuple[int, ...]]) -> tuple[dict[HttpKey, float] | None, int]:
    """Count answers by route and status class, added over processes; what no route of ours counts is left out."""
    folded = {key: _total(values, slots) for key, slots in routes.items()}
    dropped = sum(count for _, count in folded.values())
    return {key: value for key, (value, _) in folded.items() if value is not None}, dropped


def _concurrent(values: Values, models: tuple[tuple[int, ...], ...]) -> tuple[float | None, int]:
    """Take the largest over processes, added over model names (LoRA adapters)."""
    folded = [_peak(values, slots) for slots in models]
    usable = [value for value, _ in folded if value is not None]
    return sum(usable) if usable else None, sum(dropped for _, dropped in folded)


def _by_model(members: Sequence[Member]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(_slots, _grouped(members, "model_name").values()))


def split_by(label: str, fold: Fold, *, whole: bool = False, alias: str = "") -> Fold:
    """Fold each value of a label apart: {label value: folded}. ``whole``: one impossible part makes all absent.

    ``alias`` is what servers that imitate vLLM call the label.
    """

    def arrange(members: Sequence[Member]) -> dict[str, Any]:
        here = label if any(label in member.labels for member in members) else alias or label
        groups = _grouped(members, here, missing="unknown")
        for extra in list(groups)[MAX_LABEL_VALUES:]:
            groups.setdefault(OTHER, []).extend(groups.pop(extra))
        return {name[:64]: fold.arrange(group) for name, group in groups.items()}

    def apply(values: Values, arranged: dict[str, Any]) -> tuple[dict[str, float] | None, int]:
        folded = {name: fold.apply(values, inner) for name, inner in arranged.items()}
        dropped = sum(count for _, count in folded.values())
        usable = {name: value for name, (value, _) in folded.items() if value is not None}
        return None if whole and dropped else usable, dropped

    return Fold(arrange, apply)


def keyed(labels: tuple[str, ...], fold: Fold) -> Fold:
    """Fold the series with the same values of these labels together: {values: folded}; without labels, under ()."""

    def arrange(members: Sequence[Member]) -> dict[tuple[str, ...], Any]:
        groups: dict[tuple[str, ...], list[Member]] = {}
        for member in members:
            key = tuple(member.labels.get(label, "")[:64] for label in labels)
            if key not in groups and len(groups) >= MAX_KEYS:
                key = (OTHER,) * len(labels)
            groups.setdefault(key, []).append(member)
        return {key: fold.arrange(group) for key, group in groups.items()}

    def apply(values: Values, arranged: dict[tuple[str, ...], Any]) -> tuple[dict[tuple[str, ...], float] | None, int]:
        folded = {key: fold.apply(values, inner) for key, inner in arranged.items()}
        usable = {key: value for key, (value, _) in folded.items() if value is not None}
        return usable or None, sum(count for _, count in folded.values())

    return Fold(arrange, apply)


def _nonzero(values: Values, slots: tuple[int, ...]) -> tuple[float | None, int]:
    """Read a counter that stays 0 where it is switched off: 0 is not known."""
    total, dropped = _total(values, slots)
    return total or None, dropped


def _asleep(values: Values, states: Mapping[str, tuple[int, ...]]) -> tuple[bool | None, int]:
    """Tell asleep or not, from both shapes of the gauge: one with 1 = asleep, or one a state with awake = 1."""
    said = {state: _peak(values, slots) for state, slots in states.items()}
    dropped = sum(count for _, count in said.values())
    awake = said.pop("awake", (None, 0))[0]
    if awake is not None:
        return awake < 0.5, dropped
    others = [value for value, _ in said.values() if value is not None]
    return (max(others) >= 0.5 if others else None), dropped


def _sleep_states(members: Sequence[Member]) -> dict[str, tuple[int, ...]]:
    return {state: _slots(group) for state, group in _grouped(members, "sleep_state").items()}


@dataclass(frozen=True, slots=True)
class _Buckets:
    """Where one process's share of a histogram stands."""

    bounds: tuple[float, ...]
    counts: Callable[[Values], tuple[float, ...]]
    count: int
    sum: int


def _buckets(members: Sequence[Member]) -> list[_Buckets] | int:
    """Make one `_Buckets` a process, or, where the parts do not make a histogram, how many series are useless."""
    shares: dict[frozenset[tuple[str, str]], list[Member]] = {}
    for member in members:
        ident = frozenset(pair for pair in member.labels.items() if pair[0] != "le")
        shares.setdefault(ident, []).append(member)
    try:
        arranged = [_share(share) for share in shares.values()]
    except (KeyError, ValueError):
        return len(members)
    same = all(share.bounds == arranged[0].bounds for share in arranged)
    return arranged if same else len(members)


def _share(members: Sequence[Member]) -> _Buckets:
    """Arrange one process's series. Raises KeyError or ValueError where a part is missing or a bound is no number."""
    slot_of = {float(m.labels["le"]): m.slot for m in members if m.part == "bucket"}
    parts = {m.part: m.slot for m in members if m.part != "bucket"}
    bounds = sorted(slot_of)
    sound = 2 <= len(bounds) <= MAX_BUCKETS and bounds[-1] == inf and bounds[-2] <= LARGEST
    if not sound or len(slot_of) + len(parts) != len(members):
        raise ValueError("not a histogram")
    slots = [slot_of[bound] for bound in bounds]
    first, last = slots[0], slots[-1]
    in_order = slots == list(range(first, last + 1))
    counts = itemgetter(slice(first, last + 1)) if in_order else itemgetter(*slots)
    return _Buckets(tuple(bounds[:-1]), counts, parts["count"], parts["sum"])


def _histogram(values: Values, shares: list[_Buckets] | int) -> tuple[Histogram | None, int]:
    """Add the shares of all processes; drop a share that is not cumulative, and with it the whole."""
    if isinstance(shares, int):
        return None, shares
    counts: Sequence[float] = ()
    total = 0.0
    for share in shares:
        own = share.counts(values)
        its_sum = values[share.sum]
        cumulative = own[0] >= 0 and all(map(le, own, own[1:])) and own[-1] == values[share.count] < LARGEST
        if not cumulative or not 0 <= its_sum < LARGEST:
            return None, 1
        counts = [a + b for a, b in zip(counts, own, strict=True)] if counts else own
        total += its_sum
    return Histogram(shares[0].bounds, array("d", counts), total), 0


PEAK = Fold(_slots, _peak)
RATIO = Fold(_slots, _ratio)
TOTAL = Fold(_slots, _total)
NONZERO = Fold(_slots, _nonzero)
EARLIEST = Fold(_slots, _earliest)
NOTHING = Fold(_slots, lambda _, __: (None, 0))  # of what is known and not read
DISTINCT = Fold(_slots, _distinct)
ANSWERS = Fold(_by_route, _answers)
CONCURRENT = Fold(_by_model, _concurrent)
ASLEEP = Fold(_sleep_states, _asleep)
HISTOGRAM = Fold(_buckets, _histogram)
