"""How far a what-if missed what really happened on recordings that it was not fitted to: the floor of every error bar.

Between two recordings of one load with one setting changed, the what-if of each predicts the other.
`WHATIF_ERROR_FLOOR` holds, by metric, the share of the predicted value within which four in five of those truths lay
(the (n + 1) x 0.8 th smallest miss), rounded up to 5 %. Of the output rate the miss grows with the change: `floor` is
15 % for small ones and `PER_CHANGE` times the (logarithmic) change where that is more. Eighteen predictions of the
output rate (full-input reservation, 64 or 4 slots, half as much KV cache again, on vLLM 0.32; 8 to 32 GiB of KV cache,
within a factor of two, in public runs), eight of everything else; fits that call themselves poor are left out, their
own miss is wider. `bench.reach` and tests/planner/test_reach.py measure them again. Invariant: a miss of the fit itself
can widen a bar, never narrow it below this.
"""

from collections.abc import Mapping
from math import log

WHATIF_ERROR_FLOOR: Mapping[str, float] = {
    "generated": 0.15, "completed": 0.20, "per_completion": 0.30,
    "ttft_mean": 0.25, "ttft_p50": 0.25, "ttft_p99": 0.25,
    "tpot_mean": 0.20, "tpot_p50": 0.20, "tpot_p99": 0.20,
}  # fmt: skip
PER_CHANGE: Mapping[str, float] = {"generated": 1.3}


def floor(name: str, ratio: float) -> float:
    """Return the least bar of a metric that the simulation changes by so much (after / before)."""
    least = WHATIF_ERROR_FLOOR.get(name, 0.0)
    return max(least, PER_CHANGE.get(name, 0.0) * abs(log(ratio))) if ratio > 0 else least
