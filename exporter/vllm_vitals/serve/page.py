"""What the status page says, worked out before the template draws it.

Input: target snapshots and the time of reading. Output: plain rows of text, worst first. Invariant: everything is a
snapshot's own value or an age; an absent number is a dash and its reason stands under "not known".
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from urllib.parse import urlencode

from vllm_vitals.core.snapshot import Advice, Contradiction, EngineKey, EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.serve import charts, views
from vllm_vitals.serve.charts import Picture
from vllm_vitals.serve.memory import EnginePast, Event
from vllm_vitals.serve.vitals import Vital, vitals

MAX_CARDS = 60  # engines drawn at length; the rest are rows
MAX_ROWS = 2_000
FOLD_LETTERS = 8
FEW = 8  # so many engines are all drawn at length
RECENT = 12  # events below the engines; all stand on their own page
MAX_QUERY = 80


Remembered = Callable[[EngineKey], EnginePast]

# Texts by model name, "" for any model (see `vllm_vitals.logs.watch.LogWatch.truncation`).
Logged = Callable[[TargetSnapshot], Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the page's address asks for: one target, model or engine, or words; and the folds that are open, by key."""

    only: str = ""
    unfolded: Collection[str] = ()
    model: str = ""
    engine: str = ""
    words: str = ""

    def address(self, unfolded: Collection[str]) -> str:
        """Return a link to the same page with these folds open: without a script, only the address can hold them."""
        chosen = (("target", self.only), ("model", self.model), ("engine", self.engine), ("q", self.words))
        query = [(name, value) for name, value in chosen if value] + [("open", key) for key in sorted(unfolded)]
        return f"?{urlencode(query)}" if query else "./"

    def wants(self, engine: EngineSnapshot) -> bool:
        """Return whether an engine is asked for. Every word must be in its address, model, rank or state."""
        key = engine.key
        if (self.model and key.model_name != self.model) or (self.engine and key.engine != self.engine):
            return False
        text = f"{key.target} {key.model_name} {key.engine} {engine.state.spec.label}".lower()
        return all(word in text for word in self.words.lower().split())

    @property
    def told(self) -> str:
        """What is asked for, in words; empty where that is everything."""
        engine = f"engine {self.engine}" if self.engine else ""
        words = f"“{self.words}”" if self.words else ""
        return ", ".join(part for part in (self.only, self.model, engine, words) if part)


@dataclass(frozen=True, slots=True)
class Row:
    """One engine on the page."""

    target: str
    model_name: str
    engine: str
    state: str
    severity: str
    headline: str
    since: str
    age: str
    stale: bool
    doubts: Sequence[str]
    evidence: Sequence[str]
    now: Sequence[Advice]
    restart: Sequence[Advice]
    vitals: Sequence[Vital]
    unknown: Sequence[str]
    key: str
    unfolded: bool
    toggle: str
    server: str
    problem: str
    link: str = ""
    band: Picture | None = None
    signs: Sequence[Picture] = ()
    settings: Sequence[tuple[str, str]] = ()
    followed: str = ""


@dataclass(frozen=True, slots=True)
class Happened:
    """One event as a line: how long ago, when (UTC), where, what."""

    ago: str
    at: str
    who: str
    link: str
    text: str
    severity: str
    proof: str


@dataclass(frozen=True, slots=True)
class Model:
    """One model over all its engines: how many are in which state, and what they hold."""

    name: str
    link: str
    engines: int
    counts: Sequence[tuple[str, str, int]]
    running: str
    waiting: str
    kv: str


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page: a line on top, cards for what needs eyes, rows for the rest."""

    title: str
    worst: str
    counts: Sequence[tuple[str, str, int]]
    targets: int
    cards: Sequence[Row]
    rows: Sequence[Row]
    left_out: int
    only: str
    refresh: str
    impaired: Sequence[str] = ()
    models: Sequence[Model] = ()
    events: Sequence[Happened] = ()
    more_events: int = 0
    words: str = ""
    one: bool = False


def _nothing_remembered(_: EngineKey) -> EnginePast:
    return EnginePast()


def _nothing_logged(_: TargetSnapshot) -> Mapping[str, Sequence[str]]:
    return {}


def build(
    snapshots: Iterable[TargetSnapshot],
    now: float,
    logged: Logged = _nothing_logged,
    asked: Asked = Asked(),
    nothing: str = "no target has been tried yet",
    impaired: Mapping[str, str] = MappingProxyType({}),
    remembered: Remembered = _nothing_remembered,
    events: Sequence[Event] = (),
) -> Page:
    """Return the page for these targets as of ``now`` (our own time). ``logged`` returns what logs add to the metrics.

    ``nothing`` is what it says where there is no engine to show; ``impaired`` is what keeps vllm-vitals from looking;
    ``remembered`` and ``events`` (the newest first) are what was before.
    """
    targets = [target for target in snapshots if not asked.only or target.target == asked.only]
    engines = sorted(
        ((engine, target) for target in targets for engine in target.engines if asked.wants(engine)),
        key=lambda pair: _urgency(pair[0]),
    )
    counted = Counter(engine.state for engine, _ in engines)
    first = engines[0][0].state if engines else State.UNKNOWN
    severities = Counter(engine.state.severity for engine, _ in engines)
    troubled = min(FEW, len(engines) - severities["ok"])
    shown = len(engines) if len(engines) <= FEW else min(MAX_CARDS, max(severities["critical"], troubled))
    loud, rest = engines[:shown], engines[shown:]
    worst = first.spec.label if engines else nothing
    one = len(engines) == 1 and bool(asked.only and asked.engine)
    cards = [_row(engine, target, now, logged, asked, remembered, one) for engine, target in loud]
    mine = {engine.key for engine, _ in engines}
    servers = {EngineKey(key.target, key.model_name, "") for key in mine}
    happened = [event for event in events if not asked.told or event.key in mine or event.key in servers]
    return Page(
        title=f"{worst} · vllm-vitals",
        worst=worst,
        counts=[(state.spec.label, state.severity, counted[state]) for state in State if counted[state]],
        targets=len(targets),
        cards=cards,
        rows=[_row(engine, target, now, _nothing_logged, asked, remembered) for engine, target in rest[:MAX_ROWS]],
        left_out=max(0, len(rest) - MAX_ROWS),
        only=asked.told,
        refresh=asked.address({row.key for row in cards if row.unfolded}),
        impaired=list(impaired.values()),
        models=_models([engine for engine, _ in engines]) if len(engines) > FEW else (),
        events=[_happened(event, now) for event in happened[: len(happened) if one else RECENT]],
        more_events=0 if one else max(0, len(happened) - RECENT),
        words=asked.words,
        one=one,
    )


def log(events: Sequence[Event], now: float) -> list[Happened]:
    """Return every event as a line, the newest first."""
    return [_happened(event, now) for event in events]


def _happened(event: Event, now: float) -> Happened:
    key = event.key
    who = " ".join(part for part in (key.target, key.model_name, f"engine {key.engine}" if key.engine else "") if part)
    at = datetime.fromtimestamp(event.at, UTC).strftime("%H:%M:%S")
    severity = event.state.severity if event.state is not None else ""
    return Happened(views.duration(now - event.at), at, who, link(key), event.text, severity, event.proof)


def link(key: EngineKey) -> str:
    """Return the address of an engine's own page, which outlives a restart of the daemon."""
    names = (("target", key.target), ("model", key.model_name), ("engine", key.engine))
    return f"?{urlencode([(name, value) for name, value in names if value], errors='replace')}"


def _models(engines: Sequence[EngineSnapshot]) -> list[Model]:
    """Return models, the one with the worst engine first."""
    by_name: dict[str, list[EngineSnapshot]] = {}
    for engine in engines:  # they stand worst first
        by_name.setdefault(engine.key.model_name, []).append(engine)
    return [_model(name, own) for name, own in list(by_name.items())[:MAX_CARDS]]


def _model(name: str, engines: Sequence[EngineSnapshot]) -> Model:
    samples = [engine.sample for engine in engines if engine.sample is not None]
    running = [sample.running for sample in samples if sample.running is not None]
    waiting = [sample.waiting for sample in samples if sample.waiting is not None]
    usages = [sample.kv_usage for sample in samples if sample.kv_usage is not None]
    counted = Counter(engine.state for engine in engines)
    return Model(
        name=name or "model not known",
        link=f"?{urlencode({'model': name}, errors='replace')}" if name else "",
        engines=len(engines),
        counts=[(state.spec.label, state.severity, counted[state]) for state in State if counted[state]],
        running=views.quantity(sum(running) if running else None),
        waiting=views.quantity(sum(waiting) if waiting else None),
        kv=views.quantity(max(usages, default=None), "ratio"),
    )


def _urgency(engine: EngineSnapshot) -> tuple[bool, int, str, str, str]:
    """Sort key: what is fine comes last, what cannot be judged before it."""
    key = engine.key
    return engine.state.severity == "ok", engine.state.rank, key.target, key.model_name, key.engine


def fold(key: EngineKey) -> str:
    """Return what an engine's fold is called in the page's address."""
    name = "\0".join((key.target, key.model_name, key.engine))
    return hashlib.sha256(name.encode(errors="replace")).hexdigest()[:FOLD_LETTERS]


def _row(
    engine: EngineSnapshot, target: TargetSnapshot, now: float, logged: Logged, asked: Asked, remembered: Remembered,
    one: bool = False,
) -> Row:  # fmt: skip
    """Return an engine's row; one that cannot be drawn costs no other its own. ``one``: alone on its page."""
    try:
        row, past = _drawn(engine, target, now, logged(target), asked), remembered(engine.key)
        drawn = charts.signs(past, charts.CHART if one else charts.LINE)
        settings = sorted(target.settings.items()) if one else ()
        return replace(row, link=link(engine.key), band=charts.states(past), signs=drawn, settings=settings)
    except (ArithmeticError, ValueError, TypeError, LookupError) as error:
        why = f"a bug in vllm-vitals: the numbers of this engine cannot be shown ({type(error).__name__})"
        bare = EngineSnapshot(engine.key, engine.state, since=0.0, at=None)
        return replace(_drawn(bare, target, now, {}, asked), age="?", problem=why)


def _drawn(
    engine: EngineSnapshot, target: TargetSnapshot, now: float, logged: Mapping[str, Sequence[str]], asked: Asked
) -> Row:
    key, ours = engine.key, fold(engine.key)
    server = " · ".join(part for part in (f"vLLM {target.version}" if target.version else "", target.dialect) if part)
    return Row(
        target=key.target,
        model_name=key.model_name,
        engine=key.engine,
        state=engine.state.spec.label,
        severity=engine.state.severity,
        headline=engine.state.spec.headline,
        since=views.duration(now - engine.since) if engine.since else "",
        age=views.duration(now - engine.at) if engine.at is not None else "never",
        stale=not target.up,
        doubts=[found.text for found in (*_of_server(target), *engine.contradictions)],
        evidence=[
            *(item.text for item in engine.evidence),
            *(text for model in dict.fromkeys((key.model_name, "")) for text in logged.get(model, ())),
        ],
        now=[item for item in engine.advice if item.when == "now"],
        restart=[item for item in engine.advice if item.when == "restart"],
        vitals=vitals(engine),
        unknown=engine.unknown,
        key=ours,
        unfolded=ours in asked.unfolded,
        toggle=f"{asked.address({*asked.unfolded} ^ {ours})}#{ours}",
        server=server,
        problem=target.detail if target.up else f"{target.reason}: {target.detail}",
        followed=views.since(engine.followed) if engine.followed is not None else "",
    )


def _of_server(target: TargetSnapshot) -> list[Contradiction]:
    """Return what contradicts itself on the page as a whole, not in one engine of it."""
    of_engines = {found.check for engine in target.engines for found in engine.contradictions}
    return [found for found in target.contradictions if found.check not in of_engines]
