"""What a tuning session does next: a run, a choice of the next knob, a decision, or nothing.

Input: a `Journal`. Output: a step. Invariant: of the settings that a session changed, a run of B differs in one from
its runs of A, and every run says all of them, so that a kept change is not lost when the next knob is tried.
"""

from dataclasses import dataclass
from typing import Literal

from vllm_vitals.core.advice import NOW_KNOBS
from vllm_vitals.planner.review.words import minutes
from vllm_vitals.planner.tune.journal import Journal, Trial

MAX_TRIALS = 50


@dataclass(frozen=True, slots=True)
class Take:
    """A run to record. ``text`` is what a person does before it; ``settings`` are the run's."""

    role: Literal["A", "B"]
    settings: dict[str, str]
    text: str


@dataclass(frozen=True, slots=True)
class Choose:
    """The next knob is to be chosen."""


@dataclass(frozen=True, slots=True)
class Decide:
    """All three runs of a trial are there."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to try."""


Step = Take | Choose | Decide | Done


def step(journal: Journal, told: dict[str, str]) -> Step:
    """Return what is next. ``told`` are the settings of a first run."""
    if not journal.runs:
        return Take("A", told, f"Run 1 (A): the server as it is, {_long(journal)}. {LOAD}")
    trial, number = journal.trial, len(journal.runs) + 1
    if trial is None:
        return Done() if journal.nothing_left or len(journal.trials) >= MAX_TRIALS else Choose()
    base = journal.runs[trial.first].settings
    if trial.changed is None:
        now = f" (from {trial.before})" if trial.before else ""
        text = f"set {trial.knob}={trial.value}{now}{_how(trial.knob)}{_beside(base, trial.knob)}"
        return Take(
            "B", {**base, trial.knob: trial.value},
            f"Run {number} (B): {text}. When the same load is back: {_long(journal)}.",
        )  # fmt: skip
    if trial.again is None:
        text = f"set {trial.knob} back to {trial.before or 'what it was'}{_how(trial.knob)}"
        return Take("A", dict(base), f"Run {number} (A again): {text}. When the same load is back: {_long(journal)}.")
    return Decide(trial)


LOAD = "Keep one load through all runs: replay one trace, or take the same hour."


def _how(knob: str) -> str:
    return "" if knob in NOW_KNOBS else " and restart the server"


def _beside(settings: dict[str, str], knob: str) -> str:
    others = ", ".join(f"{name}={value}" for name, value in settings.items() if name != knob)
    return f"; leave {others}" if others else ""


def _long(journal: Journal) -> str:
    warm = f", the first {minutes(journal.warm_up)} of which do not count" if journal.warm_up else ""
    return f"{minutes(journal.seconds + journal.warm_up)} of recording{warm}"
