"""What canary requests prove about a target: a time-out means stalled only if nothing moved since it was sent.

Inputs: results of canaries, and samples. Output: a `CanaryVerdict`. Invariant: a slow server is never called stalled:
any token, completion or KV growth on any engine since the canary was sent makes a time-out a mere latency sample.
"""

from dataclasses import dataclass

from vllm_vitals.core.sample import TargetSample
from vllm_vitals.core.snapshot import Canary


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """Since when (epoch s) canaries go unanswered while nothing moves; and whether the last one was answered."""

    silent_since: float | None = None
    answered: bool = False


NO_CANARY = CanaryVerdict()


class CanaryWatch:
    """One target's memory of its canaries and of its progress."""

    def __init__(self) -> None:
        self.last: Canary | None = None
        self.counts = dict.fromkeys(("ok", "timeout", "error"), 0)
        self._first_unanswered: Canary | None = None
        self._before: TargetSample | None = None
        self._moved_at = float("-inf")

    def tell(self, result: Canary) -> None:
        """Take in a finished canary. An error (the server refused it) proves nothing either way."""
        self.last = result
        self.counts[result.outcome] += 1
        if result.outcome == "ok":
            self._first_unanswered = None
        elif result.outcome == "timeout" and self._first_unanswered is None:
            self._first_unanswered = result

    def feed(self, at: float, sample: TargetSample) -> CanaryVerdict:
        """Take in a good scrape; what the canaries prove now."""
        before, self._before = self._before, sample
        if before is None or _moved(before, sample):
            self._moved_at = at
        if self.last is None:
            return NO_CANARY
        silent = self._first_unanswered
        if silent is not None and self._moved_at > silent.sent_at:
            # moved since it was sent, perhaps only at the start of its wait: a later time-out may still prove it
            silent = self._first_unanswered = None
        proven = silent is not None and at >= silent.sent_at + silent.took_s
        return CanaryVerdict(
            silent.sent_at if silent is not None and proven else None,
            self.last.outcome == "ok",
        )


def _moved(before: TargetSample, now: TargetSample) -> bool:
    """Return whether any engine made progress between two scrapes, or restarted (which moves its counters too)."""
    if before.engines.keys() != now.engines.keys():
        return True
    for identity, new in now.engines.items():
        old = before.engines[identity]
        if new.generation_tokens != old.generation_tokens or new.prompt_tokens != old.prompt_tokens:
            return True
        if new.completions != old.completions:
            return True
        if (new.kv_usage or 0.0) > (old.kv_usage or 0.0):
            return True
    return False
