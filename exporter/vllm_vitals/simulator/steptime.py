"""How long one iteration takes: a line in five quantities.

Input: a step's tokens and context. Output: seconds. Invariant: no coefficient is negative, so more work never takes
less time.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds for a step, per prefill token, per decoding request, per KV token read, and per KV token loaded.

    The defaults are of the order of an 8B model on one data-centre GPU: 8 ms for a step that streams the weights,
    25,000 prompt tokens/s. ``load`` is 128 KiB of KV a token (8B, grouped-query attention) over PCIe 4.0 x16, 32 GB/s.
    """

    base: float = 0.008
    prefill: float = 4e-5
    decode: float = 5e-5
    context: float = 2e-8
    load: float = 4.1e-6

    def seconds(self, prefill: float, decoding: float, context: float, loaded: float = 0.0) -> float:
        """Time of one step."""
        work = self.prefill * prefill + self.decode * decoding + self.context * context
        return self.base + work + self.load * loaded

    def scaled(self, factor: float) -> "StepTime":
        """Return the same server on a machine that takes ``factor`` times as long."""
        return StepTime(
            self.base * factor, self.prefill * factor, self.decode * factor, self.context * factor, self.load * factor
        )
