"""One engine's evaluator: samples in, `EngineSnapshot` out.

It composes window, checks, signals, history and state machine. What is published is vLLM's own sample; what is judged
is that without the monitor's own requests and without the evictions of a pause.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_vitals.core import contradictions, derive, outcomes
from vllm_vitals.core.advice import TRUNCATED, advise
from vllm_vitals.core.aftermath import Aftermath
from vllm_vitals.core.answer_lengths import AnswerLengths
from vllm_vitals.core.derive import WindowView
from vllm_vitals.core.evidence import evidence
from vllm_vitals.core.history import Episode, Progress, UsefulBaseline, UsualLatency
from vllm_vitals.core.kv_held import KvHeld, KvHeldWatch
from vllm_vitals.core.pace import UsualPace
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.server_view import NO_SERVER_VIEW, ServerView
from vllm_vitals.core.snapshot import Contradiction, EngineKey, EngineSnapshot, Reading, Role, checked
from vllm_vitals.core.state_machine import Facts, Machine
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.unknowns import unknowns
from vllm_vitals.core.window import Window

# A proven state outlives a spell in which the server answers without metrics, with its age.
NOT_LOOKED = "vllm-vitals itself could not look: that says nothing about the server"
ORDER_UNKNOWN = (
    "whether it is paused: /pause and /resume were both called since the scrape before; GET /is_paused tells"
)
EVICTS = (State.DEATH_SPIRAL, State.THRASHING)
OUTLIVES_BLINDNESS = (State.STALLED, State.FAILING, State.DEATH_SPIRAL, State.THRASHING)


@dataclass(frozen=True, slots=True)
class Derived:
    """One poll's readings, and the facts that the state is decided on."""

    readings: Mapping[str, Reading]
    facts: Facts
    view: WindowView
    found: tuple[Contradiction, ...]


class EngineEvaluator:
    """Judges one engine. ``observe`` takes a sample, ``miss`` a poll that gave none; both answer what is known now."""

    def __init__(self, key: EngineKey, limits: Thresholds, role: Role | None = None) -> None:
        self._limits, self._role = limits, role
        self._window = Window(fine=limits.fast_window * 1.5, reach=limits.slow_window)
        self._machine = Machine()
        self._progress, self._episode = Progress(), Episode()
        self._latency, self._baseline, self._pace = UsualLatency(), UsefulBaseline(), UsualPace()
        self._held = KvHeldWatch()
        self._evictions = _PauseEvictions()
        self._aftermath = Aftermath()
        self._lengths = AnswerLengths()
        self._seen_at: float | None = None
        self._since = 0.0
        self._seconds: Mapping[State, float] = {}
        self._spirals = 0
        self._now = EngineSnapshot(key, State.UNKNOWN, since=0.0, at=None)

    def observe(
        self,
        at: float,
        sample: EngineSample,
        settings: Mapping[str, str],
        server: ServerView = NO_SERVER_VIEW,
        counted: EngineSample | None = None,
    ) -> EngineSnapshot:
        """Judge a good sample taken at ``at`` (epoch s), with what is known of the whole server.

        ``counted`` is the sample without the monitor's own requests, where it sends any.
        """
        self._count(at)
        if server.withheld:
            self._forget()
            return self._publish(
                State.UNKNOWN, at, at, sample=sample, unknown=("the state: what the page says contradicts itself",)
            )
        judged = self._evictions.without(sample if counted is None else counted, server)
        paused = server.pause.since is not None
        if self._now.state is State.PAUSED and not paused:
            self._begin()  # what waited during the pause is no queue of now
        if self._window.push(at, judged):
            self._held = KvHeldWatch()
        self._progress.feed(at, judged, self._window.previous, paused=paused)
        self._episode.feed(self._window, self._limits)
        held = self._held.feed(at, judged)
        derived = self._derive(at, judged, settings, server, held)
        facts = None if derived is None else derived.facts
        if sample.asleep or paused:
            self._machine.clear()  # sleeping or pausing ends whatever went on
        resting = State.ASLEEP if sample.asleep else State.PAUSED if paused else None
        state = resting or self._machine.step(facts, self._limits, at)
        followed = self._aftermath.feed(at, judged, settings, state in EVICTS)
        if derived is None:
            reason = f"needs {self._limits.min_span:g} s of samples since the engine started"
            return self._publish(state, at, at, sample=sample, unknown=(reason,), followed=followed)
        pending = self._machine.pending(at)
        return self._publish(
            state,
            at,
            at,
            sample=sample,
            role=derived.view.role,
            readings=derived.readings,
            evidence=evidence(
                state,
                derived.facts,
                derived.readings,
                derived.view.sample,
                self._limits,
                pending,
                derived.view.settings,
            ),
            advice=advise(state, derived.facts, derived.readings, derived.view.sample, derived.view.settings),
            unknown=(
                *unknowns(
                    state, derived.facts, derived.readings, derived.view.sample, self._limits, server.canary.answered
                ),
                *((ORDER_UNKNOWN,) if server.pause.order_unknown and state is State.STALLED else ()),
            ),
            window_s=derived.facts.seconds,
            contradictions=derived.found,
            followed=followed,
        )

    def _forget(self) -> None:
        """Forget all but the day: what was seen is not one engine's."""
        self._begin()
        self._progress = Progress()
        self._machine.clear()

    def _begin(self) -> None:
        """Begin a new window."""
        self._window = Window(fine=self._limits.fast_window * 1.5, reach=self._limits.slow_window)
        self._episode, self._held = Episode(), KvHeldWatch()

    def miss(self, at: float, failed: State | None) -> EngineSnapshot:
        """Take in a poll without a sample. ``failed``: down, blind or unknown from then on; None: nothing changes."""
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
        """Add the seconds since the last poll to the state held until now, at most a window's."""
        before, self._seen_at = self._seen_at, at
        if before is not None:
            passed, held = min(max(0.0, at - before), self._limits.fast_window), self._now.state
            self._seconds = {**self._seconds, held: self._seconds.get(held, 0.0) + passed}

    def _publish(self, state: State, at: float, sampled_at: float | None, **said: Any) -> EngineSnapshot:
        """Return what is known after the poll at ``at``; of what is not said only the role stays as it was."""
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
        self, at: float, sample: EngineSample, settings: Mapping[str, str], server: ServerView, held: KvHeld | None
    ) -> Derived | None:
        """Return readings and facts, or None while the window is too short to say anything."""
        seen = derive.view_at(at, sample, settings, self._window, self._limits, self._role, server.logged_capacity)
        if seen is None:
            return None
        view, found = contradictions.examine(seen)
        readings = {
            **derive.readings(view),
            "inflight_output_tokens_estimate": self._progress.inflight_estimate(sample),
            "useful_tokens_baseline_per_second": self._baseline.feed(at, view.fast, view.means.running, self._limits),
        }
        readings |= self._lengths.feed(at, view.slow, readings, TRUNCATED)
        readings = checked(readings)
        facts = self._facts(view, readings, server, held)
        if server.canary.silent_since is not None and not sample.updating_weights:
            facts = replace(facts, canary_unanswered_seconds=at - server.canary.silent_since)
        return Derived(readings, facts, view, found)

    def _facts(
        self, view: WindowView, readings: Mapping[str, Reading], server: ServerView, held: KvHeld | None
    ) -> Facts:
        """Return what the state is decided on: the windows, and what this engine's history says of them."""
        limits, sample, fast = self._limits, view.sample, view.fast
        known = sample.running is not None and sample.waiting is not None
        starting = not sample.completions or self._progress.still_stepping(view.at, limits.stall_after)
        prefill = derive.prefill_factor(fast)
        crowded = prefill is None or prefill >= limits.starved_prefill_factor  # else its halves decide nothing
        tax = readings["recompute_tax_ratio"]
        errors = None if view.later is None else view.later.rate("errors")
        return Facts(
            seconds=fast.seconds,
            work=sample.work if known else None,
            asleep=bool(sample.asleep),
            busy=derive.busy(view),
            preemptions=fast.increase("preemptions"),
            completions=view.finished,
            # where it is not known whether prefixes are cached, only what the tax is at least proves anything
            tax=tax.lower if sample.caches_prefixes is None and not sample.kv_restored else tax.value,
            mean_waiting=view.means.waiting,
            draining=derive.draining(view),
            generated=fast.increase("generation_tokens"),
            seconds_without_token=self._progress.seconds_without_token(view.at),
            generation_vs_baseline=self._episode.generation_vs_baseline(fast, view.means.work),
            seconds_without_progress=self._progress.seconds_without_progress(view.at) if known else None,
            stall_limit=limits.stall_after_start if starting else limits.stall_after,
            latency_factor=self._latency.feed(view.at, fast, prefill, limits),
            prefill_factor=prefill,
            prefill_lasts=derive.prefill_lasts(view) if crowded else None,
            queued_share=derive.queued_share(view),
            kv_max=readings["kv_cache_usage_max_ratio"].value,
            running_full=derive.running_full(view),
            rejected=fast.increase("rejections"),
            work_before=self._episode.before.work if self._episode.before else None,
            decodes=view.role in (Role.SERVE, Role.DECODE),
            paused_since=server.pause.since,
            finishes=outcomes.finishes(self._window, view.slow, limits),
            some_errors=outcomes.some_errors(self._window, view.slow, limits),
            errors_per_minute=None if errors is None else errors * 60,
            answers=server.answers.failing,
            pace=self._pace.feed(view, limits),
            kv_held=held,
            deferred_share=derive.deferred_share(view),
            queued_seconds=view.slow.mean("queue_time_seconds"),
            evicted_lately=view.slow.increase("preemptions"),
            asked_cap=self._lengths.cap,
        )


class _PauseEvictions:
    """Preemptions that a pause made: at most one for each request that ran before it, counted with its next token."""

    def __init__(self) -> None:
        self._forgiven = 0.0
        self._left = 0.0
        self._running = 0.0
        self._last: float | None = None

    def without(self, sample: EngineSample, server: ServerView) -> EngineSample:
        """Return the sample without canaries."""
        count, last = sample.preemptions, self._last
        if count is None:
            return sample
        if last is None or count < last:
            self._forgiven = self._left = 0.0
            risen = 0.0
        else:
            risen = count - last
        if not server.pause.evicting:
            self._left, self._running = 0.0, sample.running or 0.0
        elif not self._left and self._running:
            self._left, self._running = self._running, 0.0
        taken = min(risen, self._left)
        self._left -= taken
        self._forgiven += taken
        self._last = count
        return replace(sample, preemptions=count - self._forgiven) if self._forgiven else sample
