"""One engine's judge: samples in, `EngineSnapshot` out. It composes window, signals, history and state machine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from exporter.core import signals
from exporter.core.advice import advise
from exporter.core.canary import NO_CANARY, Verdict
from exporter.core.evidence import evidence, unknowns
from exporter.core.history import Episode, Progress, UsefulBaseline, UsualLatency
from exporter.core.sample import EngineSample
from exporter.core.signals import Completions
from exporter.core.snapshot import EngineKey, EngineSnapshot, Reading, Role, State, absent
from exporter.core.state import Facts, Machine
from exporter.core.thresholds import Thresholds
from exporter.core.window import Span, Window

# A proven state outlives a spell in which the server answers without metrics, with its age.
OUTLIVES_BLINDNESS = (State.STALLED, State.DEATH_SPIRAL, State.THRASHING)


@dataclass(frozen=True, slots=True)
class Derived:
    """One poll's readings, and the facts that the state is decided on."""

    readings: Mapping[str, Reading]
    facts: Facts
    role: Role


class EngineJudge:
    """Judges one engine. ``observe`` takes a sample, ``miss`` a poll that gave none; both answer what is known now."""

    def __init__(self, key: EngineKey, limits: Thresholds, role: Role | None = None) -> None:
        self._limits, self._role = limits, role
        self._window = Window(fine=limits.fast_window * 1.5, reach=limits.slow_window)
        self._machine = Machine()
        self._progress, self._episode = Progress(), Episode()
        self._latency, self._baseline = UsualLatency(), UsefulBaseline()
        self._last: EngineSample | None = None
        self._seen_at: float | None = None
        self._now = EngineSnapshot(key, State.UNKNOWN, since=0.0, at=None)

    def observe(
        self, at: float, sample: EngineSample, settings: Mapping[str, str], canary: Verdict = NO_CANARY
    ) -> EngineSnapshot:
        """Judge a good sample taken at ``at`` (epoch s), with what canaries have proven of the server."""
        if self._window.push(at, sample):
            self._last = None
        self._progress.feed(at, sample, self._last)
        self._episode.feed(self._window, self._limits)
        self._last = sample
        derived = self._derive(at, sample, settings, canary)
        facts = None if derived is None else derived.facts
        if sample.asleep:
            self._machine.clear()  # sleeping ends whatever went on
        state = State.ASLEEP if sample.asleep else self._machine.step(facts, self._limits, at)
        snapshot = replace(self._enter(state, at), at=at, sample=sample)
        if derived is None:
            reason = f"needs {self._limits.min_span:g} s of samples since the engine started"
            return self._publish(
                replace(snapshot, readings={}, evidence=(), advice=(), unknown=(reason,), window_s=None)
            )
        brewing = self._machine.brewing(at)
        return self._publish(
            replace(
                snapshot,
                role=derived.role,
                readings=derived.readings,
                evidence=evidence(state, derived.facts, derived.readings, sample, self._limits, brewing),
                advice=advise(state, derived.facts, derived.readings, sample, settings, derived.role),
                unknown=unknowns(state, derived.facts, derived.readings, sample, self._limits, canary.answered),
                window_s=derived.facts.seconds,
            )
        )

    def miss(self, at: float, failed: State | None) -> EngineSnapshot:
        """A poll without a sample. ``failed`` is down or blind once proven; None before, when nothing changes."""
        if failed is None:
            return self._publish(self._count(at))
        age = at - (self._now.at if self._now.at is not None else at)
        proven = self._now.state in OUTLIVES_BLINDNESS and age <= self._limits.blind_hold
        if failed is State.BLIND and proven:
            said = f"its metrics have been unreadable for {age:.0f} s: this is what they showed last"
            held = self._count(at)
            return self._publish(replace(held, sample=None, readings={}, unknown=(said,), window_s=None))
        self._machine.clear()  # what it did before proves nothing any more
        gone = replace(
            self._enter(failed, at), sample=None, readings={}, evidence=(), advice=(), unknown=(), window_s=None
        )
        return self._publish(replace(gone, advice=advise(failed, None, {}, None, {}, gone.role)))

    def _enter(self, state: State, at: float) -> EngineSnapshot:
        """The last snapshot moved to ``state``, with its time and spirals counted."""
        counted = self._count(at)
        if state is counted.state and counted.since:
            return counted
        spirals = counted.death_spirals + (state is State.DEATH_SPIRAL)
        return replace(counted, state=state, since=at, death_spirals=spirals)

    def _count(self, at: float) -> EngineSnapshot:
        """Seconds since the last poll go to the state held until now; a pause longer than a window is not counted."""
        before, self._seen_at = self._seen_at, at
        if before is None:
            return self._now
        passed = min(max(0.0, at - before), self._limits.fast_window)
        held = self._now.state
        return replace(
            self._now, state_seconds={**self._now.state_seconds, held: self._now.state_seconds.get(held, 0.0) + passed}
        )

    def _publish(self, snapshot: EngineSnapshot) -> EngineSnapshot:
        self._now = snapshot
        return snapshot

    def _derive(self, at: float, sample: EngineSample, settings: Mapping[str, str], canary: Verdict) -> Derived | None:
        """Readings and facts, or None while the window is too short to say anything."""
        limits, fast = self._limits, self._window.span(self._limits.fast_window)
        slow = self._window.span(limits.slow_window)
        if fast is None or slow is None or fast.seconds < limits.min_span:
            return None
        samples = self._window.within(limits.fast_window)
        role = self._role or signals.infer_role(slow, limits) or Role.SERVE
        finished = signals.completions(self._window, limits)
        readings = self._readings(at, sample, fast, slow, samples, finished, role, settings)
        facts = self._facts(at, sample, fast, samples, finished, readings, role)
        if canary.silent_since is not None and not sample.updating_weights:
            facts = replace(facts, canary_silent_for=at - canary.silent_since)
        return Derived(readings, facts, role)

    def _readings(
        self,
        at: float,
        sample: EngineSample,
        fast: Span,
        slow: Span,
        samples: list[EngineSample],
        finished: Completions | None,
        role: Role,
        settings: Mapping[str, str],
    ) -> dict[str, Reading]:
        limits = self._limits
        useful = signals.useful_rate(fast)
        context = signals.resident_context(samples, finished.span if finished else slow)
        preemption_rate = fast.rate("preemptions")
        tax = signals.recompute_tax(preemption_rate, useful, context, signals.lost_share(sample, limits))
        few = f"fewer than {limits.min_completions:g} requests finished in the {slow.seconds:.0f} s seen"
        return {
            "preemptions_per_second": signals.value(preemption_rate, "the server has no preemption counter"),
            "preemptions_per_completion": signals.value(
                finished.ratio if finished else None,
                few if finished is None else "the server has no preemption counter",
            ),
            "repeat_preemption_ratio": signals.value(
                finished.repeat_ratio if finished else None, few if finished is None else "needs vLLM 0.30 or later"
            ),
            "recompute_tax_ratio": tax,
            "kv_cache_usage_max_ratio": signals.largest_usage(samples),
            "kv_cache_demand_ratio": signals.demand(samples),
            "kv_cache_full_windows": signals.full_windows(sample, settings),
            **signals.tails(slow, role),
            **signals.lengths(slow, role),
            "stall_gaps_per_second": signals.stall_gaps(fast),
            "truncated_ratio": signals.truncated(slow, role),
            "prefix_cache_hit_ratio": signals.prefix_hit_ratio(fast),
            "inflight_output_tokens_estimate": self._progress.inflight_estimate(sample),
            "abandoned_requests_per_second": signals.abandoned(fast),
            "expected_wait_seconds": _expected_wait(sample, finished, fast),
            "useful_tokens_per_second": signals.value(useful, "needs token counters"),
            "useful_tokens_baseline_per_second": self._baseline.feed(
                at, fast, signals.mean_of(samples, "running"), limits
            ),
        }

    def _facts(
        self,
        at: float,
        sample: EngineSample,
        fast: Span,
        samples: list[EngineSample],
        finished: Completions | None,
        readings: Mapping[str, Reading],
        role: Role,
    ) -> Facts:
        limits = self._limits
        generated = fast.increase("generation_tokens")
        known = sample.running is not None and sample.waiting is not None
        work = (sample.running or 0.0) + (sample.waiting or 0.0)
        prefill = _prefill_factor(fast, generated)
        starting = sample.completions == 0 or self._progress.still_stepping(at, limits.stall_after)
        moved = any(map(fast.increase, ("generation_tokens", "prompt_tokens", "completions")))
        busy = moved or any((s.running or 0.0) + (s.waiting or 0.0) > 0 for s in samples)
        return Facts(
            seconds=fast.seconds,
            work=work if known else None,
            asleep=bool(sample.asleep),
            busy=busy,
            preemptions=fast.increase("preemptions"),
            completions=finished,
            tax=readings["recompute_tax_ratio"].value,
            mean_waiting=signals.mean_of(samples, "waiting"),
            draining=_draining(samples),
            generated=generated,
            silent_for=self._progress.silent_for(at),
            collapsed=self._episode.collapsed(fast, samples, limits, limits.spiral_generation_share),
            still_collapsed=self._episode.collapsed(fast, samples, limits, 2 * limits.spiral_generation_share),
            stuck_for=self._progress.stuck_for(at) if known else None,
            stall_limit=limits.stall_after_start if starting else limits.stall_after,
            latency_factor=self._latency.feed(at, fast, prefill, limits),
            prefill_factor=prefill,
            prefill_lasts=_prefill_lasts(fast, self._window.span(limits.fast_window / 2), limits),
            queued_share=_queued_share(samples),
            kv_max=readings["kv_cache_usage_max_ratio"].value,
            running_full=signals.mean_of(_full(samples, limits), "running"),
            rejected=fast.increase("rejections"),
            work_before=self._episode.before.work if self._episode.before else None,
            decodes=role in (Role.SERVE, Role.DECODE),
        )


def _draining(samples: list[EngineSample]) -> bool | None:
    """Whether the later half of the window waits less than 90 % of its earlier half."""
    half = len(samples) // 2
    earlier, later = signals.mean_of(samples[:half], "waiting"), signals.mean_of(samples[half:], "waiting")
    return None if earlier is None or later is None else later < 0.9 * earlier


def _full(samples: list[EngineSample], limits: Thresholds) -> list[EngineSample]:
    return [sample for sample in samples if sample.kv_usage is not None and sample.kv_usage >= limits.kv_pressure_ratio]


def _queued_share(samples: list[EngineSample]) -> float | None:
    known = [sample.waiting for sample in samples if sample.waiting is not None]
    return sum(waiting >= 1 for waiting in known) / len(known) if known else None


def _prefill_factor(span: Span, generated: float | None) -> float | None:
    """Prefill work over generation: computed prompt tokens, plus KV growth that generation does not explain.

    vLLM counts a prompt only at its first output, so during a long prefill KV usage alone moves.
    """
    prompts = signals.computed_prompt_tokens(span)
    if prompts is None or generated is None:
        return None
    grown = (span.last.kv_usage or 0.0) - (span.first.kv_usage or 0.0)
    hidden = max(0.0, grown * (span.last.kv_capacity_tokens or 0.0) - generated)
    return (prompts + hidden) / max(generated, 1.0)


def _prefill_lasts(fast: Span, later: Span | None, limits: Thresholds) -> bool | None:
    """Whether both halves of the window show prefill work: one prompt at its edge starves nobody for a minute."""
    if later is None or later.start <= fast.start:
        return None
    earlier = Span(fast.start, later.start, fast.first, later.first)
    factors = [_prefill_factor(half, half.increase("generation_tokens")) for half in (earlier, later)]
    level = limits.starved_prefill_factor / 2
    return None if None in factors else all(factor is not None and factor >= level for factor in factors)


def _expected_wait(sample: EngineSample, finished: Completions | None, fast: Span) -> Reading:
    """Waiting requests over the completion rate: how long the last in line waits."""
    if sample.waiting is None:
        return absent("needs the waiting gauge")
    if sample.waiting == 0:
        return Reading(0.0)
    rate = finished.completions / finished.span.seconds if finished else fast.rate("completions")
    return Reading(sample.waiting / rate) if rate else absent("nothing finishes, so the wait has no end in sight")
