"""What becomes of requests besides being served: shares of them that fail, are refused, or wait for something else.

Input: a request and a random source. Output: the same request, marked. What each mark does to vLLM's metrics was seen
on vLLM 0.32: a request that fails inside the engine ends as ``error`` within a step, with no token; a stream that fails
is still a 2xx; what the API server refuses or breaks on never reaches the engine. Invariant: with the default fate
nothing is drawn.
"""

from dataclasses import dataclass
from random import Random

from vllm_vitals.simulator.request import Request


@dataclass(frozen=True, slots=True)
class Fate:
    """Shares of the requests, 0-1, each drawn by itself; where two marks meet, the one that ends earlier holds.

    ``invalid`` ones are refused with a 4xx. ``broken`` ones are failed by the API server with a 5xx. ``failing`` ones
    end in ``error`` inside the engine. ``deferred`` ones first wait some ``deferred_s`` seconds (exponential) for what
    is no capacity: a KV transfer, a LoRA slot, a grammar. ``streamed`` answers are sent as a stream.
    """

    invalid: float = 0.0
    broken: float = 0.0
    failing: float = 0.0
    deferred: float = 0.0
    deferred_s: float = 30.0
    streamed: float = 0.5

    def mark(self, request: Request, random: Random) -> None:
        """Draw the fate of one request."""
        if self is SERVED:
            return  # whether a good answer is streamed is seen in no metric
        request.stream = random.random() < self.streamed
        if self.invalid and random.random() < self.invalid:
            request.refused = 400
        elif self.broken and random.random() < self.broken:
            request.refused = 500
        elif self.failing and random.random() < self.failing:
            request.reason = "error"
        if self.deferred and random.random() < self.deferred:
            request.deferred_s = random.expovariate(1 / self.deferred_s)


SERVED = Fate()
