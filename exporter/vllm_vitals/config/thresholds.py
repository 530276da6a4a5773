"""The section ``thresholds``: what states are judged by, for all targets or for one, and for the native rules.

Input: plain values. Output: only what the file says, as keyword arguments of `Thresholds`. Invariant: a threshold that
is a time is a duration, as everywhere; one that is a share lies from 0 to 1.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from vllm_vitals.config.values import Duration, Positive, Share, Strict
from vllm_vitals.core.thresholds import Thresholds

TIMES = frozenset({
    "fast_window", "slow_window", "min_span", "hold", "release", "stall_after", "stall_after_start", "blind_hold",
    "spiral_silence", "starting_budget", "degraded_hold", "kv_held_after",
})  # fmt: skip
SHARES = frozenset({
    "thrash_repeat_ratio", "spiral_recompute_tax", "spiral_generation_share", "saturated_share", "kv_pressure_ratio",
    "prefill_share", "lost_share", "lost_share_prefix_caching", "failing_share", "degraded_error_share",
    "kv_held_ratio", "eviction_kv_ratio",
})  # fmt: skip
Failures = Annotated[int, Field(ge=1, le=100, strict=True)]


class ThresholdsSection(Strict):
    """Base of the section; its fields are made from `Thresholds`."""

    @property
    def said(self) -> dict[str, Any]:
        """What the file says, and nothing else."""
        return self.model_dump(exclude_unset=True)


def _threshold(name: str) -> object:
    """Return what a threshold may be: a duration, a share, a count of failures, or any number above 0."""
    if name in TIMES:
        return Duration
    if name == "failures":
        return Failures
    return Share if name in SHARES else Positive


if TYPE_CHECKING:
    ThresholdsConfig = ThresholdsSection
else:
    made = {f.name: (_threshold(f.name), f.default) for f in fields(Thresholds)}
    ThresholdsConfig = create_model("ThresholdsConfig", __base__=ThresholdsSection, **made)
