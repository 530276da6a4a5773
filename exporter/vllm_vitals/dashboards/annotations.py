"""Annotations: when an engine changed its state, drawn on every chart."""

from vllm_vitals.dashboards import levels, recorded, states
from vllm_vitals.dashboards.promql import BY_ENGINE, gauge
from vllm_vitals.dashboards.theme import Annotation
from vllm_vitals.rules.fleet import ENGINES

_WHO = "{{model_name}} · {{target}} · engine {{engine}}"


def incidents() -> Annotation:
    """Shaded spans while an engine hurts users or wastes work."""
    matcher = states.matcher(*states.HURTING, *states.COSTLY)
    expr = f"{gauge('state', matcher, keep=('state',))} == 1"
    return Annotation("Incidents", expr, levels.RED, "{{state}}", _WHO)


def models_in_trouble() -> Annotation:
    """Shaded spans while engines of a model hurt users or waste work, however many engines."""
    trouble = recorded.of_model(ENGINES, states.matcher(*states.HURTING, *states.COSTLY))
    expr = f"max by (model_name, state) {recorded.over('max', trouble)} > 0"
    return Annotation("Incidents", expr, levels.RED, "{{state}}", "{{model_name}}")


def state_changes(shown: bool) -> Annotation:
    """Return a mark at the moment at which an engine entered a state, whatever it is."""
    since = gauge("state_since_timestamp_seconds")
    expr = f"({gauge('state', keep=('state',))} == 1) * on ({BY_ENGINE}) group_left () ({since} * 1000)"
    return Annotation("State changes", expr, "blue", "{{state}}", _WHO, shown=shown, at_value=True)
