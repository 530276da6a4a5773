"""The section ``thresholds``: what states are judged by, for all targets or for one, and for the native rules.

Input: plain values. Output: only what the file says, as keyword arguments of `Thresholds`. Invariant: the type of a
threshold comes from its annotation there: seconds are a duration, as everywhere; a share lies from 0 to 1.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from pydantic import Field, create_model

from vllm_vitals.config.values import Duration, Positive, Share, Strict
from vllm_vitals.core import thresholds

Count = Annotated[int, Field(ge=1, le=10_000, strict=True)]
_HINTS = get_type_hints(thresholds.Thresholds, include_extras=True)
_TYPES: dict[object, object] = {thresholds.Seconds: Duration, thresholds.Share: Share, int: Count}
TIMES = frozenset(name for name, hint in _HINTS.items() if hint == thresholds.Seconds)
SHARES = frozenset(name for name, hint in _HINTS.items() if hint == thresholds.Share)


class ThresholdsSection(Strict):
    """Base of the section; its fields are made from `Thresholds`."""

    @property
    def said(self) -> dict[str, Any]:
        """What the file says, and nothing else."""
        return self.model_dump(exclude_unset=True)


if TYPE_CHECKING:
    ThresholdsConfig = ThresholdsSection
else:
    made = {f.name: (_TYPES.get(_HINTS[f.name], Positive), f.default) for f in fields(thresholds.Thresholds)}
    ThresholdsConfig = create_model("ThresholdsConfig", __base__=ThresholdsSection, **made)
