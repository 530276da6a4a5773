"""The tail ratio's tile: a ratio that buckets only bound, and what the bounds prove.

Input: the site's limit. Output: queries of which one answers, and their colours. Invariant: a lower bound below the
limit proves nothing and is grey; fine is only what is at most something below the limit.
"""

from typing import Any

from vllm_vitals.dashboards.field_config import by_name
from vllm_vitals.dashboards.levels import GREEN, GREY, YELLOW
from vllm_vitals.dashboards.promql import gauge
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Site
from vllm_vitals.rules.promql import number

_LOWER, _UPPER = 'bound="lower"', 'bound="upper"'
_HIGH, _FINE, _OPEN = "at least · high", "at most · fine", "at least · not proven"


def queries(site: Site) -> tuple[Query, ...]:
    """Return the worst of the engines: proven high, proven fine, or neither."""
    limit = number(site.scale.tail_ratio.warn or 0)
    by_request = 'source="request"'
    low = f"max({gauge('tpot_p99_p50_ratio', by_request, _LOWER)})"
    high = f"max({gauge('tpot_p99_p50_ratio', by_request, _UPPER)})"
    return (
        Query(f"{low} >= {limit}", _HIGH, instant=True),
        Query(f"{high} < {limit}", _FINE, instant=True),
        Query(f"({low} < {limit}) unless on () ({high} < {limit})", _OPEN, instant=True),
    )


def colours() -> tuple[dict[str, Any], ...]:
    """Return a colour for each of them."""
    return tuple(by_name(name, colour=colour) for name, colour in ((_HIGH, YELLOW), (_FINE, GREEN), (_OPEN, GREY)))
