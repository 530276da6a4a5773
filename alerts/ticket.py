"""The alerts for working hours: it will hurt, or hurts slowly, or a promise rests on an assumption that broke."""

from alerts import slo, ticket_answers, ticket_load, ticket_presence
from alerts.config import Config
from alerts.model import Alert, Severity
from alerts.victims import interactive


def alerts(config: Config) -> tuple[Alert, ...]:
    """All tickets about engines, models and workloads."""
    burns = tuple(alert for alert in slo.alerts(config, *interactive(config)) if alert.severity is Severity.TICKET)
    return (*ticket_load.alerts(config), *ticket_answers.alerts(config), *ticket_presence.alerts(config), *burns)
