"""Draw dashboards as Grafana does, with a program that is given: it is most of Grafana, so the project ships none.

Input: a Prometheus, a dashboard, a range, a theme. Output: a PNG, and what each panel came to show.

What the program, a command line in the environment's DASHBOARD_RENDERER, needs:
    --dashboard FILE.json --prometheus URL --from MS --to MS --theme dark|light --width PX --rows keep
    --out FILE.png --json REPORT.json [--var NAME=VALUE ...]
It draws with the libraries that Grafana publishes (@grafana/ui, @grafana/data, @grafana/schema), chooses variables as
Grafana does, knows the transformations merge, organize, renameByRegex and timeSeriesTable, and writes as its report
{"panels": [{"title", "type", "error": words or null, "shown": [{"text", "color"}]}],
 "problems": [{"kind": "overlap" and others, "message"}]}.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.dashboards.history import Server
from tests.programs import ROOT
from vllm_vitals.dashboards import levels, links

RENDERER = "DASHBOARD_RENDERER"
THEMES = ("dark", "light")
NOT_DRAWN = f"not drawn: {RENDERER} names no program (tests/dashboards/draw.py says what it needs)"
_PATIENCE_S = 900
_GRAVE = ("overlap", "off-grid")


def program() -> list[str]:
    """Return the program's command line; empty where none is given."""
    return shlex.split(os.environ.get(RENDERER, ""))


def draw(
    server: Server, uid: str, theme: str, range_s: int, out: Path, values: Mapping[str, str] | None = None,
    width: int = 1366,
) -> dict[str, Any]:  # fmt: skip
    """Write a PNG; return the report. Raises AssertionError with the program's words where it drew nothing."""
    report = out.with_suffix(".json")
    chosen = [part for name, value in (values or {}).items() for part in ("--var", f"{name}={value}")]
    made = subprocess.run(
        [
            *program(), "--dashboard", str(ROOT / "dashboards" / f"{uid}.json"), "--prometheus", server.url,
            "--from", f"{(server.end - range_s) * 1000:.0f}", "--to", f"{server.end * 1000:.0f}", "--theme", theme,
            "--width", f"{width}", "--rows", "keep", "--timeout", f"{_PATIENCE_S}",
            "--out", str(out), "--json", str(report), *chosen,
        ],
        capture_output=True, text=True, check=False, timeout=_PATIENCE_S,
    )  # fmt: skip
    assert report.exists(), made.stderr[-2000:] or made.stdout[-2000:]
    read: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return read


def faults(server: Server, range_s: int, folder: Path, *, empty: bool = False) -> Iterator[str]:
    """Panels that could not be drawn or lie over others, in either theme; ``empty``: that are green all the same."""
    for uid in links.TITLES:
        for theme in THEMES:
            report = draw(server, uid, theme, range_s, folder / f"{uid}-{theme}.png")
            said = [f"{panel['title']}: {panel['error']}" for panel in report["panels"] if panel["error"]]
            said += [problem["message"] for problem in report["problems"] if problem["kind"] in _GRAVE]
            if empty:
                said += [
                    f"{panel['title']}: {one['text']} is green where nothing is"
                    for panel in report["panels"]
                    for one in panel.get("shown") or ()
                    if (one.get("color") or "").upper() == levels.GREEN.upper()
                ]
            yield from (f"{uid}, {theme}: {words}" for words in said)
