"""Where a number turns yellow and red: the same limits that the states and the alerts use, never a second opinion.

Input: the daemon's thresholds and the alert config. Output: `Levels` by catalogue name. Invariant: a panel without a
limit here has no colour; nothing is red that no state or alert would mind.
"""

from dataclasses import dataclass

from exporter.core.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class Levels:
    """Yellow from ``warn``, red from ``bad``; with ``low_is_bad`` below them. Either may be None."""

    warn: float | None
    bad: float | None = None
    low_is_bad: bool = False


_T = Thresholds()

PREEMPTIONS_PER_COMPLETION = Levels(_T.thrash_preemptions_per_completion, _T.spiral_preemptions_per_completion)
REPEAT_SHARE = Levels(_T.thrash_repeat_ratio)
RECOMPUTE_TAX = Levels(_T.spiral_recompute_tax / 2, _T.spiral_recompute_tax)
KV_USAGE = Levels(_T.kv_pressure_ratio)
KV_DEMAND = Levels(_T.kv_pressure_ratio, 1.0)
TTFT = Levels(5.0, 10.0)
TPOT = Levels(0.1, 0.2)
TAIL_RATIO = Levels(5.0)
TRUNCATED = Levels(0.05, 0.2)
EXPECTED_WAIT = Levels(10.0, 60.0)
CV = Levels(1.0)
STRAGGLER = Levels(5.0)
HEADROOM = Levels(0.25, 0.1, low_is_bad=True)
TROUBLE = Levels(1.0, None)
DOWN = Levels(None, 1.0)
SCRAPE_AGE = Levels(30.0, 60.0)
