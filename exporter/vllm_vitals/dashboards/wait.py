"""How long a new request queues, where "for ever" is an answer too.

Input: nothing. Output: PromQL with one number, and the words for the largest. Invariant: an engine where nothing
finishes while requests wait, or that is stalled, is never 0 and never absent.
"""

from typing import Any

from vllm_vitals.core.states import State
from vllm_vitals.dashboards import states
from vllm_vitals.dashboards.levels import RED
from vllm_vitals.dashboards.promql import BY_ENGINE, gauge, total

# Seconds that no queue reaches: Grafana's JSON has no infinity.
_ENDLESS = 1e9


def longest() -> str:
    """Return the longest wait of the engines in view (s)."""
    return f"max({of_each()})"


def of_each() -> str:
    """Return the wait of each engine (s)."""
    waiting, known = total(gauge("requests_waiting", keep=("reason",)), BY_ENGINE), gauge("expected_wait_seconds")
    stuck = f"({waiting} > 0) unless on ({BY_ENGINE}) ({known} >= 0)"
    stalled = f"{gauge('state', states.matcher(State.STALLED))} == 1"
    # What a server said before it went down is no promise.
    down = f"{gauge('state', states.matcher(State.DOWN))} == 1"
    return f"(({stalled}) or ({stuck})) * 0 + {_ENDLESS:.0f} or {known} unless on ({BY_ENGINE}) ({down})"


def endless() -> dict[str, Any]:
    """Return the mapping that says so."""
    return {
        "type": "range",
        "options": {"from": _ENDLESS, "to": None, "result": {"text": "nothing finishes", "color": RED, "index": 0}},
    }
