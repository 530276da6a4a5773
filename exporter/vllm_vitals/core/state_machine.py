"""The state machine: everything that decides an engine's state lives here.

`RULES` is the whole machine. Each rule names a state, when it is entered, when it is still held (half the entry
level), and how long each must last. A condition answers True, False or None (cannot be known from this scrape: it
changes nothing until it has lasted a release time). The worst state whose rule is latched is the engine's state.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vllm_vitals.core.http_answers import FailingAnswers
from vllm_vitals.core.kv_held import KvHeld
from vllm_vitals.core.outcomes import Completions, Finishes, exceeds
from vllm_vitals.core.pace import Pace
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.vital_signs import DEFERRED

Verdict = bool | None
ENDED_IN_A_MINUTE = 10.0  # errors: an engine that ends so many requests is not stalled, whatever it makes of them


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditions look at, all from one poll. None: absent. Times in seconds, rates a second."""

    seconds: float  # length of the fast window
    work: float | None  # running + waiting now
    asleep: bool
    busy: bool  # work, tokens or finishes anywhere in the fast window
    preemptions: float | None  # in the fast window
    completions: Completions | None
    tax: float | None
    mean_waiting: float | None
    draining: bool | None  # mean waiting fell by more than 10 % over the window
    generated: float | None  # tokens in the fast window
    seconds_without_token: float | None  # since the last generated token
    generation_vs_baseline: (
        float | None
    )  # generation over that before the first preemption; inf: less work or other lengths
    seconds_without_progress: float | None  # since anything progressed, with work present
    stall_limit: float
    latency_factor: float | None  # mean inter-token latency over its baseline
    prefill_factor: float | None  # prefill work over generated tokens
    queued_share: float | None  # share of the window's scrapes with waiting >= 1
    kv_max: float | None
    running_full: float | None  # mean running over the scrapes with the cache full
    decodes: bool  # the role generates tokens
    canary_unanswered_seconds: float | None = None  # since a canary was sent that got no answer while nothing moved
    prefill_lasts: bool | None = None  # in both halves of the window
    rejected: float | None = None  # requests that the server refused in the fast window
    work_before: float | None = None  # requests present before the first preemption
    paused_since: float | None = None  # epoch s
    finishes: Finishes | None = None  # by outcome, over the shortest window that holds enough of them
    some_errors: Finishes | None = None  # by outcome, over a window long enough for a small share
    errors_per_minute: float | None = None  # requests that end in error now
    answers: FailingAnswers | None = None  # inference requests that the whole server answered with 5xx
    pace: Pace | None = None  # against the engine's usual at this load
    kv_held: KvHeld | None = None  # while nobody is present
    deferred_share: float | None = None  # of the waiting requests
    queued_seconds: float | None = None  # mean of those whose latencies are judged: the slow window
    evicted_lately: float | None = None  # preemptions in the slow window
    asked_cap: float | None = None  # the one max_tokens that all asked for, where answers are cut


def all_of(*verdicts: Verdict) -> Verdict:
    """Three-valued and: a False decides, else a None does."""
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _at_least(number: float | None, level: float) -> Verdict:
    return None if number is None else number >= level


def _at_most(number: float | None, level: float) -> Verdict:
    return None if number is None else number <= level


def stalled(f: Facts, limits: Thresholds) -> Verdict:
    """Work is present and nothing progresses, or a canary proves it. Under preemptions it is a spiral, not this."""
    if f.asleep or f.paused_since is not None:
        return False
    if (f.preemptions or 0.0) >= limits.min_preemptions and for_room(f, limits):
        return False
    if (f.errors_per_minute or 0.0) >= ENDED_IN_A_MINUTE:
        return False
    if f.canary_unanswered_seconds is not None:
        return True
    return None if f.seconds_without_progress is None else f.seconds_without_progress >= f.stall_limit


def for_room(f: Facts, limits: Thresholds) -> bool:
    """Whether evictions can be for lack of KV blocks: a cache that was never nearly full evicts for another reason."""
    return f.kv_max is None or f.kv_max >= limits.eviction_kv_ratio


SMALL_TAX = 0.25  # a thrash that still does most of its work; above it the recomputation is what makes the queue


def overloaded(f: Facts) -> bool:
    """Whether more work comes than the engine can do, whatever it evicts: a queue that stays beside a small tax.

    A queue that is deferred is none of the scheduler's: more engines would defer it as well.
    """
    if f.deferred_share is not None and f.deferred_share >= DEFERRED:
        return False
    queued = f.mean_waiting is not None and f.mean_waiting >= 1 and f.draining is False
    return queued and (f.tax is None or f.tax < SMALL_TAX)


def failing(f: Facts, limits: Thresholds) -> Verdict:
    """At least half of the finished requests end in error, and at least 10."""
    return _errors_at(f.finishes, limits.failing_share, limits.failing_errors)


def still_failing(f: Facts, limits: Thresholds) -> Verdict:
    """A quarter of them."""
    return _errors_at(f.finishes, limits.failing_share / 2, limits.failing_errors / 2)


def _errors_at(ended: Finishes | None, share: float, at_least: float) -> bool:
    return ended is not None and ended.errors >= at_least and ended.error_share >= share


def failing_answers(f: Facts, limits: Thresholds) -> Verdict:
    """At least half of the server's inference requests are answered 5xx, and at least 10; good finishes halved."""
    a = f.answers
    return a is not None and a.failed >= limits.failing_errors and a.share >= limits.failing_share and a.served_less


def still_failing_answers(f: Facts, limits: Thresholds) -> Verdict:
    """A quarter of the answers."""
    a = f.answers
    return a is not None and a.failed >= limits.failing_errors / 2 and a.share >= limits.failing_share / 2


def some_fail(f: Facts, limits: Thresholds) -> Verdict:
    """Errors beside good finishes: at least 5 %, and at least 10."""
    return _errors_at(f.some_errors, limits.degraded_error_share, limits.failing_errors)


def still_some_fail(f: Facts, limits: Thresholds) -> Verdict:
    """Half the share."""
    return _errors_at(f.some_errors, limits.degraded_error_share / 2, limits.failing_errors / 2)


def slower(f: Facts, limits: Thresholds) -> Verdict:
    """Slower than its usual at equal running, resident KV and prefill share; or half its usual draft acceptance."""
    if not f.decodes:
        return False
    return None if f.pace is None else f.pace.rejected or f.pace.factor >= limits.degraded_latency_factor


def still_slower(f: Facts, limits: Thresholds) -> Verdict:
    """Half of what it is slower by."""
    if not f.decodes:
        return False
    half = 1 + (limits.degraded_latency_factor - 1) / 2
    return None if f.pace is None else f.pace.rejected or f.pace.factor >= half


def kv_held(f: Facts, limits: Thresholds) -> Verdict:
    """KV blocks in use while no request is present, for a minute; or an idle floor that rises from lull to lull.

    A request that comes and goes takes nothing back: only the next lull, or a minute of requests, does.
    """
    held = f.kv_held
    if held is None or held.usage < limits.kv_held_ratio:
        return False
    if held.present:
        return None
    return held.seconds >= limits.kv_held_after or bool(held.rising)


def _evicting(f: Facts, r_level: float, repeat_level: float, limits: Thresholds) -> Verdict:
    """R or the repeat share at its level, beyond chance. Without 20 completions in 10 min: not proven by this."""
    c = f.completions
    if c is None or c.preemptions is None or not for_room(f, limits):
        return False
    by_ratio = exceeds(c.preemptions, c.completions, r_level, limits.min_preemptions)
    by_repeat = c.repeated is not None and (
        c.preemptions >= limits.min_preemptions and exceeds(c.repeated, c.completions, repeat_level, 1.0)
    )
    return by_ratio or by_repeat


def thrashing(f: Facts, limits: Thresholds) -> Verdict:
    """Preemption/recompute loop: R or the repeat share is high and the queue does not drain."""
    if f.preemptions is not None and f.preemptions < 1:
        return False
    queue = all_of(_at_least(f.mean_waiting, 1.0), None if f.draining is None else not f.draining)
    return all_of(
        _evicting(f, limits.thrash_preemptions_per_completion, limits.thrash_repeat_ratio, limits),
        _at_least(f.preemptions, 1.0),
        queue,
    )


def still_thrashing(f: Facts, limits: Thresholds) -> Verdict:
    """Half the entry level, plainly counted."""
    c = f.completions
    if c is None or c.ratio is None:
        return all_of(_at_least(f.preemptions, limits.min_preemptions / 2), _at_least(f.mean_waiting, 0.5))
    high = c.ratio >= limits.thrash_preemptions_per_completion / 2 or (
        c.repeat_ratio is not None and c.repeat_ratio >= limits.thrash_repeat_ratio / 2
    )
    return all_of(high, _at_least(f.preemptions, 1.0), _at_least(f.mean_waiting, 0.5))


def redoing(f: Facts, limits: Thresholds) -> Verdict:
    """Thrashing in which the server recomputes about as much as it computes."""
    thrashes = thrashing(f, limits)
    if thrashes is False:
        return False
    c = f.completions
    enough = c is not None and c.preemptions is not None and exceeds(
        c.preemptions, c.completions, limits.spiral_preemptions_per_completion, limits.min_preemptions
    )  # fmt: skip
    return all_of(thrashes, enough, _at_least(f.tax, limits.spiral_recompute_tax))


def still_redoing(f: Facts, limits: Thresholds) -> Verdict:
    """Half of R and half of the tax."""
    c = f.completions
    ratio = None if c is None else c.ratio
    return all_of(
        still_thrashing(f, limits),
        ratio is not None and ratio >= limits.spiral_preemptions_per_completion / 2,
        _at_least(f.tax, limits.spiral_recompute_tax / 2),
    )


def barren(f: Facts, limits: Thresholds) -> Verdict:
    """Preemption after preemption and not one generated token."""
    return all_of(
        for_room(f, limits),
        _at_least(f.preemptions, limits.min_preemptions),
        _at_least(f.seconds_without_token, limits.spiral_silence),
        _at_least(f.work, 1.0),
    )


def still_barren(f: Facts, limits: Thresholds) -> Verdict:
    """Half the preemptions, and still no token."""
    return all_of(
        _at_least(f.preemptions, limits.min_preemptions / 2),
        _at_least(f.seconds_without_token, limits.spiral_silence / 2),
    )


def collapsed(f: Facts, limits: Thresholds) -> Verdict:
    """Generation fell to a fraction of what it was before the first preemption, under no less work."""
    return all_of(
        for_room(f, limits),
        _at_least(f.preemptions, limits.min_preemptions),
        _at_most(f.generation_vs_baseline, limits.spiral_generation_share),
    )


def still_collapsed(f: Facts, limits: Thresholds) -> Verdict:
    """Half the preemptions, and generation below twice that fraction."""
    return all_of(
        _at_least(f.preemptions, limits.min_preemptions / 2),
        _at_most(f.generation_vs_baseline, 2 * limits.spiral_generation_share),
    )


def starved(f: Facts, limits: Thresholds) -> Verdict:
    """Decode waits for prefill: gaps far above their baseline while prefill work is many times the generation."""
    if not f.decodes:
        return False
    return all_of(
        not f.preemptions,
        f.seconds >= limits.fast_window * 0.9,
        _at_least(f.latency_factor, limits.starved_latency_factor),
        _at_least(f.prefill_factor, limits.starved_prefill_factor),
        f.prefill_lasts is not False,
    )


def still_starved(f: Facts, limits: Thresholds) -> Verdict:
    """Half of either factor."""
    return all_of(
        not f.preemptions,
        _at_least(f.latency_factor, limits.starved_latency_factor / 2),
        _at_least(f.prefill_factor, limits.starved_prefill_factor / 2),
    )


def preempting(f: Facts, _: Thresholds) -> Verdict:
    """Any preemption in the window."""
    return _at_least(f.preemptions, 1.0)


def saturated(f: Facts, limits: Thresholds) -> Verdict:
    """A queue in most of the window's scrapes, and no eviction."""
    return all_of(_at_least(f.queued_share, limits.saturated_share), not f.preemptions)


def still_saturated(f: Facts, limits: Thresholds) -> Verdict:
    """A queue in half as many scrapes."""
    return all_of(_at_least(f.queued_share, limits.saturated_share / 2), not f.preemptions)


def kv_pressure(f: Facts, limits: Thresholds) -> Verdict:
    """The cache was nearly full, and nothing has been preempted yet."""
    return all_of(_at_least(f.kv_max, limits.kv_pressure_ratio), not f.preemptions)


Condition = Callable[[Facts, Thresholds], Verdict]
Seconds = Callable[[Thresholds], float]


def at_once(_: Thresholds) -> float:
    """No wait: the condition itself looks over a window."""
    return 0.0


def held(limits: Thresholds) -> float:
    """The hold time."""
    return limits.hold


def held_degraded(limits: Thresholds) -> float:
    """The hold time of a slowdown."""
    return limits.degraded_hold


def released(limits: Thresholds) -> float:
    """The release time."""
    return limits.release


@dataclass(frozen=True, slots=True)
class Rule:
    """Enter ``state`` once ``enter`` held for ``hold``; leave once ``stay`` failed for ``release``."""

    state: State
    enter: Condition
    stay: Condition
    hold: Seconds
    release: Seconds


RULES: tuple[Rule, ...] = (
    Rule(State.STALLED, stalled, stalled, at_once, at_once),
    Rule(State.FAILING, failing, still_failing, held, released),
    Rule(State.FAILING, failing_answers, still_failing_answers, held, released),
    Rule(State.DEATH_SPIRAL, redoing, still_redoing, held, released),
    Rule(State.DEATH_SPIRAL, barren, still_barren, at_once, released),
    Rule(State.DEATH_SPIRAL, collapsed, still_collapsed, held, released),
    Rule(State.THRASHING, thrashing, still_thrashing, held, released),
    Rule(State.STARVED, starved, still_starved, at_once, released),
    Rule(State.DEGRADED, slower, still_slower, held_degraded, released),
    Rule(State.DEGRADED, some_fail, still_some_fail, held, released),
    Rule(State.KV_HELD, kv_held, kv_held, at_once, at_once),
    Rule(State.PREEMPTING, preempting, preempting, at_once, at_once),
    Rule(State.SATURATED, saturated, still_saturated, at_once, at_once),
    Rule(State.KV_PRESSURE, kv_pressure, kv_pressure, at_once, at_once),
)
_RULES_OF = {state: tuple(rule for rule in RULES if rule.state is state) for state in {rule.state for rule in RULES}}


@dataclass(slots=True)
class _Latch:
    """One rule's memory: whether it holds, and since when its condition has said otherwise."""

    active: bool = False
    pending_since: float | None = None
    unknown_since: float | None = None

    @property
    def changing(self) -> bool:
        return self.pending_since is not None or self.unknown_since is not None

    def update(self, rule: Rule, verdict: Verdict, limits: Thresholds, now: float) -> bool:
        if verdict is None:
            self.unknown_since = now if self.unknown_since is None else self.unknown_since
            if now - self.unknown_since < limits.release:
                return self.active
            verdict = False
        else:
            self.unknown_since = None
        if verdict is self.active:
            self.pending_since = None
            return self.active
        self.pending_since = now if self.pending_since is None else self.pending_since
        wait = (rule.release if self.active else rule.hold)(limits)
        if now - self.pending_since >= wait:
            self.active, self.pending_since = verdict, None
        return self.active


def recovering(state: State, facts: Facts, limits: Thresholds) -> bool:
    """Whether a state that lasts beyond its cause is said, and its conditions hold no longer at their entry level."""
    rules = [rule for rule in _RULES_OF.get(state, ()) if rule.release(limits) > 0]
    return bool(rules) and not any(rule.enter(facts, limits) for rule in rules)


class Machine:
    """Remembers which rules are latched for one engine."""

    def __init__(self) -> None:
        self.clear()

    def step(self, facts: Facts | None, limits: Thresholds, now: float) -> State:
        """The state after this poll. ``facts`` None: not enough samples yet, so nothing changes but the calm states."""
        if facts is None:
            return min((rule.state for rule, latch in self._rules if latch.active), key=_rank, default=State.UNKNOWN)
        holding = []
        for rule, latch in self._rules:
            active = latch.active
            verdict = (rule.stay if active else rule.enter)(facts, limits)
            if verdict is not active or latch.changing:
                active = latch.update(rule, verdict, limits, now)
            if active:
                holding.append(rule.state)
        worst = min(holding, key=_rank, default=None)
        if facts.asleep:
            return State.ASLEEP
        if facts.paused_since is not None:
            return State.PAUSED
        return worst if worst is not None else calm(facts)

    def pending(self, now: float) -> tuple[State, float] | None:
        """The worst state whose conditions are met and not yet long enough, and for how many seconds they are."""
        waits = [
            (rule.state, now - latch.pending_since)
            for rule, latch in self._rules
            if not latch.active and latch.pending_since is not None
        ]
        return min(waits, key=lambda wait: wait[0].rank, default=None)

    def clear(self) -> None:
        """Forget everything: the engine went down, so what it did before proves nothing."""
        self._rules = [(rule, _Latch()) for rule in RULES]


def _rank(state: State) -> int:
    return state.rank


def calm(facts: Facts) -> State:
    """The state when no rule holds."""
    if facts.work is None or facts.generated is None:
        return State.UNKNOWN
    return State.HEALTHY if facts.busy else State.IDLE
