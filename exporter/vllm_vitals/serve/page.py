"""What the status page says, worked out before the template draws it.

Input: target snapshots and the time of reading. Output: plain rows of text, worst first. Invariant: everything is a
snapshot's own value or an age; an absent number is a dash and its reason stands under "not known".
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from urllib.parse import urlencode

from vllm_vitals.core.snapshot import Advice, Contradiction, EngineKey, EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.serve import views

MAX_CARDS = 60  # engines drawn at length; the rest are rows
MAX_ROWS = 2_000
FOLD_LETTERS = 8
FEW = 8  # so many engines are all drawn at length


# Texts by model name, "" for any model (see `vllm_vitals.logs.watch.LogWatch.truncation`).
Logged = Callable[[TargetSnapshot], Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the page's address asks for: one target or, where it is empty, all; and the folds that are open, by key."""

    only: str = ""
    unfolded: Collection[str] = ()

    def address(self, unfolded: Collection[str]) -> str:
        """Return a link to the same page with these folds open: without a script, only the address can hold them."""
        query = [("target", self.only)] * bool(self.only) + [("open", key) for key in sorted(unfolded)]
        return f"?{urlencode(query)}" if query else "./"


@dataclass(frozen=True, slots=True)
class Vital:
    """One number: its name, its value as text, what the bounds or the source add, and how full its bar is (0-1)."""

    name: str
    text: str
    note: str = ""
    share: float | None = None


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


def _nothing_logged(_: TargetSnapshot) -> Mapping[str, Sequence[str]]:
    return {}


def build(
    snapshots: Iterable[TargetSnapshot],
    now: float,
    logged: Logged = _nothing_logged,
    asked: Asked = Asked(),
    nothing: str = "no target has been tried yet",
    impaired: Mapping[str, str] = MappingProxyType({}),
) -> Page:
    """Return the page for these targets as of ``now`` (our own time). ``logged`` returns what logs add to the metrics.

    ``nothing`` is what it says where there is no engine to show; ``impaired`` is what keeps vllm-vitals from looking.
    """
    targets = [target for target in snapshots if not asked.only or target.target == asked.only]
    engines = sorted(
        ((engine, target) for target in targets for engine in target.engines),
        key=lambda pair: _urgency(pair[0]),
    )
    counted = Counter(engine.state for engine, _ in engines)
    first = engines[0][0].state if engines else State.UNKNOWN
    troubled = sum(engine.state.severity != "ok" for engine, _ in engines)
    shown = min(len(engines) if len(engines) <= FEW else troubled, MAX_CARDS)
    loud, rest = engines[:shown], engines[shown:]
    worst = first.spec.label if engines else nothing
    cards = [_row(engine, target, now, logged, asked) for engine, target in loud]
    return Page(
        title=f"{worst} · vllm-vitals",
        worst=worst,
        counts=[(state.spec.label, state.severity, counted[state]) for state in State if counted[state]],
        targets=len(targets),
        cards=cards,
        rows=[_row(engine, target, now, _nothing_logged, asked) for engine, target in rest[:MAX_ROWS]],
        left_out=max(0, len(rest) - MAX_ROWS),
        only=asked.only,
        refresh=asked.address({row.key for row in cards if row.unfolded}),
        impaired=list(impaired.values()),
    )


def _urgency(engine: EngineSnapshot) -> tuple[bool, int, str, str, str]:
    """Sort key: what is fine comes last, what cannot be judged before it."""
    key = engine.key
    return engine.state.severity == "ok", engine.state.rank, key.target, key.model_name, key.engine


def fold(key: EngineKey) -> str:
    """Return what an engine's fold is called in the page's address."""
    name = "\0".join((key.target, key.model_name, key.engine))
    return hashlib.sha256(name.encode(errors="replace")).hexdigest()[:FOLD_LETTERS]


def _row(engine: EngineSnapshot, target: TargetSnapshot, now: float, logged: Logged, asked: Asked) -> Row:
    """Return an engine's row; one that cannot be drawn costs no other its own."""
    try:
        return _drawn(engine, target, now, logged(target), asked)
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
    )


def _of_server(target: TargetSnapshot) -> list[Contradiction]:
    """Return what contradicts itself on the page as a whole, not in one engine of it."""
    of_engines = {found.check for engine in target.engines for found in engine.contradictions}
    return [found for found in target.contradictions if found.check not in of_engines]


def vitals(engine: EngineSnapshot) -> list[Vital]:
    """Return the numbers that people need first, in that order."""
    sample = engine.sample
    if sample is None:
        return []
    kv, waiting = engine.readings.get("kv_cache_usage_max_ratio"), sample.waiting
    usage = kv.value if kv is not None and kv.value is not None else sample.kv_usage
    return [
        Vital("running", views.quantity(sample.running)),
        Vital("waiting", views.quantity(waiting), _wait(engine)),
        Vital("KV cache, max", views.quantity(usage, "ratio"), _capacity(sample.kv_capacity_tokens), usage),
        _vital(engine, "preemptions", "preemptions_per_second", "/s"),
        _vital(engine, "preemptions per finish", "preemptions_per_completion"),
        _vital(engine, "recomputed work", "recompute_tax_ratio", "ratio"),
        _tpot(engine, "TPOT p50", "tpot_p50_seconds"),
        _tpot(engine, "TPOT p99", "tpot_p99_seconds"),
        _vital(engine, "first token p99", "ttft_p99_seconds", "s"),
        _vital(engine, "truncated at cap", "truncated_ratio", "ratio"),
        _vital(engine, "useful tokens", "useful_tokens_per_second", "/s"),
        _vital(engine, "output length", "output_tokens_mean", "tokens"),
    ]


def _vital(engine: EngineSnapshot, name: str, reading_name: str, unit: str = "") -> Vital:
    reading = engine.readings.get(reading_name)
    if reading is None:
        return Vital(name, "–")
    if reading.value is None and reading.upper is not None:
        return Vital(name, f"< {views.quantity(reading.upper, unit)}", "below the first bucket's edge")
    if reading.value is None and reading.lower is not None:
        return Vital(name, f"> {views.quantity(reading.lower, unit)}", "above the last bucket's edge")
    bounds = ""
    if reading.lower is not None and reading.upper is not None and reading.lower != reading.upper:
        bounds = f"{views.quantity(reading.lower, unit)} to {views.quantity(reading.upper, unit)}"
    return Vital(name, views.quantity(reading.value, unit), bounds)


def _tpot(engine: EngineSnapshot, name: str, reading_name: str) -> Vital:
    """Per request where the server says it, else per gap, and then it says so."""
    request = _vital(engine, name, reading_name, "s")
    if request.text != "–":
        return request
    gaps = _vital(engine, name, f"{reading_name}.inter_token", "s")
    return gaps if gaps.text == "–" else Vital(name, gaps.text, f"{gaps.note} (between tokens)".strip())


def _wait(engine: EngineSnapshot) -> str:
    wait = engine.readings.get("expected_wait_seconds")
    return "" if wait is None or not wait.value else f"estimated queue wait: {views.duration(wait.value)}"


def _capacity(tokens: float | None) -> str:
    return "" if tokens is None else f"of {tokens:.0f} tokens"
