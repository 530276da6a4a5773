"""What the pages remember of each engine without a Prometheus: states, vital signs and events of the last hour.

Input: snapshots, as they come. Output: `EnginePast`s and `Event`s, copies that never change. Invariant: pure; memory is
bounded for each engine, in engines and in events; an absent number is a gap, never 0.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan, nan

from vllm_vitals.core.sample import EngineSample, restarted
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State

SPAN_S = 3600.0
POINTS = 120  # of a span: the highest value of each half minute, with an hour
MAX_ENGINES, MAX_RUNS, MAX_EVENTS = 20_000, 60, 500
MAX_SETTINGS = 20  # that change at once and are named


@dataclass(frozen=True, slots=True)
class Sign:
    """A vital sign: its name on the page, the reading that it is, another where that is absent, its unit and scale."""

    name: str
    reading: str
    instead: str = ""
    unit: str = ""
    full: float | None = None


SIGNS = (
    Sign("preemptions", "preemptions_per_second", unit="/s"),
    Sign("KV cache, max", "kv_cache_usage_max_ratio", unit="ratio", full=1.0),
    Sign("TPOT p99", "tpot_p99_seconds", "tpot_p99_seconds.inter_token", "s"),
    Sign("truncated at cap", "truncated_ratio", unit="ratio", full=1.0),
    Sign("waiting", ""),
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an engine (epoch s). ``state``: that it entered; ``proof``: its first evidence."""

    at: float
    key: EngineKey
    text: str
    state: State | None = None
    proof: str = ""


@dataclass(frozen=True, slots=True)
class EnginePast:
    """States (start, state) in order, and each vital sign's values at equal steps up to ``until`` (epoch s)."""

    runs: Sequence[tuple[float, State]] = ()
    signs: Sequence[Sequence[float | None]] = ()
    until: float = 0.0
    span: float = SPAN_S


@dataclass(slots=True)
class _Engine:
    points: "array[float]"
    slot: int = -1  # the newest, counted from the epoch
    runs: "deque[tuple[float, State]]" = field(default_factory=lambda: deque(maxlen=MAX_RUNS))
    sample: EngineSample | None = None


class Memory:
    """Everything that is remembered. ``span`` is for how long (s)."""

    def __init__(self, span: float = SPAN_S) -> None:
        self._begin(span)

    def _begin(self, span: float) -> None:
        self.span = span
        self._engines: OrderedDict[EngineKey, _Engine] = OrderedDict()
        self._targets: dict[str, tuple[Mapping[str, str], str, frozenset[str]]] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def keep(self, span: float) -> None:
        """Remember for so long from now on; another span begins anew."""
        if span != self.span:
            self._begin(span)

    def take(self, poll: TargetSnapshot) -> None:
        """Take in one poll."""
        for engine in poll.engines:
            known = engine.key in self._engines
            if not known:
                self._engines[engine.key] = _Engine(array("f", [nan]) * (POINTS * len(SIGNS)))
            mine = self._engines[engine.key]
            self._engines.move_to_end(engine.key)
            self._state(mine, poll, engine, known)
            if poll.up and engine.at == poll.at:
                self._sample(mine, poll.at, engine)
        self._server(poll)
        while self._engines and (len(self._engines) > MAX_ENGINES or self._stale(poll.at)):
            self._engines.popitem(last=False)

    def of(self, key: EngineKey, now: float) -> EnginePast:
        """Return what is known of an engine, up to ``now``."""
        return self.later(key, now)()

    def later(self, key: EngineKey, now: float) -> Callable[[], EnginePast]:
        """Return what makes `of`, in any thread: a copy is taken now, the work is done where a page draws it."""
        mine = self._engines.get(key)
        if mine is None:
            return partial(EnginePast, span=self.span)
        return partial(_past, mine.points[:], mine.slot, tuple(mine.runs), now, self.span)

    def events(self, now: float) -> list[Event]:
        """Return what happened within the span, the newest first."""
        found = [event for event in reversed(self._events) if event.at >= now - self.span]
        return sorted(found, key=lambda event: -event.at)

    def _stale(self, at: float) -> bool:
        """Return whether the engine that was longest not seen is out of the span."""
        oldest = next(iter(self._engines.values()))
        last = max(oldest.slot * self.span / POINTS, oldest.runs[-1][0] if oldest.runs else 0.0)
        return len(self._engines) > 1 and oldest.slot >= 0 and at - last > 2 * self.span

    def _state(self, mine: _Engine, poll: TargetSnapshot, engine: EngineSnapshot, known: bool) -> None:
        if mine.runs and mine.runs[-1][1] is engine.state:
            return
        first_verdict = not mine.runs or mine.runs[-1][1] is State.UNKNOWN
        mine.runs.append((poll.at, engine.state))
        if (known and not first_verdict) or engine.state.severity in ("critical", "warning"):
            proof = engine.evidence[0].text if engine.evidence else poll.detail
            self._events.append(Event(poll.at, engine.key, engine.state.spec.label, engine.state, proof))

    def _sample(self, mine: _Engine, at: float, engine: EngineSnapshot) -> None:
        if mine.sample is not None and engine.sample is not None and restarted(mine.sample, engine.sample):
            self._events.append(Event(at, engine.key, "the server restarted: its counters began anew"))
        mine.sample = engine.sample
        slot = int(at * POINTS / self.span)
        width = len(SIGNS)
        for old in range(max(mine.slot + 1, slot - POINTS + 1), slot + 1):  # what was not seen is a gap
            begin = old % POINTS * width
            mine.points[begin : begin + width] = array("f", [nan]) * width
        mine.slot = max(mine.slot, slot)
        for number, sign in enumerate(SIGNS):
            value, place = _value(engine, sign), slot % POINTS * width + number
            if value is not None and not mine.points[place] >= value:
                mine.points[place] = value

    def _server(self, poll: TargetSnapshot) -> None:
        """Note settings and versions that are others than before, and whether that was our advice."""
        if not poll.up or not poll.engines:
            return
        settings, version, advised = self._targets.get(poll.target, ({}, "", frozenset[str]()))
        key = EngineKey(poll.target, poll.engines[0].key.model_name, "")
        changed = [name for name in sorted(poll.settings) if name in settings and settings[name] != poll.settings[name]]
        for name in changed[:MAX_SETTINGS]:
            by_advice = ", as advised" if name in advised else ""
            text = f"{name}: {settings[name]} before, {poll.settings[name]} now{by_advice}"
            self._events.append(Event(poll.at, key, text))
        if version and poll.version and poll.version != version:
            self._events.append(Event(poll.at, key, f"vLLM {version} before, {poll.version} now"))
        knobs = frozenset(advice.knob for engine in poll.engines for advice in engine.advice)
        self._targets[poll.target] = poll.settings, poll.version or version, knobs or (advised - set(changed))
        if len(self._targets) > MAX_ENGINES:
            del self._targets[next(iter(self._targets))]


def _value(engine: EngineSnapshot, sign: Sign) -> float | None:
    if not sign.reading:
        return engine.sample.waiting if engine.sample is not None else None
    for name in (sign.reading, sign.instead):
        reading = engine.readings.get(name)
        if reading is not None and (reading.value, reading.lower, reading.upper) != (None, None, None):
            return reading.value  # beyond the buckets' edges it is known, and is no number of the other kind
    return None


def _past(
    points: "array[float]", last: int, runs: Sequence[tuple[float, State]], now: float, span: float
) -> EnginePast:
    begin = now - span
    first = max((n for n, (start, _) in enumerate(runs) if start <= begin), default=0)
    seen = tuple((max(begin, start), state) for start, state in runs[first:])
    newest, width = int(now * POINTS / span), len(SIGNS)

    def at(slot: int, number: int) -> float | None:
        if slot > last or slot <= last - POINTS:
            return None
        found = points[slot % POINTS * width + number]
        return None if isnan(found) else found

    slots = range(newest - POINTS + 1, newest + 1)
    signs = tuple(tuple(at(slot, number) for slot in slots) for number in range(width))
    return EnginePast(seen, signs, now, span)
