"""How long answers are, where a cap for them is to be advised: the smooth shape, with what was cut taken as cut.

Input: the slow window's observations. Output: readings in place of those that buckets alone give. The shape costs more
CPU than judging all else, and a number that changes with every poll is no advice: it is worked out when answers have
doubled, when `AGAIN_S` have passed, or when the buckets contradict it. Invariant: pure; bounds are the buckets' own.
"""

from collections.abc import Mapping

from vllm_vitals.core import vital_signs
from vllm_vitals.core.distribution import Cut, Distribution, fit, one_cap
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.core.window import Span

AGAIN_S = 300.0
_NAMES = ("output_tokens_p90", "output_tokens_cv")


class AnswerLengths:
    """Remembers one engine's shape."""

    def __init__(self) -> None:
        self._known: Mapping[str, Reading] = {}
        self._count = self._at = 0.0
        self.cap: float | None = None  # the one max_tokens that all asked for (tokens)

    def feed(self, at: float, span: Span, readings: Mapping[str, Reading], worth: float) -> Mapping[str, Reading]:
        """Return the readings to take in place of those given; none where fewer than ``worth`` (a share) are cut."""
        share = readings["truncated_ratio"].value
        made = None if share is None or share < worth else vital_signs.of_answers(span, "request_output_tokens")
        if share is None or made is None or made.count <= 0:
            self._known, self.cap = {}, None
            return {}
        stale = not self._known or at - self._at >= AGAIN_S or made.count >= 2 * self._count
        if stale or not all(_inside(self._known[name], readings[name]) for name in _NAMES):
            self._at, self._count = at, made.count
            self.cap = one_cap(vital_signs.of_answers(span, "request_max_tokens"))
            cut = None if self.cap is None else Cut(self.cap, round(share * made.count))
            found: Distribution = fit(made, cut=cut)
            self._known = {"output_tokens_p90": found.uncut(0.9), "output_tokens_cv": found.cv()}
        return {name: _put(self._known[name], readings[name]) for name in _NAMES}


def _inside(known: Reading, bounds: Reading) -> bool:
    if known.value is None or bounds.lower is None or bounds.upper is None:
        return True
    return bounds.lower <= known.value <= bounds.upper


def _put(known: Reading, bounds: Reading) -> Reading:
    """Return what is known with the bounds of now."""
    if bounds.status != "value" or known.status != "value":
        return bounds
    return Reading(known.value, bounds.lower, bounds.upper, why=known.why)
