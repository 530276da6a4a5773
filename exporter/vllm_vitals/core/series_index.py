"""Where in a body each value of each engine stands: worked out once, kept while the body is built the same.

In: the series of an `Exposition`. Out: a `Layout`, whose cells know their slots in the values, and which engine they
belong to. Invariant: every slot feeds at most one cell, and spellings of one family never meet in one.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_vitals.core.exposition import MAX_SERIES, Exposition, ExpositionError, Series
from vllm_vitals.core.fold import Member
from vllm_vitals.core.incremental import ParsedBody
from vllm_vitals.core.sample import TargetSample
from vllm_vitals.vllm.names import (
    CONFIG_NAMES,
    HTTP,
    KV_STORES,
    KV_TRANSFERS,
    SETTINGS,
    WIRE,
    Family,
    Spelling,
    era,
    is_known,
    prefix_of,
    stem,
)

MAX_NAME = 256  # characters of a model name or engine that become a label of ours
MAX_UNKNOWN = 1000
MAX_ENGINES = 1024  # the widest expert-parallel deployments have some hundred ranks
# Ray's agent shows all replicas of its node: each is a server of its own, with its own engine 0.
REPLICA_LABELS = ("ReplicaId", "WorkerId")
_OF_PAGE = ("http", "process_start", "started_at")

Config = Mapping[str, str]
Configs = dict[tuple[str, str | None], Config]  # by replica and engine, None where the release has no such label


@dataclass(slots=True, eq=False)
class FamilySlot:
    """One family of one engine: its arranged series, and what they said last."""

    family: Family
    arranged: Any
    scale: float = 1.0
    value: Any = None
    dropped: int = 0


@dataclass(slots=True)
class Engine:
    """One engine: its cells, those that the whole server shares among them, and what its labels fix."""

    key: tuple[str, str]
    cells: list[FamilySlot]
    fixed: dict[str, Any]


@dataclass(slots=True)
class Layout:
    """What one target's last body taught. Its owner makes one a target and gives it to every `normalise`.

    ``served_name`` names the engine where its series carry several model names (LoRA adapters); without it, the name
    on num_requests_running does. All else is the cache: ``owners`` has one entry a slot of the skeleton's values, and
    ``page`` the cells of what concerns the page as a whole, by field (http, process_start, started_at).
    """

    served_name: str = ""
    max_series: int = MAX_SERIES
    skeleton: ParsedBody | None = None
    owners: list[FamilySlot | None] = field(default_factory=list)
    cells: list[FamilySlot] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    page: dict[str, list[FamilySlot]] = field(default_factory=dict)
    sample: TargetSample | None = None


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """What the body as a whole says: the era, its stems, the settings of its first engine."""

    era: str
    dialect: str
    stems: frozenset[str]
    unknown: frozenset[str]
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Place:
    """Which engine a series belongs to; the engine is "" for what the whole server shares."""

    replica: str
    model: str
    engine: str


_PAGE = _Place("", "", "")


@dataclass(slots=True)
class _FamiliesFound:
    """The series of one place by family and rank of spelling, and the model names they carry."""

    families: dict[str, dict[int, list[tuple[Spelling, Member]]]] = field(default_factory=dict)
    models: Counter[str] = field(default_factory=Counter)
    running: set[str] = field(default_factory=set)

    def name(self, served: str) -> str:
        """The served name if it is here, else the commonest of those on num_requests_running, else of all."""
        if served in self.models:
            return served
        return max(self.models, key=lambda name: (name in self.running, self.models[name]), default="")


def index_series(layout: Layout, exposition: Exposition) -> BodyFacts:
    """Fill a layout from a body seen for the first time. Raises `ExpositionError`."""
    configs = _configs(exposition.series)
    facts = _body_facts(exposition, configs)
    found = _sort(exposition.series)
    layout.skeleton = exposition.skeleton
    layout.owners = [None] * len(exposition.series)
    layout.cells = []
    shared = {place.replica: _cells(layout, here, 0) for place, here in found.items() if not place.engine}
    shared = {replica: [cell for cell in cells if cell.family is not HTTP] for replica, cells in shared.items()}
    layout.engines = []
    places = [place for place in found if place.engine]
    if len(places) > MAX_ENGINES:
        raise ExpositionError("too_many_series", f"{len(places)} engines, more than the limit of {MAX_ENGINES}")
    ranks = Counter(place.replica for place in places) | Counter(replica for replica, engine in configs if engine)
    for place, key in zip(places, _keys(places, found, layout.served_name), strict=True):
        config = configs.get((place.replica, place.engine)) or configs.get((place.replica, None), {})
        # Up to 0.8.5, whose cache_config_info has no engine label, V1 counted its prefix cache in blocks.
        block = 1.0 if "engine" in config else _number(config.get("block_size")) or 0.0
        cells = _cells(layout, found[place], block)
        cells += shared.get("", []) + (shared.get(place.replica, []) if place.replica else [])
        layout.engines.append(Engine(key, cells, _fixed(config, ranks[place.replica], facts) | _zeros(cells, facts)))
    layout.page = {name: [cell for cell in layout.cells if cell.family.field == name] for name in _OF_PAGE}
    return facts


def _place(labels: Mapping[str, str], *, shared: bool) -> _Place:
    replica = next((labels[name] for name in REPLICA_LABELS if name in labels), "")
    if shared:
        return _Place(replica, "", "")
    # Triton's vLLM backend labels its models `model`; each is an engine of its own.
    return _Place(replica, labels.get("model", ""), labels.get("engine") or "0")


def _sort(series: Sequence[Series]) -> dict[_Place, _FamiliesFound]:
    found: defaultdict[_Place, _FamiliesFound] = defaultdict(_FamiliesFound)
    for slot, one in enumerate(series):
        spelling = WIRE.get(one.name)
        if spelling is None:
            continue
        family = spelling.family
        if family.only and one.labels.get(family.only[0]) != family.only[1]:
            continue
        here = found[_PAGE if family is HTTP else _place(one.labels, shared=family.shared)]
        ranks = here.families.setdefault(family.field, {})
        ranks.setdefault(spelling.rank, []).append((spelling, Member(one.labels, spelling.part, slot)))
        if model := one.labels.get("model_name") or one.labels.get("model"):
            here.models[model] += 1
            if family.field == "running":
                here.running.add(model)
    return found


def _cells(layout: Layout, found: _FamiliesFound, block_size: float) -> list[FamilySlot]:
    """One cell a family, from the spelling that is preferred among those present."""
    cells = []
    for ranks in found.families.values():
        chosen = ranks[min(ranks)]
        spelling = chosen[0][0]
        scale = block_size if spelling.in_blocks else 1.0
        if not scale:
            continue
        cell = FamilySlot(spelling.family, spelling.family.fold.arrange([member for _, member in chosen]), scale)
        for _, member in chosen:
            layout.owners[member.slot] = cell
        cells.append(cell)
    layout.cells += cells
    return cells


def _keys(places: Sequence[_Place], found: Mapping[_Place, _FamiliesFound], served: str) -> Iterator[tuple[str, str]]:
    """The identities. Where replicas behind one Ray agent would share one, the replica's id joins the engine."""
    names = [found[place].name(served)[:MAX_NAME] for place in places]
    taken = Counter(zip(names, (place.engine for place in places), strict=True))
    for place, name in zip(places, names, strict=True):
        twice = taken[name, place.engine] > 1 and place.replica
        yield name, (f"{place.engine}@{place.replica}" if twice else place.engine)[:MAX_NAME]


def _configs(series: Iterable[Series]) -> Configs:
    """The labels of every cache_config_info. It has no model_name, so the engine joins it."""
    configs: Configs = {}
    for one in series:
        if one.name in CONFIG_NAMES:
            configs.setdefault((_place(one.labels, shared=True).replica, one.labels.get("engine")), one.labels)
    return configs


def _fixed(config: Config, ranks: int, facts: BodyFacts) -> dict[str, Any]:
    """What an engine's cache configuration says for as long as the server runs.

    ``num_gpu_blocks`` is the sum over the server's ranks and stands on each of them (vllm/v1/engine/core_client.py).
    """
    capacity = _number(config.get("kv_cache_size_tokens"))
    blocks, size = _number(config.get("num_gpu_blocks")), _number(config.get("block_size"))
    if capacity is None and blocks and size:
        capacity = blocks * size / ranks
    stored = any(name.startswith(KV_STORES) for name in facts.stems) or _number(config.get("kv_offloading_size"))
    moved = any(name.startswith(KV_TRANSFERS) for name in facts.stems)
    fetched = "num_requests_kv_fetch_by_stage" in facts.stems
    return {
        "kv_capacity_tokens": capacity,
        "prefix_caching": {"True": True, "False": False}.get(config.get("enable_prefix_caching", "")),
        # None: what it asks of a connector decides
        "kv_restored": True if stored else False if moved else fetched or None,
        "recompute_counted": facts.era == "v0",
    }


def _zeros(cells: Iterable[FamilySlot], facts: BodyFacts) -> dict[str, Any]:
    """Counters that every release has and Ray's agent does not show: it skips ``inc(0)``, so they are 0.

    vllm/v1/metrics/ray_wrappers.py. From vLLM itself a family that is not there is absent.
    """
    if "ray" not in facts.dialect.split():
        return {}
    shown = {cell.family.field for cell in cells}
    counters: dict[str, Any] = {"generation_tokens": 0.0, "prompt_tokens": 0.0, "preemptions": 0.0, "responses": {}}
    return {name: zero for name, zero in counters.items() if name not in shown}


def _number(text: str | None) -> float | None:
    """A positive number in a label that may also say "None"."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _body_facts(exposition: Exposition, configs: Configs) -> BodyFacts:
    vllm = [name for name in exposition.families if prefix_of(name)]
    stems = frozenset(map(stem, vllm))
    labels = frozenset(label for one in exposition.series for label in one.labels)
    spoken = era(stems, labels)
    outer = [name for name in ("ray", "kserve") if any(prefix_of(wire).startswith(name) for wire in vllm)]
    config = next(iter(configs.values()), {})
    settings = {name: config[name][:64] for name in SETTINGS if config.get(name, "None") != "None"}
    unknown = frozenset(sorted(name[:128] for name in stems if not is_known(name))[:MAX_UNKNOWN])
    return BodyFacts(spoken, " ".join([spoken, *outer]), stems, unknown, settings)
