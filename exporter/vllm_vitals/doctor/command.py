"""``vllm-vitals doctor``: ask every part of an installation, and say what is wrong with it."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import yaml

from vllm_vitals.cli.options import FILE, ca_file_option
from vllm_vitals.doctor import alertmanager, daemon, grafana, prometheus
from vllm_vitals.doctor.ask import Server, UnansweredError
from vllm_vitals.doctor.finding import Finding
from vllm_vitals.generated import mode_option, needing_packages

TEST_PAGE_FOR = timedelta(minutes=5)


@click.command()
@click.option("--daemon", "daemon_urls", multiple=True, metavar="URL", help="Address of a daemon (repeatable).")
@click.option("--prometheus", "prometheus_url", metavar="URL", help="Address of Prometheus.")
@click.option("--alertmanager", "alertmanager_url", metavar="URL", help="Address of Alertmanager.")
@click.option("--grafana", "grafana_url", metavar="URL", help="Address of Grafana.")
@ca_file_option
@click.option("--alerts", "limits", type=FILE, help="Alert config that rules and dashboards were built with.")
@mode_option("daemon")
@click.option("--send-test-page", is_flag=True, help="Send a page through Alertmanager; it resolves after 5 minutes.")
def doctor(
    daemon_urls: tuple[str, ...], prometheus_url: str | None, alertmanager_url: str | None, grafana_url: str | None,
    ca_file: str, limits: Path | None, modes: frozenset[str], send_test_page: bool,
) -> None:  # fmt: skip
    """Find what is wrong with an installation: daemon, Prometheus, Alertmanager and Grafana.

    Give the addresses of the parts that there are; a login may stand in them (http://user:password@host). Exit code 0
    where all is well, 1 where something is not.
    """
    if not (daemon_urls or prometheus_url or alertmanager_url or grafana_url):
        raise click.UsageError("give --daemon, --prometheus, --alertmanager or --grafana: nothing to look at")
    if send_test_page and not alertmanager_url:
        raise click.UsageError("--send-test-page needs --alertmanager")
    asked = _Asked(limits, modes)
    parts: list[tuple[str | None, Callable[[Server], Iterator[Finding]]]] = [
        *((url, asked.daemon) for url in daemon_urls),
        (prometheus_url, asked.prometheus),
        (alertmanager_url, asked.alertmanager),
        (grafana_url, asked.grafana),
    ]
    if send_test_page:
        parts.append((alertmanager_url, asked.test_page))
    findings = [one for url, look in parts if url for one in _answered(Server(url, ca_file), look)]
    findings += daemon.clocks(asked.clocks)
    for finding in findings:
        click.echo(str(finding))
    faults = sum(finding.fault for finding in findings)
    click.echo(f"{faults} fault{'s' if faults != 1 else ''}")
    sys.exit(1 if faults else 0)


def _answered(server: Server, look: Callable[[Server], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look(server)
    except UnansweredError as error:
        next_step = "see that it runs, and that address and port are right"
        if error.status in (401, 403):
            next_step = "put a login that may read into the address"
        yield Finding(server.name, str(error), next_step)
    except (AttributeError, KeyError, TypeError, IndexError, ValueError):
        yield Finding(
            server.name, "answers something else than expected", "see that the address is of the right server"
        )


class _Asked:
    """What is asked of each part, and how late each server's clock was read."""

    def __init__(self, limits: Path | None, modes: frozenset[str]) -> None:
        with needing_packages():
            from vllm_vitals.config import section  # noqa: PLC0415
            from vllm_vitals.config.alerts import Config  # noqa: PLC0415
        self._config = section.alerts(limits) if limits else Config()
        self._modes = modes
        self.clocks: dict[str, tuple[float, float]] = {}

    def daemon(self, server: Server) -> Iterator[Finding]:
        metrics = self._get(server, "/metrics")
        try:
            engines = server.get("/api/v1/engines").json()
        except UnansweredError:
            engines = None
        yield from daemon.check(server.name, metrics.decode("utf-8", "replace"), engines)

    def prometheus(self, server: Server) -> Iterator[Finding]:
        name, own = server.name, self._config
        self._get(server, "/-/ready")
        if "daemon" in self._modes:
            yield from prometheus.scraping(name, _data(server, "/api/v1/targets", state="active"), own.exporter_job)
        expected = self._expected()
        yield from prometheus.rules(name, _data(server, "/api/v1/rules"), expected)
        names = ("target", *own.identity_labels)
        yield from prometheus.labels(name, {label: _without(server, label) for label in names})
        yield from prometheus.alertmanagers(name, _data(server, "/api/v1/alertmanagers"))
        yield Finding(name, f"asked about {len(expected)} rules")

    def alertmanager(self, server: Server) -> Iterator[Finding]:
        status = json.loads(self._get(server, "/api/v2/status"))
        yield from alertmanager.check(server.name, yaml.safe_load(status["config"]["original"]))
        yield Finding(server.name, f"version {status['versionInfo']['version']}")

    def grafana(self, server: Server) -> Iterator[Finding]:
        with needing_packages():
            from vllm_vitals.dashboards import build  # noqa: PLC0415
            from vllm_vitals.dashboards.site import Site  # noqa: PLC0415
        self._get(server, "/api/health")
        built = {
            name.removesuffix(".json"): json.loads(text)
            for name, text in build.build(Site(config=self._config)).items()
        }
        found = {uid: _dashboard(server, uid) for uid in built}
        yield from grafana.check(server.name, found, built)
        yield Finding(server.name, f"asked about {len(built)} dashboards")

    def test_page(self, server: Server) -> Iterator[Finding]:
        now = datetime.now(UTC)
        labels = {"alertname": "VLLMVitalsTestPage", "severity": "page", "model_name": "test", "target": "doctor"}
        text = "A test of vllm-vitals doctor: nothing is wrong."
        server.post(
            "/api/v2/alerts",
            [{
                "labels": labels, "annotations": {"summary": text, "description": text},
                "startsAt": now.isoformat(), "endsAt": (now + TEST_PAGE_FOR).isoformat(),
            }],
        )  # fmt: skip
        yield Finding(server.name, "took a test page: it should reach on-call within a minute")

    def _get(self, server: Server, path: str) -> bytes:
        answer = server.get(path)
        if answer.clock is not None:
            self.clocks[server.name] = (answer.clock, time.time())
        return answer.body

    def _expected(self) -> dict[str, float]:
        with needing_packages():
            from vllm_vitals.rules import build  # noqa: PLC0415
            from vllm_vitals.rules.model import Alert  # noqa: PLC0415
        groups = [group for groups in build.rules(self._config, self._modes).values() for group in groups]
        every = [rule for group in groups for rule in group.rules]
        return {
            r.name if isinstance(r, Alert) else r.record: float(r.hold) if isinstance(r, Alert) else 0 for r in every
        }


def _data(server: Server, path: str, **query: str) -> Any:
    return server.get(path, **query).json()["data"]


def _without(server: Server, label: str) -> int:
    result = _data(server, "/api/v1/query", query=f'count(vllm_vitals_target_up{{{label}=""}})')["result"]
    return int(float(result[0]["value"][1])) if result else 0


def _dashboard(server: Server, uid: str) -> Any:
    try:
        return server.get(f"/api/dashboards/uid/{uid}").json()["dashboard"]
    except UnansweredError as error:
        if error.status != 404:
            raise
        return None
