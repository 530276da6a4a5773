"""A recording judged as fast as it can be read, by the same judge as the daemon's.

Input: a recording. Output: per engine a timeline of states and one series entry per scrape. Invariant:
time comes from the recording alone, so the same file always gives the same answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from vllm_vitals.catalog import DERIVED, Kind
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Scrape, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.recordings import recording
from vllm_vitals.serve import views

TO_TELL_THE_INTERVAL = 5  # gaps looked at

_TAX_BOUNDS = ("recompute_tax_lower_ratio", "recompute_tax_upper_ratio")
_ABOUT_STATE = ("state_since_timestamp_seconds", "window_seconds")
_PLAIN = tuple(
    metric.name
    for metric in DERIVED
    if metric.kind is Kind.GAUGE and not metric.labels and metric.name not in (*_ABOUT_STATE, *_TAX_BOUNDS)
)
_TAILS = ("tpot_p50_seconds", "tpot_p99_seconds", "tpot_p99_p50_ratio")
SIGNALS = (*_PLAIN, *_TAILS, *(f"{name}.inter_token" for name in _TAILS), "ttft_p99_seconds")


@dataclass(frozen=True, slots=True)
class Replay:
    """What a recording said: every poll's snapshot, and one line where the file could not be read to its end."""

    target: str
    polls: tuple[TargetSnapshot, ...]
    cut_off: str = ""


def judge(target: str, scrapes: Iterable[Scrape], limits: Thresholds | None = None) -> Replay:
    """Judge scrapes in order. A recording that breaks off is judged up to the break."""
    first, polls, cut_off = list[Scrape](), list[TargetSnapshot](), ""
    judging: TargetEvaluator | None = None
    try:
        for scrape in scrapes:
            if judging is None:
                first.append(scrape)
                if len(first) <= TO_TELL_THE_INTERVAL:
                    continue
                judging = _watch(target, first, limits, polls)
            else:
                polls.append(judging.observe(scrape))  # what came before an error must stay
    except recording.RecordingError as error:
        if not first:
            raise
        cut_off = str(error)
    if judging is None:
        _watch(target, first, limits, polls)
    return Replay(target, tuple(polls), cut_off)


def _watch(target: str, first: list[Scrape], limits: Thresholds | None, polls: list[TargetSnapshot]) -> TargetEvaluator:
    """Return an evaluator whose fast window holds four scrapes at the recording's interval, past ``first``."""
    gaps = [later.at - earlier.at for earlier, later in pairwise(first)]
    judging = TargetEvaluator(target, limits or Thresholds().at_interval(median(gaps) if gaps else 0.0))
    polls.extend(judging.observe(scrape) for scrape in first)
    return judging


def as_json(path: Path, done: Replay) -> dict[str, Any]:
    """Return the JSON of ``check --replay --json``. Times are the recording's (epoch s)."""
    answer = {"recording": str(path), "engines": engines(done)}
    return {**answer, "cut_off": done.cut_off} if done.cut_off else answer


def engines(done: Replay) -> list[dict[str, Any]]:
    """Return each engine that was ever seen; the nameless one only where no other was."""
    keys = dict.fromkeys(engine.key for poll in done.polls for engine in poll.engines)
    named = [key for key in keys if key.engine or key.model_name]
    return [_engine(key, done) for key in sorted(named or keys, key=lambda k: (k.model_name, k.engine))]


def _engine(key: EngineKey, done: Replay) -> dict[str, Any]:
    """Return one engine's timeline and series. Before it is first seen it has the nameless engine's state."""
    series = []
    for poll in done.polls:
        known = {engine.key: engine for engine in poll.engines}
        nameless = next((engine for engine in poll.engines if not engine.key.engine), None)
        series.append(_entry(poll.at, known.get(key, nameless), own=key in known))
    return {
        "target": key.target,
        "model_name": key.model_name,
        "engine": key.engine,
        "timeline": timeline([(entry["t"], entry["state"]) for entry in series]),
        "series": series,
    }


def _entry(at: float, snapshot: EngineSnapshot | None, own: bool) -> dict[str, Any]:
    state = snapshot.state if snapshot is not None else State.UNKNOWN
    sample = snapshot.sample if snapshot is not None and own else None
    readings = snapshot.readings if snapshot is not None and own else {}
    values = {**views.sample_values(sample), **views.reading_values(readings, SIGNALS)}
    return {"t": at, "state": state.value, **values}


def timeline(states: list[tuple[float, str]]) -> list[dict[str, Any]]:
    """Return the runs of one state: each lasts until the scrape that shows the next, the last until the last scrape."""
    runs: list[dict[str, Any]] = []
    for at, state in states:
        if runs:
            runs[-1]["to"] = at
        if not runs or runs[-1]["state"] != state:
            runs.append({"from": at, "to": at, "state": state})
    return runs
