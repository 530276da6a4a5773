"""What the live view remembers of each engine: its last answer, sparklines of its vital signs, its states over time.

Input: targets as `/api/v1/engines` gives them, and when they were read. Output: `Entry`s. Invariant: pure; memory is
bounded for each engine and in engines; an absent number is a gap, never 0.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_vitals.core.states import State

POINTS = 240  # of a sparkline
MAX_ENGINES = 4_000
MAX_RUNS = 60

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Sign:
    """A vital sign: its heading, the value it is drawn from, a second one where that is absent, and its unit."""

    title: str
    value: str
    instead: str = ""
    unit: str = ""
    full: float | None = None  # the top of the sparkline, where that is fixed


SIGNS = (
    Sign("preempt/s", "preemptions_per_second"),
    Sign("TPOT p99", "tpot_p99_seconds", "tpot_p99_seconds.inter_token", "s"),
    Sign("recomputed", "recompute_tax_ratio", unit="ratio", full=1.0),
    Sign("truncated", "truncated_ratio", unit="ratio", full=1.0),
    Sign("KV usage", "kv_cache_usage_max_ratio", "kv_cache_usage_ratio", "ratio", 1.0),
)


def value(engine: Mapping[str, Any], sign: Sign) -> float | None:
    """Return a vital sign of an engine. Below the first bucket's edge it has none, and is not the other kind either."""
    values = engine.get("values") or {}
    for name in (sign.value, sign.instead) if below(engine, sign) is None else ():
        found = values.get(name, values.get(name.replace(".", "_")))
        if isinstance(found, int | float):
            return float(found)
    return None


def below(engine: Mapping[str, Any], sign: Sign) -> float | None:
    """Return the edge that a vital sign lies below, where no more is known of it."""
    values = engine.get("values") or {}
    edge = values.get(f"{sign.value}_upper")
    return float(edge) if isinstance(edge, int | float) and values.get(sign.value) is None else None


def state_of(engine: Mapping[str, Any]) -> State:
    """Return an engine's state; one that a newer daemon has and we do not is unknown."""
    try:
        return State(str(engine.get("state")))
    except ValueError:
        return State.UNKNOWN


@dataclass(slots=True)
class Entry:
    """One engine: its last answer and its target's, vital signs by title, and its states (since, state)."""

    key: Key
    engine: Mapping[str, Any]
    target: Mapping[str, Any]
    state: State
    signs: dict[str, "deque[float | None]"] = field(
        default_factory=lambda: {sign.title: deque(maxlen=POINTS) for sign in SIGNS}
    )
    runs: "deque[tuple[float, State]]" = field(default_factory=lambda: deque(maxlen=MAX_RUNS))
    seen: object = None


class Book:
    """Every engine that the source lists now."""

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.at = 0.0
        self.left_out = 0

    def take(self, at: float, targets: Iterable[Mapping[str, Any]]) -> None:
        """Take in an answer read at ``at`` (epoch s). Engines that it does not list are forgotten."""
        self.at, self.left_out = at, 0
        listed: dict[Key, Entry] = {}
        for target in targets:
            for engine in target.get("engines") or ():
                address, model, rank = (str(engine.get(name, "")) for name in ("target", "model_name", "engine"))
                if len(listed) >= MAX_ENGINES:
                    self.left_out += 1
                    continue
                listed[address, model, rank] = self._entry(at, (address, model, rank), engine, target)
        self.entries = listed

    def _entry(self, at: float, key: Key, engine: Mapping[str, Any], target: Mapping[str, Any]) -> Entry:
        state = state_of(engine)
        entry = self.entries.get(key) or Entry(key, engine, target, state)
        entry.engine, entry.target, entry.state = engine, target, state
        if not entry.runs or entry.runs[-1][1] is not state:
            entry.runs.append((engine.get("since") or at, state))
        mark = (target.get("last_scrape"), target.get("up"))
        if mark != entry.seen or not target.get("up"):
            entry.seen = mark
            for sign in SIGNS:
                entry.signs[sign.title].append(value(engine, sign) if target.get("up") else None)
        return entry
