"""`make incidents`: every recording at once, at true speed, through exporter, Prometheus and Alertmanager.

A webhook notes each page and when it came. Both producers run side by side: the exporter with its Prometheus, and a
Prometheus that makes the series itself. Writes the tables of docs/incidents.md. Takes about five minutes.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from aiohttp import ClientError, ClientSession, ClientTimeout, web

from tests.programs import DEADLINE_S, find
from tests.rules import peers, rulesets
from tests.rules.playback import Player, free_port, player
from tests.rules.recordings import FOLDER, NAMES, expect
from tests.rules.tools import ROOT
from vllm_vitals.config.alerts import Config, Receiver, Receivers
from vllm_vitals.rules import routing
from vllm_vitals.rules.model import dump

DOCUMENT = ROOT / "docs" / "incidents.md"
SCRAPE = EVALUATION = 15
PAUSE = 5  # seconds after the last recording's end


@dataclass(frozen=True)
class Page:
    """What a person would have got: seconds since the recordings began."""

    mode: str
    alert: str
    model: str
    at: float


class Webhook:
    """Receives notifications and remembers every page that began."""

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.began = 0.0

    async def receive(self, request: web.Request) -> web.Response:
        """One notification of Alertmanager; each page in it counts once per notification that carries it as firing."""
        body: Mapping[str, Any] = await request.json()
        now = asyncio.get_running_loop().time() - self.began
        for alert in body["alerts"]:
            labels = alert["labels"]
            if alert["status"] == "firing" and labels.get("severity") == "page":
                mode = request.match_info["mode"]
                self.pages.append(Page(mode, labels["alertname"], labels.get("model_name", ""), now))
        return web.Response()


async def start(stack: AsyncExitStack, folder: Path, *command: str) -> None:
    """A program that ends with the run; its log is kept in the folder."""
    log = (folder / f"{Path(command[0]).name}-{command[-1].rpartition(':')[2].replace('/', '_')}.log").open("wb")
    stack.callback(log.close)
    process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)

    async def end() -> None:
        if process.returncode is None:
            process.terminate()
            await process.wait()

    stack.push_async_callback(end)


async def ready(url: str, seconds: float = DEADLINE_S) -> None:
    """Wait until something answers 200."""
    deadline = time.monotonic() + seconds
    async with ClientSession(timeout=ClientTimeout(total=2)) as session:
        while time.monotonic() < deadline:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except (ClientError, TimeoutError, OSError):
                pass
            await asyncio.sleep(0.2)
    raise TimeoutError(f"{url} did not answer within {seconds:.0f} s")


async def alertmanager(stack: AsyncExitStack, folder: Path, mode: str, hook: int) -> int:
    """The generated routes, with the pager's webhook pointed here. Returns its port."""
    port = free_port()
    pager = Receivers(pager=Receiver(webhook_url=f"http://127.0.0.1:{hook}/{mode}"))
    config = folder / f"alertmanager-{mode}.yml"
    config.write_text(dump(routing.document(replace(Config(), receivers=pager))))
    data = folder / f"alertmanager-{mode}"
    await start(
        stack, folder, find("prometheus-alertmanager"), f"--config.file={config}", f"--storage.path={data}",
        "--cluster.listen-address=", f"--web.listen-address=127.0.0.1:{port}",
    )  # fmt: skip
    await ready(f"http://127.0.0.1:{port}/-/ready")
    return port


async def prometheus(
    stack: AsyncExitStack, folder: Path, mode: str, rules: list[str], manager: int, scrape: dict[str, Any]
) -> None:
    """The committed rules over what ``scrape`` names."""
    port = free_port()
    config = folder / f"prometheus-{mode}.yml"
    document = {
        "global": {"scrape_interval": f"{SCRAPE}s", "scrape_timeout": "5s", "evaluation_interval": f"{EVALUATION}s"},
        "rule_files": rules,
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager}"]}]}]},
        "scrape_configs": [scrape],
    }
    config.write_text(yaml.safe_dump(document))
    await start(
        stack, folder, find("prometheus"), f"--config.file={config}",
        f"--storage.tsdb.path={folder / ('data-' + mode)}", f"--web.listen-address=127.0.0.1:{port}",
    )  # fmt: skip
    await ready(f"http://127.0.0.1:{port}/-/ready")


async def exporter(stack: AsyncExitStack, folder: Path, players: list[Player]) -> int:
    """The real exporter over all players. Returns its port."""
    port = free_port()
    urls = [f"http://127.0.0.1:{p.port}" for p in players]
    command = str(Path(sys.executable).with_name("vllm-vitals"))
    await start(stack, folder, command, "run", *urls, "--interval", "5s", "--listen", f"127.0.0.1:{port}")
    await ready(f"http://127.0.0.1:{port}/metrics")
    return port


async def play(folder: Path) -> list[Page]:
    """Everything at once; the pages that came."""
    hook, players = Webhook(), [player(FOLDER / name) for name in NAMES]
    async with AsyncExitStack() as stack:
        app = web.Application()
        app.router.add_post("/{mode}", hook.receive)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        managers = {mode: await alertmanager(stack, folder, mode, port) for mode in ("exporter", "native")}
        loop = asyncio.get_running_loop()
        hook.began = loop.time()
        for p in players:
            p.began = hook.began
        playing = [asyncio.create_task(p.play()) for p in players]
        vitals = await exporter(stack, folder, players)
        await prometheus(
            stack, folder, "exporter", rulesets.DAEMON, managers["exporter"],
            {"job_name": "vllm-vitals", "static_configs": [{"targets": [f"127.0.0.1:{vitals}"]}]},
        )  # fmt: skip
        await prometheus(
            stack, folder, "native", rulesets.NATIVE, managers["native"],
            {"job_name": "vllm", "static_configs": [{"targets": [f"127.0.0.1:{p.port}" for p in players]}]},
        )  # fmt: skip
        await asyncio.gather(*playing)
        await asyncio.sleep(PAUSE)
    ends = {p.name: p.seconds for p in players}
    return [page for page in hook.pages if page.at <= ends.get(page.model, 0) + PAUSE]


def verdict(name: str, pages: list[Page]) -> tuple[str, str, bool]:
    """(expected, what came, whether that is right) for one recording and mode."""
    expected = expect(name)["pages"]
    came = ", ".join(f"{p.alert} at {p.at:.0f} s" for p in pages) or "nothing"
    if expected is None:
        return "not judged", came, True
    wanted = ", ".join(f"{e['alert']} by {e['to']} s" for e in expected) or "nothing"
    right = len(pages) == len(expected) and all(
        any(p.alert == e["alert"] and e["from"] <= p.at <= e["to"] for p in pages) for e in expected
    )
    return wanted, came, right


def table(pages: list[Page]) -> tuple[str, bool]:
    """The table, and whether every row is right."""
    lines = ["| recording | what pages should come | exporter | native | time to page |", "|---|---|---|---|---|"]
    good = True
    for name in NAMES:
        cells, times = [], []
        onset = expect(name).get("onset")
        wanted = ""
        for mode in ("exporter", "native"):
            mine = [p for p in pages if p.model == name and p.mode == mode]
            wanted, came, right = verdict(name, mine)
            good &= right
            cells.append(came if right else f"**wrong: {came}**")
            if onset is not None and mine:
                times.append(f"{mine[0].at - onset:.0f} s")
        lines.append(f"| {name} | {wanted} | {cells[0]} | {cells[1]} | {' / '.join(times) or '-'} |")
    return "\n".join(lines), good


def write(ours: str, theirs: str) -> None:
    """Put both tables into the document, between their marks."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for mark, body in (("ours", ours), ("peers", theirs)):
        before, _, rest = text.partition(f"<!-- {mark} -->\n")
        after = rest.partition(f"<!-- /{mark} -->")[2]
        text = f"{before}<!-- {mark} -->\n{body}\n<!-- /{mark} -->{after}"
    DOCUMENT.write_text(text, encoding="utf-8")


def main() -> int:
    """Play, judge, write. Exit 1 where a page is wrong."""
    with tempfile.TemporaryDirectory() as name:
        pages = asyncio.run(play(Path(name)))
        theirs = peers.table(Path(name))
    ours, good = table(pages)
    print(ours, json.dumps([p.__dict__ for p in pages], indent=1), sep="\n\n")
    if not good:
        return 1
    write(ours, theirs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
