"""Alertmanager: who hears of what, when, and which alert silences which.

Input: config. Output: the whole alertmanager.yml as data, or the subtree that an existing one takes in. The root
receiver is tickets, never nobody: a severity that no route knows still arrives. With no receiver configured the file is
valid and alerts are seen in Alertmanager alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_vitals.config.alerts import Config, Receiver
from vllm_vitals.rules.model import Severity

PAGER, TICKETS, WATCHDOG = "pager", "tickets", "watchdog"
WORKING_HOURS = "working-hours"
_OURS = 'alertname=~"VLLM.+"'
RECEIVERS = {Severity.PAGE: PAGER, Severity.TICKET: TICKETS, Severity.NONE: WATCHDOG}


@dataclass(frozen=True, slots=True)
class Inhibition:
    """While one of ``sources`` fires, ``targets`` with the same ``equal`` labels are silent. ``why`` is for us."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    equal: tuple[str, ...]
    why: str
    source_severity: Severity | None = None
    target_severity: Severity | None = None


# What an evicting or hung engine brings with it.
_SYMPTOMS = (
    "VLLMPreempting", "VLLMKVPressure", "VLLMTailDivergence", "VLLMLongQueue", "VLLMStarvedDecode",
    "VLLMRunawayRequest", "VLLMEngineSilent",
)  # fmt: skip
_TICKETS = (Severity.TICKET, Severity.TICKET)
_PAGES = (Severity.PAGE, Severity.PAGE)


def inhibitions(config: Config) -> tuple[Inhibition, ...]:
    """Causes silence their symptoms, on the same victim only; nothing silences what is wider than itself.

    A narrow alert that somebody has silenced by hand so never mutes its model.
    """
    engine, model, target = config.identity, config.model_identity, config.target_identity
    causes = ("VLLMModelUnavailable", "VLLMStalled", "VLLMFailing", "VLLMDeathSpiral", "VLLMCapacityLost")
    return (
        Inhibition(
            ("VLLMStalled",), ("VLLMFailing", "VLLMDeathSpiral", "VLLMThrashing", *_SYMPTOMS), engine,
            "a hang explains all below it", *_TICKETS,
        ),
        Inhibition(
            ("VLLMDeathSpiral",), ("VLLMThrashing", *_SYMPTOMS), engine, "a spiral is thrashing, and more", *_TICKETS
        ),
        Inhibition(("VLLMThrashing",), _SYMPTOMS, engine, "evictions explain queue, tail and gaps", *_TICKETS),
        Inhibition(("VLLMPreempting",), ("VLLMKVPressure",), engine, "a cache that evicts is full", *_TICKETS),
        Inhibition(
            ("VLLMModelUnavailable",), causes[1:], model, "nothing serves: one page, the widest", *_PAGES
        ),
        Inhibition(causes[1:4], ("VLLMCapacityLost",), model, "one page says which engines are lost", *_PAGES),
        Inhibition(
            (*causes, "VLLMOverload", "VLLMThrashing"), ("VLLMSLOBurn",), model,
            "one incident, one page: the cause carries the burn", Severity.PAGE,
        ),
        Inhibition(causes, ("VLLMOverload", "VLLMThrashing"), model, "lost engines make the others drown", *_PAGES),
        Inhibition(("VLLMDeathSpiral",), ("VLLMThrashing",), model, "one loop, one page", *_PAGES),
        Inhibition(
            ("VLLMOverload",), ("VLLMLongQueue",), model, "the page says that all wait", Severity.PAGE, Severity.TICKET
        ),
        Inhibition(
            ("VLLMModelUnavailable", "VLLMCapacityLost"), ("VLLMEngineDown",), model, "the page lists them",
            Severity.PAGE, Severity.TICKET,
        ),
        Inhibition(
            ("VLLMEngineDown", "VLLMBlind"), (*_SYMPTOMS, "VLLMExporterStale"), target, "nothing can be seen there"
        ),
    )  # fmt: skip


def document(config: Config) -> dict[str, Any]:
    """alertmanager.yml."""
    return {
        "route": {**_root(config), "routes": _routes(config)},
        "inhibit_rules": [_ladder(config), *(_inhibit(config, rule) for rule in inhibitions(config))],
        "receivers": _receivers(config),
        **_time_intervals(config),
    }


def subtree(config: Config) -> dict[str, Any]:
    """Return the same for an alertmanager.yml that serves others too: it touches only alerts of ours.

    Lists are to be appended to those that are there; names have a prefix, so that none is taken.
    """

    def prefixed(name: str) -> str:
        return f"vllm-vitals-{name}"

    whole = document(config)
    named = [{**route, "receiver": prefixed(route["receiver"])} for route in whole["route"]["routes"]]
    if config.working_hours is not None:
        named[1] = {**named[1], "active_time_intervals": [prefixed(WORKING_HOURS)]}
    mine = {
        "receiver": prefixed(TICKETS),
        "matchers": [_OURS],
        **{k: v for k, v in _root(config).items() if k != "receiver"},
    }
    ladder = {side: [_OURS, *_ladder(config)[side]] for side in ("source_matchers", "target_matchers")}
    intervals = {
        key: [{**one, "name": prefixed(one["name"])} for one in given] for key, given in _time_intervals(config).items()
    }
    return {
        "route": {"routes": [{**mine, "routes": named}]},
        "inhibit_rules": [{**_ladder(config), **ladder}, *whole["inhibit_rules"][1:]],
        "receivers": [{**receiver, "name": prefixed(receiver["name"])} for receiver in whole["receivers"]],
        **intervals,
    }


def _root(config: Config) -> dict[str, Any]:
    return {
        "receiver": TICKETS,
        "group_by": ["alertname", "model_name", *config.told_apart],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "1d",
    }


def _routes(config: Config) -> list[dict[str, Any]]:
    hours: dict[str, Any] = {"active_time_intervals": [WORKING_HOURS]} if config.working_hours is not None else {}
    return [
        _route(config, Severity.PAGE, group_wait="10s", repeat_interval="4h"),
        {**_route(config, Severity.TICKET), **hours},
        _route(config, Severity.NONE, group_wait="0s", group_interval="1m", repeat_interval="5m"),
    ]


def _receivers(config: Config) -> list[dict[str, Any]]:
    receivers = config.receivers
    return [
        _receiver(PAGER, receivers.pager),
        _receiver(TICKETS, receivers.tickets),
        _receiver(WATCHDOG, receivers.watchdog),
    ]


def _time_intervals(config: Config) -> dict[str, Any]:
    """Return when tickets are told, where it is said; what comes outside of it is told when it begins."""
    hours = config.working_hours
    if hours is None:
        return {}
    span = {"start_time": hours.start, "end_time": hours.end}
    interval = {"times": [span], "weekdays": list(hours.weekdays), "location": hours.location}
    return {"time_intervals": [{"name": WORKING_HOURS, "time_intervals": [interval]}]}


def _route(config: Config, severity: Severity, **times: str) -> dict[str, Any]:
    return {"receiver": RECEIVERS[severity], "matchers": _of(config, severity), **times}


def _ladder(config: Config) -> dict[str, Any]:
    """Let the page of an alert, which is a model's, silence its tickets."""
    return {
        "source_matchers": _of(config, Severity.PAGE),
        "target_matchers": _of(config, Severity.TICKET),
        "equal": ["alertname", "model_name", *config.told_apart, "slo"],
    }


def _of(config: Config, severity: Severity | None) -> list[str]:
    return [f'severity="{config.severity_label(severity)}"'] if severity else []


def _inhibit(config: Config, rule: Inhibition) -> dict[str, Any]:
    return {
        "source_matchers": [_names(rule.sources), *_of(config, rule.source_severity)],
        "target_matchers": [_names(rule.targets), *_of(config, rule.target_severity)],
        "equal": list(dict.fromkeys((*rule.equal, *config.external_labels))),
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
    if receiver.opsgenie_key_file:
        out["opsgenie_configs"] = [_opsgenie(receiver)]
    if receiver.teams_url_file:
        out["msteamsv2_configs"] = [_teams(receiver)]
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


def _opsgenie(receiver: Receiver) -> dict[str, Any]:
    return {
        "api_key_file": receiver.opsgenie_key_file, "message": _SUBJECT, "description": _BODY, "send_resolved": True,
    }  # fmt: skip


def _teams(receiver: Receiver) -> dict[str, Any]:
    """Return a workflow's webhook, which Alertmanager knows from 0.28 on."""
    return {"webhook_url_file": receiver.teams_url_file, "send_resolved": True, "title": _SUBJECT, "text": _BODY}


def _email(receiver: Receiver) -> dict[str, Any]:
    email = receiver.email
    if email is None:
        raise AssertionError("called only with an email")
    out: dict[str, Any] = {"to": email.to, "from": email.sender, "smarthost": email.smarthost, "send_resolved": True}
    if email.username:
        out |= {"auth_username": email.username, "auth_password_file": email.password_file}
    return out | {"headers": {"Subject": _SUBJECT}, "text": _BODY}
