"""What became of an engine's evictions since something was done about them: fewer let in, a restart, another setting.

Input: an engine's samples in order, its settings, and whether its state is one that evicts. Output: a `Followed`, or
None where nothing was seen to be done. A monitor is told of no cap at a gateway, but a cap shows: requests leave and
hardly any come in while others wait inside. Invariant: pure; bounded; a claim rests on what was counted, so where
nothing leaves nothing is said, and what happened is called by what was seen (fewer let in), not by who did it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_vitals.core.follow_up import DRAINING, NO_EFFECT, QUIET_S, WORKED
from vllm_vitals.core.sample import EngineSample, restarted
from vllm_vitals.core.snapshot import Followed

LOOK_S, APART_S = 30.0, 2.0  # how far back what enters and leaves is counted, and how near two counts are kept
LEFT = 8.0  # requests that must have left in that time: of a Poisson of 8, at most 1 comes in 3 of 1,000 times
CUT, BACK = 0.2, 0.9  # entered / left from which the intake is cut; inside / at first from which it no longer is
KEEP_S = 600.0  # how long it is remembered that it worked, or that it evicted
CONSEQUENCES = frozenset({"num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "num_cpu_blocks"})
LET_IN, RESTARTED = "fewer requests let in", "restarted"


@dataclass(frozen=True, slots=True)
class _Count:
    at: float
    inside: float
    left: float


@dataclass(slots=True)
class _Cause:
    """What was done: since when (epoch s), in words; those inside then, evictions since, and the last of them.

    ``drained_at``: since when none of those inside waits.
    """

    since: float
    what: str
    inside: float
    evicted: float = 0.0
    evicted_at: float | None = None
    drained_at: float | None = None


class Aftermath:
    """Follows one engine. ``feed`` takes each good sample."""

    def __init__(self) -> None:
        self._last: EngineSample | None = None
        self._settings: Mapping[str, str] = {}
        self._evicted_at: float | None = None
        self._counts: deque[_Count] = deque(maxlen=int(LOOK_S / APART_S) + 2)
        self._cause: _Cause | None = None

    def feed(self, at: float, sample: EngineSample, settings: Mapping[str, str], evicts: bool) -> Followed | None:
        """Take in a sample of ``at`` (epoch s)."""
        before, said = self._last, self._settings
        self._last, self._settings = sample, settings
        if evicts:
            self._evicted_at = at
        if self._evicted_at is None or at - self._evicted_at > KEEP_S:
            self._cause = None
            self._counts.clear()
            return None
        changed, again = _changed(said, settings), before is not None and restarted(before, sample)
        if again:
            self._counts.clear()
            self._cause = _Cause(at, changed or RESTARTED, sample.work or 0.0)
        elif changed and self._cause is not None and self._cause.what == RESTARTED:
            self._cause.what = changed  # what it was restarted with is known later than that it was
        elif changed:
            self._cause = _Cause(at, changed, sample.work or 0.0)
        self._count(at, sample)
        cause = self._cause = self._cause or self._let_in()
        if cause is None:
            return None
        if not again and before is not None and sample.preemptions is not None and before.preemptions is not None:
            risen = sample.preemptions - before.preemptions
            cause.evicted += risen
            cause.evicted_at = at if risen > 0 else cause.evicted_at
        if (sample.waiting or 0.0) < 1 and cause.drained_at is None:
            cause.drained_at = at
        if cause.what == LET_IN and (sample.work or 0.0) > max(BACK * cause.inside, 1.0) and self._entered() >= BACK:
            self._cause = None  # others come in again while as many are inside
            return None
        return self._said(at, sample, cause)

    def _count(self, at: float, sample: EngineSample) -> None:
        if sample.work is None or sample.completions is None:
            return
        if not self._counts or at - self._counts[-1].at >= APART_S:
            self._counts.append(
                _Count(at, sample.work, sample.completions + (sample.errors or 0.0) + (sample.aborts or 0.0))
            )
        while len(self._counts) > 1 and at - self._counts[1].at >= LOOK_S:
            self._counts.popleft()

    def _entered(self) -> float:
        """Return entered / left over the last counts; 1 where too few left to say."""
        if len(self._counts) < 2:
            return 1.0
        first, last = self._counts[0], self._counts[-1]
        left = last.left - first.left
        return max(0.0, last.inside - first.inside + left) / left if left >= LEFT else 1.0

    def _let_in(self) -> _Cause | None:
        """Return that the intake was cut, where requests leave, hardly any come in and others wait inside."""
        waits = self._last is not None and (self._last.waiting or 0.0) >= 1
        if not waits or self._entered() > CUT:
            return None
        first = self._counts[0]
        return _Cause(first.at, LET_IN, first.inside)

    def _said(self, at: float, sample: EngineSample, cause: _Cause) -> Followed | None:
        quiet = at - (cause.since if cause.evicted_at is None else cause.evicted_at)
        drains = cause.what == LET_IN and cause.drained_at is None
        if quiet >= QUIET_S and not drains:
            after = 0.0 if cause.evicted_at is None else cause.evicted_at - cause.since
            inside = sample.work or 0.0
            text = f"worked: preemptions 0 after {after:.0f} s, for {quiet:.0f} s now; {inside:.0f} inside"
            return Followed(cause.since, cause.what, WORKED, text)
        if drains:
            return Followed(cause.since, cause.what, DRAINING, _draining(at - cause.since, quiet, sample, cause))
        passed = at - max(cause.since, cause.drained_at or 0.0 if cause.what == LET_IN else 0.0)
        if passed < QUIET_S:
            return None
        text = f"{cause.evicted:.0f} preemptions in {at - cause.since:.0f} s: it did not end them"
        return Followed(cause.since, cause.what, NO_EFFECT, text)


def _draining(passed: float, quiet: float, sample: EngineSample, cause: _Cause) -> str:
    """Return how many are still inside, and how long they take."""
    waiting, gone = sample.waiting or 0.0, cause.inside - (sample.work or 0.0)
    rate = f"about {waiting / (gone / passed):.0f} s at this rate, or abort them" if gone > 0 else "abort them"
    state = f"no preemption for {quiet:.0f} s, and" if quiet >= QUIET_S else "still evicting because"
    return f"{state} {waiting:.0f} wait inside ({cause.inside:.0f} were inside): {rate}"


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the first setting that is another than before, in words."""
    if before == now or not before:
        return ""
    names = [name for name in sorted(now) if name in before and before[name] != now[name]]
    name = next((name for name in names if name not in CONSEQUENCES), next(iter(names), ""))
    return f"{name} {before[name]} → {now[name]}" if name else ""
