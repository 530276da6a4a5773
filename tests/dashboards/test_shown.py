"""Every family that is served is looked at: on a dashboard, by a rule or its text, or it is named here with why not."""

import json
import re
from typing import get_args

from tests.dashboards import lint
from vllm_vitals.catalog import METRICS
from vllm_vitals.config.alerts import Config
from vllm_vitals.config.objectives import Indicator
from vllm_vitals.config.section import parse_alerts
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.site import Site
from vllm_vitals.rules.build import rules
from vllm_vitals.rules.lint import metrics_of, queries_of
from vllm_vitals.rules.model import Alert

PER_RANGE = "a dashboard takes it from its counters, over the range that it shows"
FOLDED = "counted by one daemon; a dashboard takes the folded state over time, so that two daemons count once"
UNSHOWN = {
    "prompt_tokens_total": "the review's cost of a token; a dashboard shows the tokens that were computed",
    "request_preemptions": "repeat_preemption_ratio is made of it",
    "window_seconds": "on the status page, beside the numbers that it is the window of",
    "output_tokens_p90": "in the advice that is sized by it; a dashboard has it from the buckets",
    "prefix_cache_hit_ratio": PER_RANGE,
    "death_spirals_total": FOLDED,
    "state_seconds_total": FOLDED,
}
# An SLO may be about any of these.
PROMISED = parse_alerts(
    {
        "alerts": {
            "slos": [
                {"name": name, "indicator": name, "threshold": "10s", "share": 0.99} for name in get_args(Indicator)
            ]
        }
    }
)


def looked_at() -> set[str]:
    """Names without namespace, a histogram's without its suffix, that a dashboard or a rule reads."""
    boards = [json.loads(text) for text in build(Site()).values()]
    said = {name for board in boards for _, expr in lint.expressions(board) for name in lint.names_in(expr)}
    for config in (Config(), PROMISED):
        for rule in (rule for name in ("recording", "alerts") for g in rules(config)[name] for rule in g.rules):
            said |= metrics_of(rule.expr)
            if isinstance(rule, Alert):
                said |= {name for query in queries_of(rule) for name in metrics_of(query)}
    return {re.sub(r"_(bucket|sum|count)$", "", name.removeprefix("vllm_vitals_")) for name in said}


def test_every_family_is_shown_or_used_by_a_rule_or_named_here_with_the_reason() -> None:
    assert {metric.name for metric in METRICS} - looked_at() == set(UNSHOWN)
