"""Whose a series is: one page may hold several ranks, replicas, and servers that a proxy has put together.

In: the series that are read. Out: the `Place` of each, and the name that an engine gets from it. Invariant: two series
that only a label unknown to us tells apart never belong to one engine: they are split by that label where it runs
through the page, and where it stands on few families alone, those are refused. A label's values are bounded.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_vitals.core.exposition import ExpositionError, Fault, Series
from vllm_vitals.vllm.family import Family
from vllm_vitals.vllm.lookup import WIRE

MAX_NAME = 256  # characters of a model name or engine that become a label of ours
MAX_SPLIT = 64  # engines that labels unknown to us may make of one page
# Ray's agent shows all replicas of its node: each is a server of its own, with its own engine 0.
REPLICA_LABELS = ("ReplicaId", "WorkerId")
# vLLM's own on every family, the two of Ray, and Triton's backend, which labels its models `model`.
_COMMON = frozenset({"model_name", "engine", "pid", "le", "model", *REPLICA_LABELS})

_PRESENCE = frozenset({"running", "waiting"})  # fields that every engine says

Labels = Mapping[str, str]


class Place(NamedTuple):
    """Which engine a series belongs to; the engine is "" for what the whole server shares.

    ``split`` are the labels, with their values, by which several servers on one page are told apart.
    """

    replica: str
    model: str
    engine: str
    split: tuple[tuple[str, str], ...] = ()

    @property
    def server(self) -> "Place":
        """Give the place of what this engine shares with the others of its server."""
        return Place(self.replica, "", "", self.split)

    def shares(self, other: "Place") -> bool:
        """Tell whether what stands at ``other``, a server's place, is this engine's too."""
        return other.replica in ("", self.replica) and set(other.split) <= set(self.split)


PAGE = Place("", "", "")


@dataclass(frozen=True, slots=True)
class Separation:
    """What labels unknown to us do to a page: those that split engines, and the families that they make unreadable.

    ``refused`` holds, by the field of a family, the label that tells its series apart and is not on the others.
    """

    labels: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def place(self, labels: Labels, *, shared: bool) -> Place:
        """Find where a series with these labels belongs."""
        replica = labels.get(REPLICA_LABELS[0]) or labels.get(REPLICA_LABELS[1], "")
        split = tuple([(name, labels[name]) for name in self.labels if name in labels]) if self.labels else ()
        if shared:
            return Place(replica, "", "", split)
        return Place(replica, labels.get("model", ""), labels.get("engine") or "0", split)

    def refusal(self, family: Family) -> Fault | None:
        """Say why a family's series are of no use."""
        if (label := self.refused.get(family.field)) is None:
            return None
        return Fault("duplicate", f"label {label}, unknown to vLLM, tells its series apart and is not on the others")

    def is_stray(self, place: Place, fields: Set[str]) -> bool:
        """Tell whether the page is split by labels that this place lacks, and it is no engine by itself."""
        return bool(place.engine) and len(place.split) < len(self.labels) and not fields & _PRESENCE


def separation(series: Sequence[Series]) -> Separation:
    """Look for series of one family and engine that only labels unknown to us tell apart."""
    owned = [
        (spelling.family, one) for one in series if (spelling := WIRE.get(one.name)) and not spelling.family.shared
    ]
    if all(one.labels.keys() <= _COMMON or one.labels.keys() <= _known(family) for family, one in owned):
        return Separation()
    return _separate(owned)


def _known(family: Family) -> frozenset[str]:
    return _COMMON.union(family.labels)


def _separate(owned: Sequence[tuple[Family, Series]]) -> Separation:
    carriers: defaultdict[str, set[str]] = defaultdict(set)
    for family, one in owned:
        for label in one.labels.keys() - _known(family):
            carriers[label].add(family.field)
    families = {family.field for family, _ in owned}
    telling = {label for labels in _ambiguous(owned, ()).values() for label in labels}
    labels = _fewest([label for label in telling if 2 * len(carriers[label]) >= len(families)], owned)
    if (count := len(set(_values(labels, owned)))) > MAX_SPLIT:
        raise ExpositionError(
            "too_many_series",
            f"label {', '.join(labels)}, unknown to vLLM, makes {count} engines of this page, more than the limit of"
            f" {MAX_SPLIT}: scrape each server itself, or drop the label where it is added",
        )
    refused = {quantity: min(told) for quantity, told in _ambiguous(owned, labels).items()}
    return Separation(labels, refused)


def _ambiguous(owned: Iterable[tuple[Family, Series]], split: Sequence[str]) -> dict[str, set[str]]:
    """Find the labels that alone tell series of a family apart, by its field, beyond those in ``split``."""
    groups: defaultdict[tuple[str, str, frozenset[tuple[str, str]]], list[Labels]] = defaultdict(list)
    for family, one in owned:
        known = _known(family).union(split)
        same = frozenset(pair for pair in one.labels.items() if pair[0] in known)
        groups[family.field, one.name, same].append(one.labels)
    found: dict[str, set[str]] = {}
    for (quantity, _, same), several in groups.items():
        if len(several) > 1:
            others = {name for labels in several for name in labels} - {name for name, _ in same}
            telling = {name for name in others if len({labels.get(name) for labels in several}) > 1}
            found.setdefault(quantity, set()).update(telling)
    return found


def _values(labels: Sequence[str], owned: Iterable[tuple[Family, Series]]) -> Iterator[tuple[str | None, ...]]:
    return (tuple(map(one.labels.get, labels)) for _, one in owned)


def _fewest(labels: list[str], owned: Sequence[tuple[Family, Series]]) -> tuple[str, ...]:
    """Leave out what the other labels say too (an address beside a pod's name), the longest values first."""
    kept = sorted(labels, key=lambda name: (-sum(len(one.labels.get(name, "")) for _, one in owned), name))
    for label in list(kept):
        rest = [name for name in kept if name != label]
        if len(set(_values(rest, owned))) == len(set(_values(kept, owned))):
            kept = rest
    return tuple(sorted(kept))


def names(places: Sequence[Place], models: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Give each engine its (model_name, engine); ``models`` are the names that the places' series carry.

    The values of labels that split the page join the engine ("0@stage=1"), and a Ray replica's id does where two would
    share a name. Raises `ExpositionError` where two engines cannot be told apart by what fits.
    """
    taken = Counter((model, place.engine, place.split) for place, model in zip(places, models, strict=True))
    given: set[tuple[str, str]] = set()
    for place, model in zip(places, models, strict=True):
        marks = [f"{name}={value[:64]}" for name, value in place.split]
        if taken[model, place.engine, place.split] > 1 and place.replica:
            marks.insert(0, place.replica)
        key = model[:MAX_NAME], (place.engine + ("@" + ",".join(marks) if marks else ""))[:MAX_NAME]
        if key in given:
            raise ExpositionError("duplicate", f"two engines would both be called {' '.join(key)}: name them apart")
        given.add(key)
        yield key
