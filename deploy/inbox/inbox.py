"""The inbox of the compose stack: shows what on-call would have received, as Alertmanager sent it.

Input: Alertmanager's webhooks, POST /<receiver>. Output: one page, newest first, and the same as JSON. Invariant:
bounded (body, notifications kept, alerts and text of each), everything from outside is escaped and visible, a page of
another site can put nothing in, and nothing is stored on disk.
"""

import argparse
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web
from jinja2 import Environment, FileSystemLoader

from vllm_vitals.serve import boundary
from vllm_vitals.serve.views import visible

MAX_BODY = 1024 * 1024
KEPT = 200
MAX_ALERTS = 500  # of one notification
MAX_LABELS = 64
MAX_TEXT = 4_096
RECEIVERS = ("pager", "tickets", "watchdog")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of a notification, in words."""

    name: str
    firing: bool
    summary: str
    description: str
    labels: Mapping[str, str]
    runbook: str
    dashboard: str
    since: str


@dataclass(frozen=True, slots=True)
class Notification:
    """What one receiver got at one moment."""

    at: datetime
    receiver: str
    firing: bool
    alerts: tuple[Alert, ...]


def read(receiver: str, body: Mapping[str, Any], at: datetime) -> Notification:
    """Read a webhook's body. Raises ValueError where it is not one of Alertmanager's."""
    alerts = body.get("alerts")
    if not isinstance(alerts, list) or not all(isinstance(alert, dict) for alert in alerts):
        raise ValueError("no list of alerts: this is not a webhook of Alertmanager")
    shown = tuple(_alert(alert) for alert in alerts[:MAX_ALERTS])
    return Notification(at, receiver, body.get("status") == "firing", shown)


def _alert(alert: Mapping[str, Any]) -> Alert:
    labels, said = _texts(alert.get("labels"), 256), _texts(alert.get("annotations"), MAX_TEXT)
    return Alert(
        name=labels.pop("alertname", "?"),
        firing=alert.get("status") == "firing",
        summary=said.get("summary", ""),
        description=said.get("description", ""),
        labels=labels,
        runbook=_runbook(said.get("runbook_url", "")),
        dashboard=_link(said.get("dashboard_url", "")),
        since=str(alert.get("startsAt", ""))[:19].replace("T", " "),
    )


def _texts(pairs: object, longest: int) -> dict[str, str]:
    """Keep names with texts, each cut where it is absurdly long."""
    named = list(pairs.items())[:MAX_LABELS] if isinstance(pairs, dict) else []
    return {str(key)[:256]: str(value)[:longest] for key, value in named}


def _link(url: str) -> str:
    """Return a link only where it leads to a page: a label's value must not become a script."""
    try:
        return url if urlsplit(url).scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _runbook(url: str) -> str:
    """Return a runbook's address: published elsewhere, or the copy that this page serves."""
    return _link(url) or (f"/runbooks/{url.rsplit('/', 1)[-1]}" if url.endswith(".md") else "")


class Inbox:
    """Keeps the last notifications. The watchdog's beat is shown as its last moment alone."""

    def __init__(self, runbooks: Path | None = None, names: Collection[str] = ()) -> None:
        self._kept: deque[Notification] = deque(maxlen=KEPT)
        self._beat: datetime | None = None
        self._runbooks = runbooks
        self._names = frozenset(names)
        here = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            finalize=lambda value: visible(value) if type(value) is str else value,
        )
        self._page = here.get_template("inbox.html")

    def app(self) -> web.Application:
        """Make the web application."""
        app = web.Application(middlewares=[boundary.middleware(lambda: self._names)], client_max_size=MAX_BODY)
        app.add_routes([
            web.get("/", self._show),
            web.get("/-/healthy", self._healthy),
            web.get("/api/notifications", self._list),
            web.get("/runbooks/{name}", self._runbook),
            web.post("/{receiver}", self._take),
        ])  # fmt: skip
        return app

    async def _take(self, request: web.Request) -> web.Response:
        receiver = request.match_info["receiver"]
        if receiver not in RECEIVERS:
            return web.Response(status=404, text=f"no receiver {receiver}: use one of {', '.join(RECEIVERS)}\n")
        try:
            body = orjson.loads(await request.read())
            taken = read(receiver, body if isinstance(body, dict) else {}, datetime.now(UTC))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        if receiver == "watchdog":
            self._beat = taken.at
        else:
            self._kept.appendleft(taken)
        return web.Response(text="taken\n")

    async def _show(self, _: web.Request) -> web.Response:
        page = self._page.render(notifications=self._kept, beat=self._beat)
        return web.Response(text=page, content_type="text/html")

    async def _list(self, _: web.Request) -> web.Response:
        shown = [
            {
                "at": kept.at.isoformat(timespec="seconds"),
                "receiver": kept.receiver,
                "firing": kept.firing,
                "alerts": [
                    {"name": alert.name, "firing": alert.firing, "summary": alert.summary, "labels": dict(alert.labels)}
                    for alert in kept.alerts
                ],
            }
            for kept in self._kept
        ]
        return web.json_response({"notifications": shown, "watchdog": self._beat and self._beat.isoformat()})

    async def _runbook(self, request: web.Request) -> web.Response:
        known = {path.name: path for path in self._runbooks.glob("*.md")} if self._runbooks else {}
        path = known.get(request.match_info["name"])
        if path is None:
            return web.Response(status=404, text="no runbook of this name\n")
        return web.Response(text=path.read_text(encoding="utf-8"))

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description="Shows what Alertmanager sends.")
    parser.add_argument("--port", type=int, default=9841)
    parser.add_argument("--runbooks", type=Path)
    parser.add_argument("--allowed-hosts", default="", help="more names that it may be asked for under; * for any")
    given = parser.parse_args()
    names = {name.strip().lower() for name in given.allowed_hosts.split(",") if name.strip()}
    web.run_app(Inbox(given.runbooks, names).app(), port=given.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
