"""The inbox shows what Alertmanager sends, and nothing sent to it can hurt who reads it."""

import asyncio
import importlib.util
import json
import sys
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def inbox() -> ModuleType:
    spec = importlib.util.spec_from_file_location("inbox", ROOT / "deploy" / "inbox" / "inbox.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["inbox"] = module
    spec.loader.exec_module(module)
    return module


def webhook(status: str = "firing", **annotations: str) -> dict[str, Any]:
    labels = {"alertname": "VLLMDeathSpiral", "severity": "page", "model_name": "m", "target": "a:8000", "engine": "0"}
    alert = {"status": status, "labels": labels, "annotations": annotations, "startsAt": "2026-01-02T03:04:05.678Z"}
    return {"version": "4", "status": status, "alerts": [alert]}


def served(
    inbox: ModuleType, visit: Callable[[TestClient[Any, Any]], Awaitable[None]], runbooks: Path | None = None
) -> None:
    async def visited() -> None:
        async with TestClient(TestServer(inbox.Inbox(runbooks).app())) as client:
            await visit(client)

    asyncio.run(visited())


def test_a_page_and_its_end_are_shown_newest_first(inbox: ModuleType) -> None:
    async def visit(client: TestClient[Any, Any]) -> None:
        assert (
            await client.post("/pager", json=webhook(summary="m is in a spiral", description="R is 11"))
        ).status == 200
        assert (await client.post("/pager", json=webhook("resolved", summary="m is in a spiral"))).status == 200
        page = await (await client.get("/")).text()
        assert page.index(">resolved<") < page.index(">page<")
        assert "R is 11" in page
        listed = (await (await client.get("/api/notifications")).json())["notifications"]
        assert [(one["receiver"], one["firing"]) for one in listed] == [("pager", False), ("pager", True)]
        assert listed[0]["alerts"][0]["labels"]["target"] == "a:8000"

    served(inbox, visit)


def test_the_watchdogs_beat_is_a_time_and_not_a_list(inbox: ModuleType) -> None:
    async def visit(client: TestClient[Any, Any]) -> None:
        assert "No heartbeat" in await (await client.get("/")).text()
        await client.post("/watchdog", json=webhook())
        assert "last heartbeat" in await (await client.get("/")).text()
        assert (await (await client.get("/api/notifications")).json())["notifications"] == []

    served(inbox, visit)


def test_what_comes_from_outside_is_escaped_and_links_only_lead_to_pages(inbox: ModuleType) -> None:
    async def visit(client: TestClient[Any, Any]) -> None:
        sent = webhook(
            summary="<script>alert(1)</script>", dashboard_url="javascript:alert(1)", runbook_url="a/b/VLLMX.md"
        )
        await client.post("/tickets", json=sent)
        page = await (await client.get("/")).text()
        assert "<script>" not in page
        assert "javascript:" not in page
        assert 'href="/runbooks/VLLMX.md"' in page

    served(inbox, visit)


def test_only_runbooks_that_are_there_are_served(inbox: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "VLLMStalled.md").write_text("# VLLMStalled\n", encoding="utf-8")

    async def visit(client: TestClient[Any, Any]) -> None:
        assert await (await client.get("/runbooks/VLLMStalled.md")).text() == "# VLLMStalled\n"
        for name in ("..%2f..%2fetc%2fpasswd", "VLLMOther.md"):
            assert (await client.get(f"/runbooks/{name}")).status == 404

    served(inbox, visit, tmp_path)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"alerts": 3}', b'{"alerts": ["x"]}', b"\xff"])
def test_what_is_not_a_webhook_is_refused_in_one_line(inbox: ModuleType, body: bytes) -> None:
    async def visit(client: TestClient[Any, Any]) -> None:
        answer = await client.post("/pager", data=body, headers={"Content-Type": "application/json"})
        assert answer.status == 400
        assert len((await answer.text()).splitlines()) == 1
        assert (await client.post("/nobody", json=webhook())).status == 404

    served(inbox, visit)


def test_no_more_is_kept_than_a_page_can_show(inbox: ModuleType) -> None:
    async def visit(client: TestClient[Any, Any]) -> None:
        for _ in range(inbox.KEPT + 5):
            await client.post("/pager", json=webhook())
        assert len((await (await client.get("/api/notifications")).json())["notifications"]) == inbox.KEPT
        assert (await client.post("/pager", data=BytesIO(b"x" * (inbox.MAX_BODY + 1)), headers=JSON)).status == 413

    served(inbox, visit)


PLAIN = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**PLAIN, "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({**JSON, "Origin": "http://evil.example"}, 403),
        (PLAIN, 415),
        ({**JSON, "Host": "evil.example"}, 403),
        (JSON, 200),
    ],
)
def test_a_page_of_another_site_puts_nothing_in(inbox: ModuleType, headers: dict[str, str], status: int) -> None:
    async def visit(client: TestClient[Any, Any]) -> None:
        answer = await client.post("/pager", data=json.dumps(webhook(summary="x")).encode(), headers=headers)
        assert answer.status == status
        kept = (await (await client.get("/api/notifications")).json())["notifications"]
        assert len(kept) == (status == 200)

    served(inbox, visit)


@pytest.mark.parametrize(
    "alert",
    [{"labels": [1, 2]}, {"labels": "x", "annotations": 5}, {"annotations": {"dashboard_url": "http://[x"}}, {}],
    ids=["a list", "texts", "no url", "nothing"],
)
def test_what_alertmanager_never_sends_costs_only_itself(inbox: ModuleType, alert: dict[str, Any]) -> None:
    async def visit(client: TestClient[Any, Any]) -> None:
        assert (await client.post("/pager", json={"alerts": [alert]})).status == 200
        assert (await client.get("/")).status == 200

    served(inbox, visit)


def test_depth_length_and_what_cannot_be_seen_are_bounded_and_shown(inbox: ModuleType) -> None:
    async def visit(client: TestClient[Any, Any]) -> None:
        assert (await client.post("/pager", data=b"[" * 100_000, headers=JSON)).status == 400
        many = webhook(summary="a\u202eb" + "x" * 10_000)
        many["alerts"] *= 2 * inbox.MAX_ALERTS
        body = json.dumps(many)[: inbox.MAX_BODY - 1]
        many["alerts"] = many["alerts"][: body.count("startsAt") // 2]
        assert (await client.post("/pager", json=many)).status == 200
        (kept,) = (await (await client.get("/api/notifications")).json())["notifications"]
        assert len(kept["alerts"]) <= inbox.MAX_ALERTS
        page = await (await client.get("/")).text()
        assert r"a\u202eb" in page
        assert "\u202e" not in page
        assert "x" * (inbox.MAX_TEXT + 1) not in page

    served(inbox, visit)
