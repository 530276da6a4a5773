"""Who hears of what: every rule's real labels through amtool, and inhibition as data.

Alertmanager lets an inhibition apply when all ``equal`` labels are missing on both sides, so each side must have them.
"""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from tests.programs import DEADLINE_S, PATIENCE_S, find, versions
from tests.rules.live import ready
from tests.rules.playback import free_port
from tests.rules.rulesets import WITH_SLO
from tests.rules.tools import RULES, run
from vllm_vitals.config.alerts import Config, Email, Receiver, Receivers
from vllm_vitals.config.section import parse_alerts
from vllm_vitals.rules import routing
from vllm_vitals.rules.build import rules
from vllm_vitals.rules.model import Alert, Scope, Severity, dump
from vllm_vitals.rules.text import scope_labels

ALERTS = {(a.name, a.severity): a for g in rules(WITH_SLO)["alerts"] for a in g.rules if isinstance(a, Alert)}
EVERY_RECEIVER = Receiver(
    webhook_url="http://127.0.0.1:1/hook",
    webhook_credentials_file="/run/secrets/hook",
    slack_url_file="/run/secrets/slack",
    slack_channel="#oncall",
    pagerduty_key_file="/run/secrets/pagerduty",
    email=Email("oncall@example.com", "mail.example.com:587", "vitals@example.com", "vitals", "/run/secrets/mail"),
)


def labels_of(alert: Alert) -> dict[str, str]:
    """The labels that this alert really carries."""
    return {"alertname": alert.name, **dict.fromkeys(scope_labels(WITH_SLO, alert.scope), "x"), **alert.labels}


@pytest.mark.parametrize("tool", [0, 1])
def test_every_alert_reaches_the_receiver_of_its_severity(tool: int) -> None:
    found = versions("amtool")
    if tool >= len(found):
        pytest.skip("only one release of amtool is here: make tools unpacks the current one")
    for (_, severity), alert in ALERTS.items():
        receiver = routing.RECEIVERS[severity]
        pairs = [f"{k}={v}" for k, v in labels_of(alert).items()]
        config = f"--config.file={RULES / 'alertmanager.yml'}"
        done = run(found[tool], "config", "routes", "test", config, f"--verify.receivers={receiver}", *pairs)
        assert done.returncode == 0, (alert.name, done.stdout, done.stderr)


def test_an_unknown_severity_still_arrives_as_a_ticket() -> None:
    config = f"--config.file={RULES / 'alertmanager.yml'}"
    done = run(versions("amtool")[0], "config", "routes", "test", config, "alertname=x", "severity=pgae")
    assert done.stdout.strip() == routing.TICKETS


def test_every_severity_has_a_receiver() -> None:
    assert set(routing.RECEIVERS) == set(Severity)


@pytest.mark.parametrize("receiver", [Receiver(), EVERY_RECEIVER], ids=["none", "all"])
def test_amtool_accepts_the_routes_with_no_receiver_and_with_all(receiver: Receiver, tmp_path: Path) -> None:
    config = replace(Config(), receivers=Receivers(receiver, receiver, receiver))
    path = tmp_path / "alertmanager.yml"
    path.write_text(dump(routing.document(config)))
    for tool in versions("amtool"):
        done = run(tool, "check-config", str(path))
        assert done.returncode == 0, done.stdout + done.stderr


def test_both_sides_of_every_inhibition_carry_its_equal_labels() -> None:
    names = {name for name, _ in ALERTS}
    for rule in routing.inhibitions(WITH_SLO):
        sides = ((rule.sources, rule.source_severity), (rule.targets, rule.target_severity))
        for name, severity in ((name, severity) for side, severity in sides for name in side):
            assert name in names, f"{name} in an inhibition is no alert"
            mine = [a for (n, s), a in ALERTS.items() if n == name and severity in (None, s)]
            assert mine, (name, severity)
            for alert in mine:
                missing = set(rule.equal) - labels_of(alert).keys()
                assert not missing, f"{name} lacks {missing}, so the inhibition would apply between strangers"


def test_nothing_silences_itself() -> None:
    for rule in routing.inhibitions(WITH_SLO):
        assert not set(rule.sources) & set(rule.targets)


def test_nothing_silences_what_is_wider_than_itself() -> None:
    wide = {name for (name, severity), a in ALERTS.items() if severity is Severity.PAGE and a.scope is Scope.MODEL}
    for rule in routing.inhibitions(WITH_SLO):
        if wide & set(rule.targets) and rule.target_severity is not Severity.TICKET:
            assert rule.source_severity is Severity.PAGE, rule
            assert tuple(rule.equal) == WITH_SLO.model_identity, rule


def test_the_page_of_an_alert_carries_no_label_that_its_ticket_lacks() -> None:
    for (name, severity), alert in ALERTS.items():
        if severity is Severity.PAGE and (name, Severity.TICKET) in ALERTS:
            ticket = ALERTS[name, Severity.TICKET]
            assert set(scope_labels(WITH_SLO, alert.scope)) <= set(scope_labels(WITH_SLO, ticket.scope))


def test_a_spiral_silences_its_own_symptoms() -> None:
    silenced = {t for rule in routing.inhibitions(Config()) if "VLLMDeathSpiral" in rule.sources for t in rule.targets}
    assert {"VLLMThrashing", "VLLMPreempting", "VLLMKVPressure", "VLLMTailDivergence", "VLLMLongQueue"} <= silenced


# What would silence a spiral of the same victim.
WORSE = {"VLLMStalled", "VLLMFailing", "VLLMModelUnavailable", "VLLMCapacityLost"}


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    """A real Alertmanager with the committed config; its address."""
    port = free_port()
    command = [
        find("prometheus-alertmanager"), f"--config.file={RULES / 'alertmanager.yml'}", f"--storage.path={tmp_path}",
        "--cluster.listen-address=", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            asyncio.run(ready(f"http://127.0.0.1:{port}/-/ready"))
            yield f"http://127.0.0.1:{port}/api/v2/alerts"
        finally:
            process.terminate()


def test_a_real_alertmanager_silences_symptoms_of_the_same_victim_alone(alertmanager: str) -> None:
    spiral = labels_of(ALERTS["VLLMDeathSpiral", Severity.PAGE])
    symptoms = [labels_of(a) for (_, severity), a in ALERTS.items() if severity is not Severity.NONE]
    stranger = {**labels_of(ALERTS["VLLMKVPressure", Severity.TICKET]), "model_name": "y", "target": "y"}
    posted = [{"labels": one} for one in (spiral, *symptoms, stranger) if one["alertname"] not in WORSE]
    requests.post(alertmanager, json=posted, timeout=PATIENCE_S).raise_for_status()
    symptoms_of_it = {"VLLMThrashing", "VLLMPreempting", "VLLMKVPressure", "VLLMTailDivergence", "VLLMLongQueue"}
    until = time.monotonic() + DEADLINE_S
    while True:  # its inhibitor takes in a source a moment after the API did
        kept = requests.get(alertmanager, timeout=PATIENCE_S).json()
        silenced = [a["labels"] for a in kept if a["status"]["inhibitedBy"]]
        silent = {labels["alertname"] for labels in silenced if labels.get("target") == "x"}
        if symptoms_of_it <= silent or time.monotonic() > until:
            break
        time.sleep(0.05)
    loud = [a["labels"] for a in kept if not a["status"]["inhibitedBy"]]
    assert symptoms_of_it <= silent
    assert spiral in loud
    assert stranger in loud
    assert labels_of(ALERTS["VLLMResponsesTruncated", Severity.TICKET]) in loud


def test_no_route_or_inhibition_uses_the_exporters_own_job_or_instance() -> None:
    text = (RULES / "alertmanager.yml").read_text()
    assert "instance" not in text
    assert "job" not in text


def test_identity_labels_join_grouping_and_equal() -> None:
    config = parse_alerts({"alerts": {"identity_labels": ["cluster"]}})
    document = routing.document(config)
    assert "cluster" in document["route"]["group_by"]
    assert all("cluster" in rule["equal"] for rule in document["inhibit_rules"])
