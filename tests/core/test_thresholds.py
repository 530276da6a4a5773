"""The defaults, as the docs and the rules have them, and what a slower scrape makes of them."""

import pytest

from vllm_vitals.core.thresholds import Thresholds


@pytest.mark.parametrize(
    ("interval", "fast", "slow"),
    [(5.0, 60.0, 600.0), (15.0, 60.0, 600.0), (15.1, 60.4, 600.0), (30.0, 120.0, 600.0), (200.0, 800.0, 800.0)],
)
def test_the_fast_window_holds_four_scrapes_and_the_slow_one_no_fewer(
    interval: float, fast: float, slow: float
) -> None:
    limits = Thresholds().at_interval(interval)
    assert (limits.fast_window, limits.slow_window) == (pytest.approx(fast), pytest.approx(slow))
