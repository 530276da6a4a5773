"""One engine's judge: samples in, `EngineSnapshot` out. It composes window, signals, history and state machine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_vitals.core import derive
from vllm_vitals.core.advice import advise
from vllm_vitals.core.canary import NO_CANARY, CanaryVerdict
from vllm_vitals.core.derive import WindowView
from vllm_vitals.core.evidence import evidence, unknowns
from vllm_vitals.core.history import Episode, Progress, UsefulBaseline, UsualLatency
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Reading, Role, checked
from vllm_vitals.core.state_machine import Facts, Machine
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.window import Window

# A proven state outlives a spell in which the server answers without metrics, with its age.
NOT_LOOKED = "vllm-vitals itself could not look: that says nothing about the server"
OUTLIVES_BLINDNESS = (State.STALLED, State.DEATH_SPIRAL, State.THRASHING)


@dataclass(frozen=True, slots=True)
class Derived:
    """One poll's readings, and the facts that the state is decided on."""

    readings: Mapping[str, Reading]
    facts: Facts
    role: Role


class EngineEvaluator:
    """Judges one engine. ``observe`` takes a sample, ``miss`` a poll that gave none; both answer what is known now."""

    def __init__(self, key: EngineKey, limits: Thresholds, role: Role | None = None) -> None:
        self._limits, self._role = limits, role
        self._window = Window(fine=limits.fast_window * 1.5, reach=limits.slow_window)
        self._machine = Machine()
        self._progress, self._episode = Progress(), Episode()
        self._latency, self._baseline = UsualLatency(), UsefulBaseline()
        self._seen_at: float | None = None
        self._since = 0.0
        self._seconds: Mapping[State, float] = {}
        self._spirals = 0
        self._now = EngineSnapshot(key, State.UNKNOWN, since=0.0, at=None)

    def observe(
        self, at: float, sample: EngineSample, settings: Mapping[str, str], canary: CanaryVerdict = NO_CANARY
    ) -> EngineSnapshot:
        """Judge a good sample taken at ``at`` (epoch s), with what canaries have proven of the server."""
        self._count(at)
        self._window.push(at, sample)
        self._progress.feed(at, sample, self._window.previous)
        self._episode.feed(self._window, self._limits)
        derived = self._derive(at, sample, settings, canary)
        facts = None if derived is None else derived.facts
        if sample.asleep:
            self._machine.clear()  # sleeping ends whatever went on
        state = State.ASLEEP if sample.asleep else self._machine.step(facts, self._limits, at)
        if derived is None:
            reason = f"needs {self._limits.min_span:g} s of samples since the engine started"
            return self._publish(state, at, at, sample=sample, unknown=(reason,))
        pending = self._machine.pending(at)
        return self._publish(
            state,
            at,
            at,
            sample=sample,
            role=derived.role,
            readings=derived.readings,
            evidence=evidence(state, derived.facts, derived.readings, sample, self._limits, pending),
            advice=advise(state, derived.facts, derived.readings, sample, settings),
            unknown=unknowns(state, derived.facts, derived.readings, sample, self._limits, canary.answered),
            window_s=derived.facts.seconds,
        )

    def miss(self, at: float, failed: State | None) -> EngineSnapshot:
        """A poll without a sample. ``failed`` is down, blind or unknown from then on; None before: nothing changes."""
        self._count(at)
        now = self._now
        if failed is None:
            self._now = replace(now, state_seconds=self._seconds)
            return self._now
        age = at - (now.at if now.at is not None else at)
        proven = now.state in OUTLIVES_BLINDNESS and age <= self._limits.blind_hold
        if failed in (State.BLIND, State.UNKNOWN) and proven:
            said = f"its metrics have been unreadable for {age:.0f} s: this is what they showed last"
            return self._publish(now.state, at, now.at, evidence=now.evidence, advice=now.advice, unknown=(said,))
        self._machine.clear()  # what it did before proves nothing any more
        if failed is State.UNKNOWN:
            return self._publish(failed, at, now.at, unknown=(NOT_LOOKED,))
        return self._publish(failed, at, now.at, advice=advise(failed, None, {}, None, {}))

    def _count(self, at: float) -> None:
        """Seconds since the last poll go to the state held until now; a pause longer than a window is not counted."""
        before, self._seen_at = self._seen_at, at
        if before is not None:
            passed, held = min(max(0.0, at - before), self._limits.fast_window), self._now.state
            self._seconds = {**self._seconds, held: self._seconds.get(held, 0.0) + passed}

    def _publish(self, state: State, at: float, sampled_at: float | None, **said: Any) -> EngineSnapshot:
        """What is known after the poll at ``at``; of what is not said only the role stays as it was."""
        if state is not self._now.state or not self._since:
            self._since = at
            self._spirals += state is State.DEATH_SPIRAL
        said.setdefault("role", self._now.role)
        self._now = EngineSnapshot(
            self._now.key, state, self._since, sampled_at,
            state_seconds=self._seconds, death_spirals=self._spirals, **said,
        )  # fmt: skip
        return self._now

    def _derive(
        self, at: float, sample: EngineSample, settings: Mapping[str, str], canary: CanaryVerdict
    ) -> Derived | None:
        """Readings and facts, or None while the window is too short to say anything."""
        view = derive.view_at(at, sample, settings, self._window, self._limits, self._role)
        if view is None:
            return None
        readings = {
            **derive.readings(view),
            "inflight_output_tokens_estimate": self._progress.inflight_estimate(sample),
            "useful_tokens_baseline_per_second": self._baseline.feed(at, view.fast, view.means.running, self._limits),
        }
        readings = {name: checked(reading) for name, reading in readings.items()}
        facts = self._facts(view, readings)
        if canary.silent_since is not None and not sample.updating_weights:
            facts = replace(facts, canary_unanswered_seconds=at - canary.silent_since)
        return Derived(readings, facts, view.role)

    def _facts(self, view: WindowView, readings: Mapping[str, Reading]) -> Facts:
        """What the state is decided on: the windows, and what this engine's history says of them."""
        limits, sample, fast = self._limits, view.sample, view.fast
        known = sample.running is not None and sample.waiting is not None
        starting = not sample.completions or self._progress.still_stepping(view.at, limits.stall_after)
        prefill = derive.prefill_factor(fast)
        return Facts(
            seconds=fast.seconds,
            work=sample.work if known else None,
            asleep=bool(sample.asleep),
            busy=derive.busy(view),
            preemptions=fast.increase("preemptions"),
            completions=view.finished,
            tax=readings["recompute_tax_ratio"].value,
            mean_waiting=view.means.waiting,
            draining=derive.draining(view),
            generated=fast.increase("generation_tokens"),
            seconds_without_token=self._progress.seconds_without_token(view.at),
            generation_vs_baseline=self._episode.generation_vs_baseline(fast, view.means.work),
            seconds_without_progress=self._progress.seconds_without_progress(view.at) if known else None,
            stall_limit=limits.stall_after_start if starting else limits.stall_after,
            latency_factor=self._latency.feed(view.at, fast, prefill, limits),
            prefill_factor=prefill,
            prefill_lasts=derive.prefill_lasts(view),
            queued_share=derive.queued_share(view),
            kv_max=readings["kv_cache_usage_max_ratio"].value,
            running_full=derive.running_full(view),
            rejected=fast.increase("rejections"),
            work_before=self._episode.before.work if self._episode.before else None,
            decodes=view.role in (Role.SERVE, Role.DECODE),
        )
