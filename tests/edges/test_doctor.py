"""`vllm-vitals doctor` against servers that answer what a real installation answered, one fault planted at a time."""

import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.typed import Done, typed
from vllm_vitals.config.alerts import Config
from vllm_vitals.dashboards import build as dashboards
from vllm_vitals.dashboards.site import Site
from vllm_vitals.doctor.alertmanager import check as routes
from vllm_vitals.rules.build import rules
from vllm_vitals.rules.model import Alert

DATA = Path(__file__).parents[1] / "data" / "doctor"
Pages = dict[str, Any]  # path -> document, text, or status
PARTS = ("daemon", "prometheus", "alertmanager", "grafana")


def loaded() -> dict[str, Any]:
    """Prometheus' answer about rules: those of this release, as it writes them."""
    every = [r for groups in rules(Config(), frozenset({"daemon"})).values() for g in groups for r in g.rules]
    made = [
        {"name": r.name, "type": "alerting", "duration": r.hold, "health": "ok"}
        if isinstance(r, Alert)
        else {"name": r.record, "type": "recording", "health": "ok"}
        for r in every
    ]
    return {"status": "success", "data": {"groups": [{"name": "vllm_vitals", "rules": made}]}}


def healthy() -> dict[str, Pages]:
    def read(name: str) -> Any:
        return json.loads((DATA / name).read_text())

    boards = {name.removesuffix(".json"): json.loads(text) for name, text in BOARDS.items()}
    status = read("status.json")
    hook = "- name: pager\n  webhook_configs:\n  - url: <secret>\n"
    status["config"]["original"] = status["config"]["original"].replace("- name: pager\n", hook)
    return {
        "daemon": {"/metrics": (DATA / "metrics.txt").read_text(), "/api/v1/engines": read("engines.json")},
        "prometheus": {
            "/-/ready": "ready",
            "/api/v1/targets": read("targets.json"),
            "/api/v1/rules": loaded(),
            "/api/v1/alertmanagers": read("alertmanagers.json"),
            "/api/v1/query": {"status": "success", "data": {"resultType": "vector", "result": []}},
        },
        "alertmanager": {"/api/v2/status": status, "/api/v2/alerts": {}},
        "grafana": {
            "/api/health": {"database": "ok"},
            **{f"/api/dashboards/uid/{uid}": {"meta": {}, "dashboard": board} for uid, board in boards.items()},
        },
    }


BOARDS = dashboards.build(Site(config=Config()))


@contextmanager
def serving(pages: Pages) -> Iterator[str]:
    """A server on loopback that answers each path with its document. ``clock`` is how far its clock is ahead (s)."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            page = pages.get(self.path.partition("?")[0], 404)
            status = page if isinstance(page, int) else 200
            body = page.encode() if isinstance(page, str) else json.dumps(page).encode()
            self.send_response_only(status)
            self.send_header("Date", formatdate(time.time() + pages.get("clock", 0), usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815 - http.server's names

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(parts: dict[str, Pages], *more: str) -> Done:
    with ExitStack() as stack:
        words: list[str] = []
        for part, pages in parts.items():
            words += [f"--{part}", stack.enter_context(serving(pages))]
        return typed("doctor", *words, *more)


def test_a_healthy_installation_has_no_fault() -> None:
    done = asked(healthy())
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[-1] == "0 faults"
    assert [line.split()[0] for line in lines[:-1]] == ["ok"] * len(PARTS)


def replaced(part: str, path: str, old: str, new: str) -> Callable[[dict[str, Pages]], None]:
    """Plant a fault by another text in an answer."""

    def plant(parts: dict[str, Pages]) -> None:
        page = parts[part][path]
        text = page if isinstance(page, str) else json.dumps(page)
        assert old in text
        spoilt = text.replace(old, new)
        parts[part][path] = spoilt if isinstance(page, str) else json.loads(spoilt)

    return plant


def put(part: str, path: str, page: Any) -> Callable[[dict[str, Pages]], None]:
    return lambda parts: parts[part].update({path: page})


def scrape(**keys: str) -> Callable[[dict[str, Pages]], None]:
    return lambda parts: parts["prometheus"]["/api/v1/targets"]["data"]["activeTargets"][0].update(keys)


NO_TARGETS = {"status": "success", "data": {"activeTargets": []}}
COUNT = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1.0, "3"]}]}}
BLOCKED = 'vllm_vitals_canary_requests_total{target="gpu-1:8000",outcome="error"} 7\n'
CANARY = f"# TYPE vllm_vitals_canary_requests_total counter\n{BLOCKED}"
IN_USE = {"impaired": {"disk": "/var/lib/vllm-vitals/logs.checkpoint is in use by process 7 on node-1"}, "targets": []}
CRITICAL = ('severity=\\"page\\"', 'severity=\\"critical\\"')
BUILD = "# HELP vllm_vitals_build_info"
DOWN = '"VLLMExporterDown", "type": "alerting", "duration": '
FAULTS = {
    "wrong port": (put("daemon", "/metrics", "vllm:num_requests_running 1\n"), "vLLM itself, not vllm-vitals"),
    "dead Alertmanager": (put("prometheus", "/api/v1/alertmanagers", {"data": {"activeAlertmanagers": []}}),
                          "knows no Alertmanager"),
    "rules not loaded": (put("prometheus", "/api/v1/rules", {"data": {"groups": []}}), "none of our rules is loaded"),
    "clock skew": (put("daemon", "clock", 120.0), "its clock is 1"),
    "sample limit": (scrape(health="down", lastError="sample limit exceeded"), "drops every scrape of http"),
    "missing label": (put("prometheus", "/api/v1/query", COUNT), "3 series of vllm_vitals_target_up have no label"),
    "unscraped daemon": (put("prometheus", "/api/v1/targets", NO_TARGETS), "the daemon is not scraped"),
    "wrong severity tree": (replaced("alertmanager", "/api/v2/status", *CRITICAL),
                            'severity="page" and severity="ticket" both go to tickets'),
    "no receiver": (replaced("alertmanager", "/api/v2/status", "webhook_configs:", "webhook_confligs:"),
                    "the receiver of pages, pager, notifies no one"),
    "stale dashboard": (replaced("grafana", "/api/dashboards/uid/vllm-vitals-engine", "vllm_vitals_", "vllm_vital_"),
                        "dashboard vllm-vitals-engine is of another release"),
    "two daemons on one checkpoint": (put("daemon", "/api/v1/engines", IN_USE),
                                      "logs.checkpoint is in use by process 7"),
    "blocked canary": (replaced("daemon", "/metrics", BUILD, CANARY + BUILD),
                       "the canary of gpu-1:8000 is blocked: 7 requests"),
    # and some that people meet besides
    "scraped too seldom": (scrape(scrapeInterval="1m"), "every 1m (limit 30s)"),
    "cannot be scraped": (scrape(health="down", lastError="connection refused"), "cannot scrape http"),
    "no dashboard": (put("grafana", "/api/dashboards/uid/vllm-vitals-self", 404), "has no dashboard vllm-vitals-self"),
    "no login": (put("grafana", "/api/health", 401), "put a login that may read into the address"),
    "a target that is down": (replaced("daemon", "/metrics", "28000\"} 1", "28000\"} 0"), "cannot read 1 of 1 targets"),
    "a rule of another release": (replaced("prometheus", "/api/v1/rules", DOWN + "300", DOWN + "60"),
                                  "rule VLLMExporterDown is of another release"),
    "something else": (put("alertmanager", "/api/v2/status", {"ok": True}), "answers something else than expected"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_one_clear_line(fault: str) -> None:
    plant, says = FAULTS[fault]
    parts = copy.deepcopy(healthy())
    plant(parts)
    done = asked(parts)
    assert done.exit_code == 1, done.output
    faults = [line for line in done.stdout.splitlines() if line.startswith("FAULT")]
    assert len(faults) == 1, done.output
    assert says in faults[0]
    assert ". Next: " in faults[0]
    assert done.stdout.splitlines()[-1] == "1 fault"


def test_a_server_that_is_not_there_is_one_line_without_its_password() -> None:
    done = typed("doctor", "--alertmanager", "http://me:secret@127.0.0.1:1")
    assert done.exit_code == 1
    assert done.stdout.startswith("FAULT  http://127.0.0.1:1: refuses the connection. Next: ")
    assert "secret" not in done.output


def test_a_test_page_is_sent_only_on_request() -> None:
    parts = {"alertmanager": healthy()["alertmanager"]}
    assert "took a test page" not in asked(parts).stdout
    assert "took a test page" in asked(parts, "--send-test-page").stdout
    assert typed("doctor", "--send-test-page", "--prometheus", "http://127.0.0.1:1").exit_code == 2
    assert "nothing to look at" in typed("doctor").stderr


@pytest.mark.parametrize(
    ("child", "faulty"),
    [
        ({"match": {"severity": "page"}, "receiver": "pager"}, False),
        ({"match_re": {"severity": "page|critical"}, "receiver": "pager"}, False),
        ({"matchers": ["severity=~page|critical"], "receiver": "pager"}, False),
        ({"matchers": ['team="llm"'], "receiver": "pager"}, True),
        ({"receiver": "chat", "continue": True, "matchers": ['severity="page"'],
          "routes": [{"receiver": "pager"}]}, False),
    ],
)  # fmt: skip
def test_routes_are_walked_as_alertmanager_walks_them(child: dict[str, Any], faulty: bool) -> None:
    hook = {"webhook_configs": [{"url": "http://pager"}]}
    receivers = [{"name": "pager", **hook}, {"name": "tickets", **hook}]
    config = {"route": {"receiver": "tickets", "routes": [child]}, "receivers": receivers}
    assert bool(list(routes("am", config))) is faulty
