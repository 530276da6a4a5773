"""A recording judged as fast as it can be read, by the same evaluator as the daemon's.

Input: a recording. Output: per engine a timeline of states, the worst moment, and where wanted one series entry per
scrape. Invariant: time comes from the recording alone, so the same file always gives the same answer; what is kept in
memory does not grow with the file.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from vllm_vitals.core.contradictions import WITHHOLDING
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Scrape, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.recordings.recording import RecordingError
from vllm_vitals.recordings.replay_series import SeriesSpool

TO_TELL_THE_INTERVAL = 5  # gaps examined
MAX_ENGINES = 2_048  # of one recording, over all its time
MAX_RUNS = 20_000  # of one engine's timeline
MAX_WORST = 4_000  # engine snapshots kept to find the middle of the worst


@dataclass(frozen=True, slots=True)
class Run:
    """So long an engine was in one state (epoch s): until the scrape that shows the next."""

    start: float
    end: float
    state: State


@dataclass(slots=True)
class Timeline:
    """The runs of one engine; after `MAX_RUNS` the last one goes on."""

    runs: list[Run] = field(default_factory=list)

    def add(self, at: float, state: State) -> None:
        """Take in one scrape's state."""
        last = self.runs[-1] if self.runs else None
        if last is not None:
            self.runs[-1] = Run(last.start, at, last.state)
        if last is None or (last.state is not state and len(self.runs) < MAX_RUNS):
            self.runs.append(Run(at, at, state))

    def copy(self) -> "Timeline":
        """Return the same runs, to go on by themselves."""
        return Timeline(list(self.runs))


class WorstMoment:
    """The poll in the middle of the worst state so far; unknown is no worse than the rest.

    Exact while all polls at the worst fit, else to within a small share of them: then only every second, fourth, ... is
    kept.
    """

    def __init__(self) -> None:
        self._badness: tuple[bool, int, int] | None = None
        self._kept: list[TargetSnapshot] = []
        self._count, self._stride = 0, 1

    @property
    def poll(self) -> TargetSnapshot | None:
        """The poll; None where there was none."""
        return self._kept[min(len(self._kept) - 1, self._count // 2 // self._stride)] if self._kept else None

    def add(self, poll: TargetSnapshot) -> None:
        """Take in one poll."""
        badness = _badness(poll)
        if self._badness is None or badness < self._badness:
            self._badness, self._kept, self._count, self._stride = badness, [], 0, 1
        if badness != self._badness:
            return
        if self._count % self._stride == 0:
            self._kept.append(poll)
        self._count += 1
        if len(self._kept) > max(16, MAX_WORST // max(1, len(poll.engines))):
            self._kept, self._stride = self._kept[::2], self._stride * 2


def _badness(poll: TargetSnapshot) -> tuple[bool, int, int]:
    """Smallest is worst: as `check`'s exit code has it, then as the states are ordered."""
    states = [engine.state for engine in poll.engines] or [State.UNKNOWN]
    # a verdict that cannot be given is worse than a good one
    withheld = any(found.check in WITHHOLDING for found in poll.contradictions)
    return min(
        (state is State.UNKNOWN and not withheld, SEVERITIES.index(state.severity), state.rank) for state in states
    )


SEVERITIES = ("critical", "warning", "unknown", "ok")  # the worst first


class Replay:
    """What a recording says, taken in poll by poll. ``spool`` keeps every entry of its series, on disk; ``follow`` is
    told of every poll.
    """

    def __init__(
        self, target: str, spool: SeriesSpool | None = None, follow: Callable[[TargetSnapshot], None] | None = None
    ) -> None:
        self.target = target
        self.polls = 0
        self.start = 0.0
        self.worst = WorstMoment()
        self.cut_off = ""
        self._spool, self._follow = spool, follow
        self._timelines: dict[EngineKey, Timeline] = {}
        self._before = Timeline()  # of an engine that nobody has seen yet: the nameless one's

    def take(self, scrapes: Iterable[Scrape], limits: Thresholds | None = None) -> None:
        """Judge scrapes in order. A recording that breaks off is judged up to the break; raises `RecordingError`
        where nothing came before it.
        """
        try:
            for poll in judge(self.target, scrapes, limits):
                self.add(poll)
        except RecordingError as error:
            if not self.polls:
                raise
            self.cut_off = str(error)

    def add(self, poll: TargetSnapshot) -> None:
        """Take in one poll."""
        if not self.polls:
            self.start = poll.at
        self.polls += 1
        self.worst.add(poll)
        if self._follow is not None:
            self._follow(poll)
        known = {engine.key: engine for engine in poll.engines}
        nameless = next((engine for engine in poll.engines if not engine.key.engine), None)
        for key in known:
            if key not in self._timelines and len(self._timelines) < MAX_ENGINES:
                self._timelines[key] = self._before.copy()
                if self._spool is not None:
                    self._spool.begin(key)
        for key, timeline in self._timelines.items():
            timeline.add(poll.at, _state(known.get(key, nameless)))
        self._before.add(poll.at, _state(nameless))
        if self._spool is not None:
            self._spool.add(poll.at, known, nameless, self._timelines)

    @property
    def engines(self) -> list[tuple[EngineKey, Timeline]]:
        """Each engine that was ever seen; the nameless one only where no other was."""
        named = [key for key in self._timelines if key.engine or key.model_name]
        ordered = sorted(named or self._timelines, key=lambda k: (k.model_name, k.engine))
        return [(key, self._timelines[key]) for key in ordered]


def _state(engine: EngineSnapshot | None) -> State:
    return engine.state if engine is not None else State.UNKNOWN


def judge(target: str, scrapes: Iterable[Scrape], limits: Thresholds | None = None) -> Iterator[TargetSnapshot]:
    """Yield a snapshot a scrape, in order. What came before an error of ``scrapes`` comes before it here, too."""
    first: list[Scrape] = []
    judging: TargetEvaluator | None = None
    try:
        for scrape in scrapes:
            if judging is not None:
                yield judging.observe(scrape)
                continue
            first.append(scrape)
            if len(first) > TO_TELL_THE_INTERVAL:
                judging = _evaluator(target, first, limits)
                yield from map(judging.observe, first)
    except RecordingError:
        if judging is None:
            yield from map(_evaluator(target, first, limits).observe, first)
        raise
    if judging is None:
        yield from map(_evaluator(target, first, limits).observe, first)


def _evaluator(target: str, first: list[Scrape], limits: Thresholds | None) -> TargetEvaluator:
    """Return an evaluator whose fast window holds four scrapes at the recording's interval."""
    gaps = [later.at - earlier.at for earlier, later in pairwise(first)]
    return TargetEvaluator(target, limits or Thresholds().at_interval(median(gaps) if gaps else 0.0))
