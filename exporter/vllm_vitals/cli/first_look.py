"""What a look at servers proves before it is over, and what it was too short to prove.

Input: snapshots as they come. Output: a line an engine; how long to look instead (s). Invariant: a line holds gauges,
counters since the server's start and failures to answer, never a verdict that needs a window.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.serve import views

MAX_LINES = 8
STEPS_S = (60.0, 120.0, 300.0, 600.0)  # looks that are proposed
UNPROVEN = (State.PREEMPTING, State.UNKNOWN)  # what may be something worse, or anything, after a short look


class FirstLook:
    """Watches a look at servers. ``seconds`` is how long it is to last."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._first: dict[EngineKey, tuple[float, float]] = {}
        self._polls: dict[str, set[float]] = {}
        self._said = False

    def see(self, snapshots: Sequence[TargetSnapshot], targets: int) -> list[str]:
        """Take in what is known now. Once, after two polls of each of so many targets: its lines."""
        for snapshot in snapshots:
            self._polls.setdefault(snapshot.target, set()).add(snapshot.at)
            for engine in snapshot.engines:
                if engine.at is not None and engine.sample is not None and engine.sample.completions is not None:
                    self._first.setdefault(engine.key, (engine.at, engine.sample.completions))
        twice = sum(len(polls) > 1 for polls in self._polls.values())
        if self._said or twice < targets:
            return []
        self._said = True
        lines = list(_lines(views.worst_first(snapshots)))
        more = len(lines) - MAX_LINES
        return [*lines[:MAX_LINES], f"and {more} more engines"] if more > 0 else lines

    def longer(self, snapshots: Iterable[TargetSnapshot]) -> float | None:
        """Return how long to look (s) where this look hints at more than it can prove; None where it was enough."""
        needed = [self._needed(engine) for each in snapshots if each.up for engine in each.engines]
        return max((seconds for seconds in needed if seconds is not None), default=None)

    def _needed(self, engine: EngineSnapshot) -> float | None:
        if engine.state not in UNPROVEN or engine.at is None or engine.sample is None:
            return None
        ratio = engine.readings.get("preemptions_per_completion")
        if engine.state is State.PREEMPTING and ratio is not None and ratio.value is not None:
            return None
        begun, finished = self._first.get(engine.key, (engine.at, 0.0))
        seen = (engine.sample.completions or 0.0) - finished
        per_second = seen / (engine.at - begun) if engine.at > begun else 0.0
        wanted = 1.5 * Thresholds().min_completions / per_second if per_second > 0 else STEPS_S[-1]
        longer = [step for step in STEPS_S if step > self._seconds]
        return next((step for step in longer if step >= wanted), longer[-1] if longer else None)


def _lines(snapshots: Iterable[TargetSnapshot]) -> Iterator[str]:
    for snapshot in snapshots:
        for engine in snapshot.engines:
            who = " ".join(part for part in (snapshot.target, engine.key.model_name, engine.key.engine) if part)
            if not snapshot.up or engine.sample is None:
                yield f"{who}: {snapshot.reason}: {snapshot.detail}" if snapshot.reason else f"{who}: no engine yet"
            else:
                state = f"{engine.state.spec.label}; " if engine.state in (State.PAUSED, State.ASLEEP) else ""
                yield f"{who}: {state}{_now(engine.sample)}{_since_start(engine.sample)}"


def _now(sample: EngineSample) -> str:
    parts = [("running", sample.running, ""), ("waiting", sample.waiting, ""), ("KV", sample.kv_usage, "ratio")]
    said = [
        f"KV {views.quantity(value, unit)}" if name == "KV" else f"{views.quantity(value, unit)} {name}"
        for name, value, unit in parts
        if value is not None
    ]
    return ", ".join(said) or "no gauges"


def _since_start(sample: EngineSample) -> str:
    counted = {
        "finished": sample.completions, "failed": sample.errors, "aborted": sample.aborts,
        "preemptions": sample.preemptions,
    }  # fmt: skip
    said = ", ".join(f"{ceil(count)} {name}" for name, count in counted.items() if count is not None)
    return f"; since its start {said}" if said else ""
