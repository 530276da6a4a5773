"""Alerts about the monitoring itself, and the Watchdog that proves the whole path works.

No rule's output carries the exporter's own job or instance: two exporters for one fleet are one truth.
"""

from alerts.config import Config
from alerts.model import Alert, Scope, Severity
from alerts.promql import metric, number, on
from alerts.text import COUNT, TIME, ask, duration_words, label, now, preamble
from alerts.victims import fold

SELF = "vllm-vitals-self"


def alerts(config: Config) -> tuple[Alert, ...]:
    """All of them."""
    return (_down(config), _stale(config), _unknown(config), _watchdog())


def _down(config: Config) -> Alert:
    info = metric("build_info")
    job = f'up{{job="{config.exporter_job}"}}'
    return Alert(
        "VLLMExporterDown",
        Severity.TICKET,
        "meta",
        Scope.FLEET,
        # Quiet where no exporter has run within the last day: in native mode none is meant to.
        f"(absent({info}) and on () count(last_over_time({info}[1d]))) or count({job} == 0)",
        "An exporter that watches vLLM is gone.",
        preamble(config, Scope.FLEET) + f"Exporters that answer: {ask(f'sum({job})', COUNT, 'none')}; that do not: "
        f"{ask(f'count({job} == 0)', COUNT, 'unknown')}."
        + " The servers that only these watched are unwatched: silence from them proves nothing.\n"
        + "Next: look at the exporter's log and restart it; its memory of the last day fills again by itself.",
        f"{SELF}:Replicas and versions",
        hold=300,
    )


def _stale(config: Config) -> Alert:
    target, stale = fold(config, Scope.TARGET), config.limits.stale_seconds
    age = f"time() - {target.gauge('last_scrape_timestamp_seconds')}"
    return Alert(
        "VLLMExporterStale",
        Severity.TICKET,
        "meta",
        Scope.TARGET,
        f"{age} > {number(stale)} and {on(target.labels)} ({target.gauge('target_up')} == 1)",
        f"What the exporter says of {label('target')} is old.",
        preamble(config, Scope.TARGET) + f"The last good scrape of {label('target')} is "
        f"{ask('time() - ' + now('last_scrape_timestamp_seconds'), TIME)} old"
        + f" (limit {duration_words(stale)}), although the exporter takes the server for up. Every alert on it may be "
        "late.\n" + "Next: look at the exporter's CPU and its number of targets; shard it if it is too slow.",
        f"{SELF}:Duration of a scrape",
        hold=300,
    )


def _unknown(config: Config) -> Alert:
    target = fold(config, Scope.TARGET)
    return Alert(
        "VLLMUnknownFamilies",
        Severity.TICKET,
        "meta",
        Scope.TARGET,
        f"{target.gauge('unknown_vllm_families', over='min_over_time', seconds=900)} > 0",
        f"{label('target')} exposes vLLM metrics that this release of the exporter does not know.",
        preamble(config, Scope.TARGET)
        + f"{label('target')} has {ask(now('unknown_vllm_families'), COUNT)} unknown families, most likely after an "
        "upgrade of vLLM."
        + " What is known is still read; a renamed family would make its vital sign absent.\n"
        + "Next: see on the dashboard that no vital sign has gone absent; then upgrade the exporter.",
        f"{SELF}:Servers",
        hold=3600,
    )


def _watchdog() -> Alert:
    return Alert(
        "Watchdog",
        Severity.NONE,
        "meta",
        Scope.FLEET,
        "vector(1)",
        "Alerting works.",
        "This alert always fires. If it stops arriving at its receiver, alerts no longer reach anybody.",
        f"{SELF}:Servers not seen",
        why_no_hold="it must always fire",
    )
