"""Who hears of what: every rule's real labels through amtool, and inhibition as data.

Alertmanager lets an inhibition apply when all ``equal`` labels are missing on both sides, so each side must have them.
"""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.programs import DEADLINE_S, PATIENCE_S, find, versions
from tests.rules.live import ready
from tests.rules.playback import free_port
from tests.rules.rulesets import WITH_SLO
from tests.rules.tools import RULES, run
from vllm_vitals.config.alerts import Config, Email, Receiver, Receivers, WorkingHours
from vllm_vitals.config.errors import ConfigError
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
    opsgenie_key_file="/run/secrets/opsgenie",
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


THEIRS = {
    "route": {"receiver": "theirs", "routes": [{"receiver": "theirs", "matchers": ['team="x"']}]},
    "receivers": [{"name": "theirs"}],
    "inhibit_rules": [],
    "time_intervals": [],
}


def merged(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Their alertmanager.yml with our lists behind theirs, as `yq ea '. as $one ireduce ({}; . *+ $one)'` makes it."""
    routes = [*ours["route"]["routes"], *THEIRS["route"]["routes"]]
    lists = {name: [*THEIRS[name], *ours.get(name, [])] for name in ("receivers", "inhibit_rules", "time_intervals")}
    return {"route": {**THEIRS["route"], "routes": routes}, **lists}


@pytest.mark.parametrize("receiver", [Receiver(), EVERY_RECEIVER], ids=["none", "all"])
@pytest.mark.parametrize("hours", [None, WorkingHours("08:30", "24:00", ("monday:friday", "sunday"), "Europe/Berlin")])
def test_amtool_accepts_the_routes_with_no_receiver_and_with_all(
    receiver: Receiver, hours: WorkingHours | None, tmp_path: Path
) -> None:
    for place, tool in enumerate(versions("amtool")):
        # Teams' workflows are known from Alertmanager 0.28 on, which is the second.
        mine = (
            receiver if not place or receiver == Receiver() else replace(receiver, teams_url_file="/run/secrets/teams")
        )
        config = replace(Config(), receivers=Receivers(mine, mine, mine), working_hours=hours)
        for name, document in (("whole", routing.document(config)), ("merged", merged(routing.subtree(config)))):
            path = tmp_path / f"{name}{place}.yml"
            path.write_text(dump(document))
            done = run(tool, "check-config", str(path))
            assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_shared_alertmanager_takes_in_routes_our_alerts_alone(tmp_path: Path) -> None:
    path = tmp_path / "merged.yml"
    path.write_text(dump(merged(routing.subtree(Config()))))
    wanted = {
        "alertname=VLLMStalled severity=page": "vllm-vitals-pager",
        "alertname=VLLMBlind severity=ticket": "vllm-vitals-tickets",
        "alertname=VLLMVitalsWatchdog severity=none": "vllm-vitals-watchdog",
        "alertname=VLLMStalled severity=pgae": "vllm-vitals-tickets",
        "alertname=Watchdog severity=none": "theirs",
        "alertname=KubePodCrashLooping severity=page": "theirs",
    }
    for labels, receiver in wanted.items():
        done = run(find("amtool"), "config", "routes", "test", f"--config.file={path}", *labels.split())
        assert done.stdout.strip() == receiver, labels
    for rule in routing.subtree(Config())["inhibit_rules"]:
        assert all(rule[side][0].startswith("alertname") and "VLLM" in rule[side][0] for side in
                   ("source_matchers", "target_matchers"))  # fmt: skip


def test_tickets_wait_for_working_hours_and_pages_do_not() -> None:
    config = parse_alerts({"alerts": {"working_hours": {"start": "08:00", "location": "Asia/Seoul"}}})
    pages, tickets, watchdog = routing.document(config)["route"]["routes"]
    assert tickets["active_time_intervals"] == [routing.WORKING_HOURS]
    assert "active_time_intervals" not in pages
    assert "active_time_intervals" not in watchdog
    with pytest.raises(ConfigError, match=r"working_hours.start: expected a time such as"):
        parse_alerts({"alerts": {"working_hours": {"start": 800}}})


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


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Alertmanager with the committed config; its address. Each test has models of its own."""
    port, tmp_path = free_port(), tmp_path_factory.mktemp("alertmanager")
    command = [
        find("prometheus-alertmanager"), f"--config.file={RULES / 'alertmanager.yml'}", f"--storage.path={tmp_path}",
        "--cluster.listen-address=", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            asyncio.run(ready(f"http://127.0.0.1:{port}/-/ready"))
            yield f"http://127.0.0.1:{port}/api/v2"
        finally:
            process.terminate()


def inhibited(alert: Mapping[str, Any]) -> bool:
    return bool(alert["status"]["inhibitedBy"])


def post(api: str, labels: Sequence[Mapping[str, str]]) -> None:
    requests.post(f"{api}/alerts", json=[{"labels": one} for one in labels], timeout=PATIENCE_S).raise_for_status()


def settled(api: str, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """Its alerts once ``enough``; its inhibitor takes in a source a moment after the API did."""
    until = time.monotonic() + DEADLINE_S
    while True:
        kept: list[dict[str, Any]] = requests.get(f"{api}/alerts", timeout=PATIENCE_S).json()
        if enough(kept) or time.monotonic() > until:
            return kept
        time.sleep(0.05)


def alert(name: str, severity: str, **labels: str) -> dict[str, str]:
    return {"alertname": name, "severity": severity, **labels}


def test_a_real_alertmanager_lets_no_engine_cluster_or_model_mute_another(alertmanager: str) -> None:
    bad = {"target": "bad:8000", "model_name": "m", "engine": "0"}
    muted = (
        alert("VLLMOverload", "page", model_name="lost"),  # by the engines that it has lost
        alert("VLLMEngineDown", "ticket", target="g:1", model_name="lost", engine="0"),
        alert("VLLMStalled", "ticket", **bad, cluster="a"),  # by the page of its own model and cluster
        alert("VLLMSLOBurn", "page", model_name="burnt", slo="ft"),  # by the overload that explains it
    )
    loud = (
        alert("VLLMCapacityLost", "page", model_name="lost"),
        alert("VLLMOverload", "page", model_name="burnt"),
        alert("VLLMStalled", "page", model_name="m", cluster="a"),
        alert("VLLMStalled", "ticket", **bad, cluster="b"),
        alert("VLLMSLOBurn", "page", model_name="m", slo="ft", cluster="b"),
        # one known-bad engine, silenced below, and what its model burns
        alert("VLLMDeathSpiral", "ticket", target="known:8000", model_name="k", engine="0"),
        alert("VLLMSLOBurn", "page", model_name="k", slo="ft"),
        alert("VLLMOverload", "page", model_name="k2"),
        alert("VLLMCapacityLost", "page", model_name="k3"),
    )
    known = {"name": "target", "value": "known:8000", "isRegex": False, "isEqual": True}
    silence = {"matchers": [known], "startsAt": "2020-01-01T00:00:00Z", "endsAt": "2099-01-01T00:00:00Z",
               "createdBy": "a test", "comment": "known to be bad"}  # fmt: skip
    requests.post(f"{alertmanager}/silences", json=silence, timeout=PATIENCE_S).raise_for_status()
    post(alertmanager, (*muted, *loud))

    def quiet(kept: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
        return [a["labels"] for a in kept if inhibited(a)]

    kept = settled(alertmanager, lambda kept: all(one in quiet(kept) for one in muted))
    assert [one for one in muted if one not in quiet(kept)] == []
    assert [one for one in loud if one in quiet(kept)] == []
    assert [a["labels"]["target"] for a in kept if a["status"]["silencedBy"]] == ["known:8000"]


def test_a_real_alertmanager_silences_symptoms_of_the_same_victim_alone(alertmanager: str) -> None:
    spiral = labels_of(ALERTS["VLLMDeathSpiral", Severity.PAGE])
    symptoms = [labels_of(a) for (_, severity), a in ALERTS.items() if severity is not Severity.NONE]
    stranger = {**labels_of(ALERTS["VLLMKVPressure", Severity.TICKET]), "model_name": "y", "target": "y"}
    posted = [one for one in (spiral, *symptoms, stranger) if one["alertname"] not in WORSE]
    symptoms_of_it = {"VLLMThrashing", "VLLMPreempting", "VLLMKVPressure", "VLLMTailDivergence", "VLLMLongQueue"}
    post(alertmanager, posted)
    kept = settled(
        alertmanager,
        lambda kept: (
            symptoms_of_it
            <= {a["labels"]["alertname"] for a in kept if inhibited(a) and a["labels"].get("target") == "x"}
        ),
    )
    silent = {a["labels"]["alertname"] for a in kept if inhibited(a) and a["labels"].get("target") == "x"}
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
