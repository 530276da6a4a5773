"""Whether a change worked: what is said of each engine in the minutes after it.

Input: the change, and every poll since. Output: an `Outcome` an engine. Invariant: it worked only where evictions that
were seen after the change have been over for `QUIET_S`; where none was seen, that is said instead.
"""

from dataclasses import dataclass, field

from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, TargetSnapshot

QUIET_S = 30.0  # without preemptions: half the fast window, three scrapes of a slow Prometheus
FELL = 0.9  # of those inside at first: below, the cap keeps requests out and they drain
CAP = "gateway_concurrency"
ALIASES = {"cap": CAP, "concurrency": CAP}

WORKED, DRAINING, NOT_IN_FORCE, NO_EFFECT, CALM, TOO_EARLY = (
    "worked", "draining", "not in force", "no effect", "calm", "too early",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One knob that was set to a value, outside of us."""

    knob: str
    value: str

    @property
    def number(self) -> float | None:
        """The value as a number."""
        try:
            return float(self.value)
        except ValueError:
            return None


def change(text: str) -> Change:
    """Parse ``NAME=VALUE``; ``cap`` stands for a cap at the gateway. Raises `ValueError`."""
    name, equals, value = (part.strip() for part in text.partition("="))
    found = Change(ALIASES.get(name, name), value)
    if not (name and equals and value):
        raise ValueError(f"expected NAME=VALUE such as cap=5, got {text!r}")
    if found.knob == CAP and (found.number is None or found.number < 1):
        raise ValueError(f"{name}: expected a number of requests above 0, got {value!r}")
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """``word``: worked, draining, not in force, no effect, calm, too early. ``text`` says it with its numbers."""

    engine: EngineKey
    word: str
    text: str


@dataclass(slots=True)
class _Seen:
    """Times in epoch s; ``inside`` are running and waiting requests."""

    start: float
    at: float
    preemptions: float | None
    first_inside: float
    inside: float
    waiting: float
    evicted: float = 0.0
    evicted_at: float | None = None


@dataclass(slots=True)
class FollowUp:
    """Collects polls after a change."""

    change: Change
    _engines: dict[EngineKey, _Seen] = field(default_factory=dict)
    _settings: dict[str, dict[str, str]] = field(default_factory=dict)

    def see(self, poll: TargetSnapshot) -> None:
        """Take in one poll."""
        self._settings[poll.target] = dict(poll.settings)
        for engine in poll.engines:
            self._take(engine)

    def _take(self, engine: EngineSnapshot) -> None:
        sample, at = engine.sample, engine.at
        if sample is None or at is None or sample.running is None:
            return
        waiting = sample.waiting or 0.0
        inside = sample.running + waiting
        seen = self._engines.get(engine.key)
        if seen is None:
            seen = self._engines[engine.key] = _Seen(at, at, sample.preemptions, inside, inside, waiting)
        now, before = sample.preemptions, seen.preemptions
        if now is not None and before is not None and now != before:  # a reset begins at 0
            seen.evicted += now - before if now > before else now
            seen.evicted_at = at if now else seen.evicted_at
        seen.preemptions = now if now is not None else before
        seen.at, seen.inside, seen.waiting = at, inside, waiting

    def outcomes(self) -> list[Outcome]:
        """Return what came of it, an engine each."""
        return [Outcome(key, *self._outcome(key, seen)) for key, seen in sorted(self._engines.items())]

    def _outcome(self, key: EngineKey, seen: _Seen) -> tuple[str, str]:
        change, passed = self.change, seen.at - seen.start
        known = self._settings.get(key.target, {}).get(change.knob)
        if known is not None and _differ(known, change.value):
            return NOT_IN_FORCE, f"the server still has {change.knob}={known}: restart it with the new value"
        quiet = seen.at - (seen.start if seen.evicted_at is None else seen.evicted_at)
        if quiet >= QUIET_S and seen.evicted_at is None:
            return CALM, (
                f"no preemption in {passed:.0f} s, so nothing was left to end; {seen.waiting:.0f} wait: it may have "
                "been over before"
            )
        if quiet >= QUIET_S and seen.evicted_at is not None:
            after = seen.evicted_at - seen.start
            return WORKED, f"preemptions 0 after {after:.0f} s, for {quiet:.0f} s now; {seen.waiting:.0f} wait"
        if passed < QUIET_S:
            return TOO_EARLY, f"only {passed:.0f} s were seen: observe for 2 minutes"
        return self._still(seen, passed)

    def _still(self, seen: _Seen, passed: float) -> tuple[str, str]:
        """Return why evictions go on: a cap that leaves many inside, one that does not hold, or one that is no cure."""
        said, cap = f"{seen.evicted:.0f} preemptions in {passed:.0f} s", self.change.number
        if self.change.knob != CAP or cap is None or seen.inside <= cap:
            more = f" with {seen.inside:.0f} inside, within the cap" if self.change.knob == CAP else ""
            return NO_EFFECT, f"{said}{more}: {self.change.knob}={self.change.value} does not end them; roll it back"
        gone = seen.first_inside - seen.inside
        if seen.inside >= FELL * seen.first_inside:
            return NOT_IN_FORCE, (
                f"{said}, and {seen.inside:.0f} are inside ({seen.first_inside:.0f} at first): a cap of {cap:.0f} "
                "would let them drain; is it counted per process, or is there another way in?"
            )
        left = (seen.inside - cap) / (gone / passed)
        return DRAINING, (
            f"capped at {cap:.0f}, and preemptions go on because {seen.inside - cap:.0f} more are inside "
            f"({seen.waiting:.0f} wait): about {left:.0f} s at this rate, or abort them"
        )


def _differ(one: str, other: str) -> bool:
    try:
        return float(one) != float(other)
    except ValueError:
        return one.lower() != other.lower()
