"""Annotations: when an engine changed its state, drawn on every chart."""

from vllm_vitals.dashboards import levels, states
from vllm_vitals.dashboards.promql import BY_ENGINE, gauge
from vllm_vitals.dashboards.theme import Annotation

_WHO = "{{model_name}} · {{target}} · engine {{engine}}"


def incidents() -> Annotation:
    """Shaded spans while an engine hurts users or wastes work."""
    matcher = states.matcher(*states.HURTING, *states.COSTLY)
    expr = f"{gauge('state', matcher, keep=('state',))} == 1"
    return Annotation("Incidents", expr, levels.RED, "{{state}}", _WHO)


def state_changes(shown: bool) -> Annotation:
    """Return a mark at the moment at which an engine entered a state, whatever it is."""
    since = gauge("state_since_timestamp_seconds")
    expr = f"({gauge('state', keep=('state',))} == 1) * on ({BY_ENGINE}) group_left () ({since} * 1000)"
    return Annotation("State changes", expr, "blue", "{{state}}", _WHO, shown=shown, at_value=True)
