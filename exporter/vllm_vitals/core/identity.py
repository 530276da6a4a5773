"""Whether one address is one server: start times, or counters, that come back are those of another one.

Input: good scrapes of one target. Output: a sentence while several servers answer, else nothing. Invariant: a restart,
and a loop of crashes, is one server after another. Two are proven by what was left behind and then *continues*, and by
a new start time that lies before an answer of the server with the other one (a minute before, for clocks that differ).
Counters are held against each other beside start times too: replicas of one rollout start in the same second.
"""

from collections import deque

from vllm_vitals.core.sample import TargetSample

LASTS = 600.0  # seconds after the last proof in which the address is still taken for several servers
REMEMBERED = 16  # lives, and falls of counters
# By counters alone: so many falls that each go on where an earlier life was left, without a failed scrape between. A
# restart begins below every life, and takes longer than from one scrape to the next.
RETURNS = 3
CLOCKS_DIFFER = 60.0  # seconds
MISSED = 2.5  # times the interval: a scrape in between failed
START_TOLERANCE = 1.0  # seconds: start times are computed anew by some exporters

_Counters = tuple[float, ...]


class IdentityWatch:
    """One target's memory of who answered."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=REMEMBERED)
        self._lives: deque[_Counters] = deque(maxlen=REMEMBERED)  # how each was left, the newest last
        self._returns: deque[float] = deque(maxlen=RETURNS)
        self._interval = float("inf")  # seconds between two scrapes, the shortest of late
        self._answered_at = 0.0
        self._proven_at: float | None = None
        self._text = ""

    def feed(self, at: float, sample: TargetSample) -> str:
        """Take in a good scrape; the sentence that several servers answer here, "" where nothing proves it."""
        proof = self._by_start(sample) or self._by_counters(at, sample)
        self._answered_at = at
        if proof:
            self._proven_at, self._text = at, proof
        return self._text if self._proven_at is not None and at - self._proven_at <= LASTS else ""

    def _by_start(self, sample: TargetSample) -> str:
        started = next(iter(sample.identity.created or sample.identity.process_starts), None)
        if started is None:
            return ""
        if not self._starts or abs(self._starts[-1] - started) > START_TOLERANCE:
            back = any(abs(start - started) <= START_TOLERANCE for start in self._starts)
            beside = bool(self._starts) and started < self._answered_at - CLOCKS_DIFFER
            self._starts.append(started)
            if back or beside:
                several = len({round(start) for start in self._starts})
                how = "their start times come back" if back else "one began before the other one last answered"
                return f"{several} servers answer in turn at this address ({how})"
        return ""

    def _by_counters(self, at: float, sample: TargetSample) -> str:
        """By counters that fall to where another life was left and go on from there, again and again."""
        now, lives = _counters(sample), self._lives
        if self._answered_at:
            passed = at - self._answered_at
            if passed > MISSED * self._interval:  # it may have restarted: what was left then says nothing
                lives.clear()
            self._interval = min(passed, self._interval * 1.1) if passed > 0 else self._interval
        if now is None:
            return ""
        if len(lives) == 1 and _continues(now, lives[0]):
            lives[0] = now
            return ""
        fell = bool(lives) and not _continues(now, lives[-1])
        earlier = [life for life in lives if _continues(now, life)]
        if earlier:
            lives.remove(max(earlier, key=sum))
            if fell:
                self._returns.append(at)
        lives.append(now)
        if not fell or len(self._returns) < RETURNS or at - self._returns[0] > LASTS:
            return ""
        return "several servers answer in turn at this address (their counters fall and come back)"


def _continues(later: _Counters, earlier: _Counters) -> bool:
    return len(later) == len(earlier) and all(new >= old for new, old in zip(later, earlier, strict=True))


def _counters(sample: TargetSample) -> _Counters | None:
    """Return tokens of every engine, in order; None where none is counted."""
    engines = sample.engines
    counted = [
        value or 0.0
        for engine in ([engines[key] for key in sorted(engines)] if len(engines) > 1 else engines.values())
        for value in (engine.generation_tokens, engine.prompt_tokens)
    ]
    return tuple(counted) if any(counted) else None
