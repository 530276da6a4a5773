"""What the judge said of a server over time, folded to incidents.

Input: snapshots in order. Output: per engine its states over time, its `Incident`s with proof, and what else changed.
Invariant: pure; an incident is a period in states that harm or hide service (`StateSpec.incident`), as in the review;
what is kept does not grow with the period beyond the bounds below.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_vitals.core.sample import EngineSample, restarted
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State

GAP_S = 60.0  # two periods closer than this are one incident
LEAD_S = 600.0  # "before" is so long before the onset
REMEMBERED_S = 60.0  # one point of the past a minute
MAX_INCIDENTS, MAX_CHANGES, MAX_RUNS = 500, 200, 5_000

# What is compared before, at and in an incident: readings by the catalogue's name, with their unit.
READINGS = {
    "ttft_p99_seconds": "s", "tpot_p99_seconds": "s", "tpot_p99_seconds.inter_token": "s",
    "useful_tokens_per_second": "/s", "abandoned_requests_per_second": "/s", "preemptions_per_second": "/s",
    "recompute_tax_ratio": "ratio", "kv_cache_usage_max_ratio": "ratio", "prefix_cache_hit_ratio": "ratio",
    "prompt_tokens_mean": "tokens", "output_tokens_mean": "tokens", "truncated_ratio": "ratio",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moment:
    """Figures of one engine at one scrape; None where it was not known."""

    at: float
    running: float | None
    waiting: float | None
    values: Mapping[str, float | None]
    finished: float | None
    arrived: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened: the state that began with its first line of proof, a restart, a setting."""

    at: float
    text: str
    state: State | None = None
    proof: str = ""


@dataclass(slots=True)
class Incident:
    """One engine's period in harmful states. ``worst`` is the snapshot in which most was wrong, with its problem.

    ``end`` is the last scrape in it; ``open``: it had not ended where reading ended. ``before`` holds moments before
    the onset, ``counts`` what finished, failed, was aborted or preempted inside (None where not counted).
    """

    key: EngineKey
    start: float
    end: float
    worst: EngineSnapshot
    problem: str
    before: list[Moment]
    onset: Moment
    changes: list[Change] = field(default_factory=list)
    lead: list[Change] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    peak: Moment | None = None
    extremes: dict[str, tuple[float, float]] = field(default_factory=dict)  # of its worst state, by how proof begins
    open: bool = True
    _last: EngineSample | None = None

    @property
    def state(self) -> State:
        """Its worst state."""
        return self.worst.state

    def take(self, at: float, engine: EngineSnapshot, problem: str) -> None:
        """Take in a poll inside it."""
        self.end = at
        if engine.state.rank < self.worst.state.rank:
            self.extremes.clear()
        if _badness(engine) < _badness(self.worst):
            self.worst, self.problem = engine, problem
            self.peak = moment(at, engine)
        if engine.state is self.worst.state:
            self._extend(engine)
        self._count(engine.sample if engine.at == at else None)

    def _extend(self, engine: EngineSnapshot) -> None:
        """Take in the lowest and highest value of each proof that has a threshold."""
        for each in engine.evidence:
            if each.value is not None and each.threshold is not None:
                what = each.text.partition(":")[0][:80]
                low, high = self.extremes.get(what, (each.value, each.value))
                self.extremes[what] = min(low, each.value), max(high, each.value)

    def _count(self, sample: EngineSample | None) -> None:
        if sample is None:
            return
        for name in ("completions", "errors", "aborts", "preemptions"):
            new, old = getattr(sample, name), getattr(self._last, name, None)
            if new is not None and old is not None:
                self.counts[name] = self.counts.get(name, 0.0) + (new - old if new >= old else new)
        self._last = sample


@dataclass(slots=True)
class _Engine:
    runs: list[tuple[float, float, State]] = field(default_factory=list)
    past: "deque[Moment]" = field(default_factory=lambda: deque(maxlen=20))
    changes: "deque[Change]" = field(default_factory=lambda: deque(maxlen=20))
    last: EngineSample | None = None
    incident: Incident | None = None


class Episodes:
    """One server's incidents, taken in poll by poll."""

    def __init__(self, gap: float = GAP_S) -> None:
        self._gap = gap
        self._engines: dict[EngineKey, _Engine] = {}
        self._settings: Mapping[str, str] = {}
        self.incidents: list[Incident] = []
        self.dropped = 0

    @property
    def runs(self) -> Mapping[EngineKey, list[tuple[float, float, State]]]:
        """States over time (start, last scrape in it), by engine."""
        return {key: engine.runs for key, engine in self._engines.items()}

    def add(self, poll: TargetSnapshot) -> None:
        """Take in one poll."""
        changed = self._changed_settings(poll)
        for engine in poll.engines:
            mine = self._engines.setdefault(engine.key, _Engine())
            self._note(mine, poll, engine, changed)
            self._judge(mine, poll, engine)
            if engine.at == poll.at and (not mine.past or poll.at - mine.past[-1].at >= REMEMBERED_S):
                mine.past.append(moment(poll.at, engine))

    def broken(self) -> None:
        """Take in that scrapes stop here for so long that what follows is judged anew."""
        for engine in self._engines.values():
            engine.incident, engine.last = None, None
            engine.past.clear()

    def _changed_settings(self, poll: TargetSnapshot) -> list[Change]:
        if not poll.up:
            return []
        old, self._settings = self._settings, poll.settings
        return [
            Change(poll.at, f"{name}: {old[name]} before, {value} now")
            for name, value in sorted(poll.settings.items())
            if name in old and old[name] != value
        ]

    def _note(self, mine: _Engine, poll: TargetSnapshot, engine: EngineSnapshot, settings: list[Change]) -> None:
        """Keep changes: the state, a restart, settings."""
        new = list(settings)
        if engine.at == poll.at and engine.sample is not None:
            if mine.last is not None and restarted(mine.last, engine.sample):
                new.append(Change(poll.at, "the server restarted: its counters began anew"))
            mine.last = engine.sample
        run = mine.runs[-1] if mine.runs else None
        if run is None or run[2] is not engine.state:
            proof = engine.evidence[0].text if engine.evidence else poll.detail
            new.append(Change(poll.at, engine.state.spec.label, engine.state, proof))
            if len(mine.runs) < MAX_RUNS:
                mine.runs.append((poll.at, poll.at, engine.state))
        else:
            mine.runs[-1] = (run[0], poll.at, run[2])
        mine.changes.extend(new)
        if mine.incident is not None and len(mine.incident.changes) < MAX_CHANGES:
            mine.incident.changes.extend(new)

    def _judge(self, mine: _Engine, poll: TargetSnapshot, engine: EngineSnapshot) -> None:
        problem = "" if poll.up else f"{poll.reason}: {poll.detail}"
        harmful, incident = bool(engine.state.spec.incident), mine.incident
        if incident is not None:
            incident.open = harmful
            if harmful:
                incident.take(poll.at, engine, problem)
            elif poll.at - incident.end > self._gap:
                mine.incident = None
        elif harmful:
            if len(self.incidents) >= MAX_INCIDENTS:
                self.dropped += 1
                return
            first = moment(poll.at, engine)
            before = [each for each in mine.past if each.at >= poll.at - 2 * LEAD_S]
            mine.incident = Incident(engine.key, poll.at, poll.at, engine, problem, before, first, peak=first)
            mine.incident.changes.append(mine.changes[-1])
            mine.incident.lead.extend(
                each
                for each in list(mine.changes)[:-1]
                if each.at >= poll.at - 2 * LEAD_S and each.state is not State.UNKNOWN
            )
            mine.incident.take(poll.at, engine, problem)
            self.incidents.append(mine.incident)


def _badness(engine: EngineSnapshot) -> tuple[int, bool, int]:
    """Smallest is worst: the state, not recovering, most proof."""
    recovering = bool(engine.evidence) and engine.evidence[0].text.startswith("recovering")
    return engine.state.rank, recovering, -len(engine.evidence)


def moment(at: float, engine: EngineSnapshot) -> Moment:
    """Return an engine's figures at a poll."""
    sample = engine.sample if engine.at == at else None
    values = {name: reading.value if (reading := engine.readings.get(name)) else None for name in READINGS}
    finished = None if sample is None or sample.responses is None else sum(sample.responses.values())
    arrived = None if finished is None or sample is None else finished + sample.work
    running, waiting = (None, None) if sample is None else (sample.running, sample.waiting)
    return Moment(at, running, waiting, values, finished, arrived)
