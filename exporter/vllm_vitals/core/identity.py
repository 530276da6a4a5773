"""Whether one address is one server: start times, or counters, that come back are those of another one.

Input: good scrapes of one target. Output: a sentence while several servers answer, else nothing. Invariant: a restart,
and a loop of crashes, is one server after another. Two are proven by what was left behind and then *continues*, and by
a new start time that lies before an answer of the server with the other one (a minute before, for clocks that differ).
"""

from collections import deque
from itertools import pairwise

from vllm_vitals.core.sample import TargetSample

LASTS = 600.0  # seconds after the last proof in which the address is still taken for several servers
REMEMBERED = 16  # lives, and falls of counters
# Of counters without a start time: so many falls in a row, each with a return above it within so many scrapes. The
# values before the falls rise, and so do those after them; a crash loop begins anew each time.
RETURNS, RETURN_WITHIN = 3, 3
CLOCKS_DIFFER = 60.0  # seconds
START_TOLERANCE = 1.0  # seconds: start times are computed anew by some exporters

_Counters = tuple[float, ...]


class IdentityWatch:
    """One target's memory of who answered."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=REMEMBERED)
        self._falls: deque[tuple[float, _Counters, _Counters]] = deque(maxlen=RETURNS + 1)  # when, before, after
        self._since_fall = 0
        self._answered_at = 0.0
        self._last: _Counters | None = None
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
        """Without start times: counters that fall and then stand above where they fell from, again and again."""
        if sample.identity.created or sample.identity.process_starts:
            return ""
        now, before = _counters(sample), self._last
        self._last = now
        if before is None or now is None or len(now) != len(before):
            return ""
        self._since_fall += 1
        if any(new < old for new, old in zip(now, before, strict=True)):
            if self._since_fall > RETURN_WITHIN or (self._falls and at - self._falls[0][0] > LASTS):
                self._falls.clear()
            self._falls.append((at, before, now))
            self._since_fall = 0
        falls = list(self._falls)
        continued = all(
            _continues(later[1], earlier[1]) and _continues(later[2], earlier[2]) for earlier, later in pairwise(falls)
        )
        if len(falls) <= RETURNS or not continued:
            return ""
        return "several servers answer in turn at this address (their counters fall and come back)"


def _continues(later: _Counters, earlier: _Counters) -> bool:
    return len(later) == len(earlier) and all(new >= old for new, old in zip(later, earlier, strict=True))


def _counters(sample: TargetSample) -> _Counters | None:
    """Return tokens of every engine, in order; None where none is counted."""
    counted = [
        value or 0.0
        for _, engine in sorted(sample.engines.items())
        for value in (engine.generation_tokens, engine.prompt_tokens)
    ]
    return tuple(counted) if any(counted) else None
