"""Where in a body each value of each engine stands: worked out once, kept while the body is built the same.

In: the series of an `Exposition`. Out: a `Layout`, whose cells know their slots in the values, and which engine they
belong to. Invariant: every slot feeds at most one cell, and spellings of one family never meet in one.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_vitals.core import series_owner
from vllm_vitals.core.exposition import MAX_SERIES, Exposition, ExpositionError, Fault
from vllm_vitals.core.fold_series import LARGEST, Member
from vllm_vitals.core.incremental import ParsedBody
from vllm_vitals.core.sample import TargetSample
from vllm_vitals.core.series_owner import PAGE, Place, Separation, separation
from vllm_vitals.vllm import cache_config
from vllm_vitals.vllm.families import HTTP, KV_STORES, KV_TRANSFERS
from vllm_vitals.vllm.family import Family
from vllm_vitals.vllm.lookup import CONFIG_NAMES, WIRE, Spelling, era, family, is_known, prefix_of, stem, stems

MAX_UNKNOWN = 1000
MAX_ENGINES = 1024  # the widest expert-parallel deployments have some hundred ranks
_OF_PAGE = ("http", "process_start", "started_at")

Config = Mapping[str, str]
Configs = dict[tuple[Place, str | None], Config]  # by server and engine, None where the release has no such label


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
    """One engine: its cells, those that the whole server shares among them, and what its labels fix.

    ``shown`` are the cells of its details, ``details`` what they said last.
    """

    key: tuple[str, str]
    cells: list[FamilySlot]
    fixed: dict[str, Any]
    shown: list[FamilySlot] = field(default_factory=list)
    details: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep what is only shown apart."""
        self.shown = [cell for cell in self.cells if cell.family.says is not None]
        self.cells = [cell for cell in self.cells if cell.family.says is None]


@dataclass(slots=True)
class Unread:
    """The families that a body shows and nobody may trust, by our name: why, and how many series were dropped."""

    why: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    first: Fault | None = None

    def refuse(self, family: str, fault: Fault, series: int = 1) -> None:
        """Drop series of a family; its first fault is kept."""
        self.why.setdefault(family, fault.detail)
        self.counts[family] += series
        self.first = self.first or fault


@dataclass(slots=True)
class Layout:
    """What one target's last body taught. Its owner makes one a target and gives it to every `normalise`.

    ``served_name`` names the engine where its series carry several model names (LoRA adapters); without it, the name
    on num_requests_running does. All else is the cache: ``owners`` has one entry a slot of the skeleton's values, and
    ``page`` the cells of what concerns the page as a whole, by field (http, process_start, started_at). ``starts`` of
    these say when something began. ``lora`` is where the block of LoRA adapters stands, and how it read last.
    """

    served_name: str = ""
    max_series: int = MAX_SERIES
    skeleton: ParsedBody | None = None
    owners: list[FamilySlot | None] = field(default_factory=list)
    cells: list[FamilySlot] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    unread: Unread = field(default_factory=Unread)
    split_labels: tuple[str, ...] = ()
    page: dict[str, list[FamilySlot]] = field(default_factory=dict)
    starts: list[FamilySlot] = field(default_factory=list)
    lora: tuple[int, bytes] | None = None
    sample: TargetSample | None = None


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """What the body as a whole says: the era, its stems, the settings of its first engine."""

    era: str
    dialect: str
    stems: frozenset[str]
    unknown: frozenset[str]
    settings: Mapping[str, str]


@dataclass(slots=True)
class _FamiliesFound:
    """The series of one place by family and rank of spelling, and the model names they carry."""

    families: dict[str, dict[int, list[tuple[Spelling, Member]]]] = field(default_factory=dict)
    models: Counter[str] = field(default_factory=Counter)
    running: set[str] = field(default_factory=set)

    def name(self, served: str) -> str:
        """Choose the served name if it is here, else the commonest of those on num_requests_running, else of all."""
        if served in self.models:
            return served
        return max(self.models, key=lambda name: (name in self.running, self.models[name]), default="")


def index_series(layout: Layout, exposition: Exposition) -> BodyFacts:
    """Fill a layout from a body seen for the first time. Raises `ExpositionError`."""
    apart = separation(exposition.series)
    configs = _configs(exposition, apart)
    facts = _body_facts(exposition, configs)
    layout.unread, layout.split_labels = Unread(), apart.labels
    found = _sort(exposition, apart, layout.unread)
    layout.skeleton = exposition.skeleton
    layout.owners = [None] * len(exposition.series)
    layout.cells = []
    shared = {place: _cells(layout, here, 0) for place, here in found.items() if not place.engine}
    shared = {place: [cell for cell in cells if cell.family is not HTTP] for place, cells in shared.items()}
    layout.engines = []
    engines = [place for place in found if place.engine]
    if len(engines) > MAX_ENGINES:
        raise ExpositionError("too_many_series", f"{len(engines)} engines, more than the limit of {MAX_ENGINES}")
    ranks = Counter(place.server for place in engines) | Counter(server for server, engine in configs if engine)
    keys = series_owner.names(engines, [found[place].name(layout.served_name) for place in engines])
    for place, key in zip(engines, keys, strict=True):
        config = configs.get((place.server, place.engine)) or configs.get((place.server, None), {})
        # Up to 0.8.5, whose cache_config_info has no engine label, V1 counted its prefix cache in blocks.
        block = 1.0 if "engine" in config else _number(config.get(cache_config.BLOCK_SIZE)) or 0.0
        cells = _cells(layout, found[place], block)
        cells += [cell for other, theirs in shared.items() if place.shares(other) for cell in theirs]
        layout.engines.append(Engine(key, cells, _fixed(config, ranks[place.server], facts) | _zeros(cells, facts)))
    layout.page = {name: [cell for cell in layout.cells if cell.family.field == name] for name in _OF_PAGE}
    layout.starts = layout.page["process_start"] + layout.page["started_at"]
    return facts


def _sort(exposition: Exposition, apart: Separation, unread: Unread) -> dict[Place, _FamiliesFound]:
    """Sort series by place, family and spelling, without those of families that cannot be read."""
    faults: dict[tuple[str, int], Fault] = {}
    for name, fault in exposition.faults.items():
        if name in CONFIG_NAMES:
            unread.refuse(cache_config.CACHE_CONFIG, fault)
        elif spelling := WIRE.get(name):
            faults[spelling.family.field, spelling.rank] = fault
            unread.refuse(spelling.family.name, fault)
    found: defaultdict[Place, _FamiliesFound] = defaultdict(_FamiliesFound)
    for slot, one in enumerate(exposition.series):
        if (known := WIRE.get(one.name)) is None:
            continue
        row = known.family
        if row.only and one.labels.get(row.only[0]) != row.only[1]:
            continue
        if unreadable := faults.get((row.field, known.rank)) or apart.refusal(row):
            unread.refuse(row.name, unreadable)
            continue
        here = found[PAGE if row is HTTP else apart.place(one.labels, shared=row.shared)]
        ranks = here.families.setdefault(row.field, {})
        ranks.setdefault(known.rank, []).append((known, Member(one.labels, known.part, slot)))
        if model := one.labels.get("model_name") or one.labels.get("model"):
            here.models[model] += 1
            if row.field == "running":
                here.running.add(model)
    for place in [place for place, here in found.items() if apart.is_stray(place, here.families.keys())]:
        fault = Fault("duplicate", f"no label {', '.join(apart.labels)}: its engine is unknown")
        for ranks in found.pop(place).families.values():
            for members in ranks.values():
                unread.refuse(members[0][0].family.name, fault, len(members))
    return found


def _cells(layout: Layout, found: _FamiliesFound, block_size: float) -> list[FamilySlot]:
    """Make one cell a family, from the spelling that is preferred among those present."""
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


def _configs(exposition: Exposition, apart: Separation) -> Configs:
    """Find the labels of every cache_config_info. It has no model_name, so the engine joins it."""
    configs: Configs = {}
    for one in exposition.series:
        if one.name in CONFIG_NAMES and one.name not in exposition.faults:
            configs.setdefault((apart.place(one.labels, shared=True), one.labels.get("engine")), one.labels)
    return configs


def _fixed(config: Config, ranks: int, facts: BodyFacts) -> dict[str, Any]:
    """Give what an engine's cache configuration says for as long as the server runs.

    ``num_gpu_blocks`` is the sum over the server's ranks and stands on each of them (vllm/v1/engine/core_client.py).
    """
    capacity = _number(config.get(cache_config.CAPACITY_TOKENS))
    blocks, size = _number(config.get(cache_config.NUM_GPU_BLOCKS)), _number(config.get(cache_config.BLOCK_SIZE))
    if capacity is None and blocks and size:
        capacity = blocks * size / ranks
    stored = any(name.startswith(KV_STORES) for name in facts.stems) or _number(
        config.get(cache_config.OFFLOADING_SIZE)
    )
    moved = any(name.startswith(KV_TRANSFERS) for name in facts.stems)
    fetched = not stems(family("kv_fetching")).isdisjoint(facts.stems)
    return {
        "kv_capacity_tokens": capacity,
        "prefix_caching": {"true": True, "false": False}.get(config.get(cache_config.PREFIX_CACHING, "").lower()),
        # None: what it asks of a connector decides
        "kv_restored": True if stored else False if moved else fetched or None,
        "recompute_counted": facts.era == "v0",
    }


def _zeros(cells: Iterable[FamilySlot], facts: BodyFacts) -> dict[str, Any]:
    """Give the counters that every release has and Ray's agent does not show: it skips ``inc(0)``, so they are 0.

    vllm/v1/metrics/ray_wrappers.py. From vLLM itself a family that is not there is absent.
    """
    if "ray" not in facts.dialect.split():
        return {}
    shown = {cell.family.field for cell in cells}
    counters: dict[str, Any] = {"generation_tokens": 0.0, "prompt_tokens": 0.0, "preemptions": 0.0, "responses": {}}
    return {name: zero for name, zero in counters.items() if name not in shown}


def _number(text: str | None) -> float | None:
    """Read a positive number in a label that may also say "None"."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 < number < LARGEST else None


def _body_facts(exposition: Exposition, configs: Configs) -> BodyFacts:
    vllm = [name for name in exposition.families if prefix_of(name)]
    stems = frozenset(map(stem, vllm))
    labels = frozenset(label for one in exposition.series for label in one.labels)
    spoken = era(stems, labels)
    outer = [name for name in ("ray", "kserve") if any(prefix_of(wire).startswith(name) for wire in vllm)]
    config = next(iter(configs.values()), {})
    settings = {name: config[name][:64] for name in cache_config.SETTINGS if config.get(name, "None") != "None"}
    unknown = frozenset(sorted(name[:128] for name in stems if not is_known(name))[:MAX_UNKNOWN])
    return BodyFacts(spoken, " ".join([spoken, *outer]), stems, unknown, settings)
