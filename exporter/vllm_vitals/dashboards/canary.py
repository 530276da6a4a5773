"""The canary's row of the engine dashboard: whether a server responds, for hangs that metrics do not show."""

from vllm_vitals.dashboards import field_config, panels
from vllm_vitals.dashboards.panels import Panel
from vllm_vitals.dashboards.promql import folded_target, rate
from vllm_vitals.dashboards.query import Query


def row() -> tuple[Panel, ...]:
    """Return how long it takes, and what becomes of it."""
    return (
        panels.timeseries(
            "Canary: time to an answer",
            "How long the last canary took, of this engine's server: one tiny request of the model's own task, queued"
            " like any other. A rise is what a new user feels; a timeout shows its deadline.",
            [Query(folded_target("canary_duration_seconds"), "{{target}}")],
            "s",
            "No canary is sent: set canary in the config.",
            width=12,
        ),
        panels.timeseries(
            "Canary: answers, time-outs, errors",
            "Per minute, over five minutes. timeout while no token moves is a hang that metrics hide: drain, capture, "
            "restart. error is a refusal, which proves nothing: check its key, its path and the model's task.",
            [Query(f"60 * {rate('canary_requests_total', keep=('outcome',), over='5m')}", "{{outcome}} · {{target}}")],
            "cpm",
            "No canary is sent: set canary in the config.",
            width=12,
            overrides=field_config.outcome_colours(),
        ),
    )
