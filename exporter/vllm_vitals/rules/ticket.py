"""The alerts for working hours: it will hurt, or hurts slowly, or a promise rests on an assumption that broke."""

from vllm_vitals.config.alerts import Config
from vllm_vitals.rules import slo, ticket_answers, ticket_load, ticket_presence, ticket_states
from vllm_vitals.rules.model import Alert, Severity
from vllm_vitals.rules.selectors import interactive


def alerts(config: Config) -> tuple[Alert, ...]:
    """Return all tickets about engines, models and workloads."""
    burns = tuple(alert for alert in slo.alerts(config, *interactive(config)) if alert.severity is Severity.TICKET)
    return (
        *ticket_states.alerts(config),
        *ticket_load.alerts(config),
        *ticket_answers.alerts(config),
        *ticket_presence.alerts(config),
        *burns,
    )
