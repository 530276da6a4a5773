"""Alertmanager: who hears of what, when, and which alert silences which.

Input: config. Output: the whole alertmanager.yml as data. The root receiver is tickets, never nobody: a severity that
no route knows still arrives. With no receiver configured the file is valid and alerts are seen in Alertmanager alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_vitals.config.alerts import Config, Receiver
from vllm_vitals.rules.model import Severity

PAGER, TICKETS, WATCHDOG = "pager", "tickets", "watchdog"
RECEIVERS = {Severity.PAGE: PAGER, Severity.TICKET: TICKETS, Severity.NONE: WATCHDOG}


@dataclass(frozen=True, slots=True)
class Inhibition:
    """While one of ``sources`` fires, ``targets`` with the same ``equal`` labels are silent. ``why`` is for us."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    equal: tuple[str, ...]
    why: str
    source_severity: Severity | None = None


# What an evicting or hung engine brings with it.
_SYMPTOMS = (
    "VLLMPreempting", "VLLMKVPressure", "VLLMTailDivergence", "VLLMLongQueue", "VLLMStarvedDecode",
    "VLLMRunawayRequest", "VLLMEngineSilent",
)  # fmt: skip


def inhibitions(config: Config) -> tuple[Inhibition, ...]:
    """Causes silence their symptoms, on the same victim only."""
    engine, model, target = config.identity, config.model_identity, config.target_identity
    return (
        Inhibition(
            ("VLLMStalled",), ("VLLMDeathSpiral", "VLLMThrashing", *_SYMPTOMS), engine, "a hang explains all below it"
        ),
        Inhibition(("VLLMDeathSpiral",), ("VLLMThrashing", *_SYMPTOMS), engine, "a spiral is thrashing, and more"),
        Inhibition(("VLLMThrashing",), _SYMPTOMS, engine, "evictions explain queue, tail and gaps"),
        Inhibition(("VLLMPreempting",), ("VLLMKVPressure",), engine, "a cache that evicts is full"),
        Inhibition(
            ("VLLMDeathSpiral", "VLLMStalled", "VLLMModelUnavailable", "VLLMThrashing"),
            ("VLLMSLOBurn",),
            model,
            "one incident, one page: the cause carries the burn",
            Severity.PAGE,
        ),
        Inhibition(("VLLMModelUnavailable",), ("VLLMEngineDown",), model, "no engine is left to tell apart"),
        Inhibition(
            ("VLLMEngineDown", "VLLMBlind"), (*_SYMPTOMS, "VLLMExporterStale"), target, "nothing can be seen there"
        ),
    )


def document(config: Config) -> dict[str, Any]:
    """alertmanager.yml."""
    receivers = config.receivers
    return {
        "route": {
            "receiver": TICKETS,
            "group_by": ["alertname", "model_name", *config.identity_labels],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "1d",
            "routes": [
                _route(Severity.PAGE, group_wait="10s", repeat_interval="4h"),
                _route(Severity.TICKET),
                _route(Severity.NONE, group_wait="0s", group_interval="1m", repeat_interval="5m"),
            ],
        },
        "inhibit_rules": [_ladder(config), *(_inhibit(rule) for rule in inhibitions(config))],
        "receivers": [
            _receiver(PAGER, receivers.pager),
            _receiver(TICKETS, receivers.tickets),
            _receiver(WATCHDOG, receivers.watchdog),
        ],
    }


def _route(severity: Severity, **times: str) -> dict[str, Any]:
    return {"receiver": RECEIVERS[severity], "matchers": [f'severity="{severity}"'], **times}


def _ladder(config: Config) -> dict[str, Any]:
    """Let the page of an alert silence its ticket."""
    return {
        "source_matchers": ['severity="page"'],
        "target_matchers": ['severity="ticket"'],
        "equal": ["alertname", *config.identity, "slo"],
    }


def _inhibit(rule: Inhibition) -> dict[str, Any]:
    severity = [f'severity="{rule.source_severity}"'] if rule.source_severity else []
    return {
        "source_matchers": [_names(rule.sources), *severity],
        "target_matchers": [_names(rule.targets)],
        "equal": list(rule.equal),
    }


def _names(names: Sequence[str]) -> str:
    return f'alertname="{names[0]}"' if len(names) == 1 else f'alertname=~"{"|".join(names)}"'


def _receiver(name: str, receiver: Receiver) -> dict[str, Any]:
    out: dict[str, Any] = {"name": name}
    if receiver.webhook_url:
        hook: dict[str, Any] = {"url": receiver.webhook_url, "send_resolved": True}
        if receiver.webhook_credentials_file:
            hook["http_config"] = {"authorization": {"credentials_file": receiver.webhook_credentials_file}}
        out["webhook_configs"] = [hook]
    if receiver.slack_url_file:
        out["slack_configs"] = [_slack(receiver)]
    if receiver.pagerduty_key_file:
        out["pagerduty_configs"] = [_pagerduty(receiver)]
    if receiver.email is not None:
        out["email_configs"] = [_email(receiver)]
    return out


# All alerts of a group, worst first; each with its own text.
_SUBJECT = (
    "{{ range $i, $a := .Alerts }}{{ if not $i }}{{ .Annotations.summary }}{{ end }}{{ end }}{{ if gt (len .Alerts) 1 "
    "}} (and {{ len .Alerts }} in all){{ end }}"
)
_BODY = (
    "{{ range .Alerts }}{{ .Annotations.description }}\n"
    "Runbook: {{ .Annotations.runbook_url }}\n"
    "Dashboard: {{ .Annotations.dashboard_url }}\n"
    "\n"
    "{{ end }}"
)


def _slack(receiver: Receiver) -> dict[str, Any]:
    channel: Mapping[str, str] = {"channel": receiver.slack_channel} if receiver.slack_channel else {}
    return {"api_url_file": receiver.slack_url_file, **channel, "send_resolved": True, "title": _SUBJECT, "text": _BODY}


def _pagerduty(receiver: Receiver) -> dict[str, Any]:
    return {"routing_key_file": receiver.pagerduty_key_file, "description": _SUBJECT, "details": {"text": _BODY}}


def _email(receiver: Receiver) -> dict[str, Any]:
    email = receiver.email
    if email is None:
        raise AssertionError("called only with an email")
    out: dict[str, Any] = {"to": email.to, "from": email.sender, "smarthost": email.smarthost, "send_resolved": True}
    if email.username:
        out |= {"auth_username": email.username, "auth_password_file": email.password_file}
    return out | {"headers": {"Subject": _SUBJECT}, "text": _BODY}
