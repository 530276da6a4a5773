"""Recordings of real servers as promtool input: raw series (native), or what the exporter would have served.

A recording is resampled to a scrape interval, as Prometheus would have seen it; a failed scrape ends every series
(stale) and turns ``up`` to 0. Nothing is scaled: simulated time passes as the recorded time did.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.rules.tools import ROOT
from vllm_vitals.core.render import TargetRenderer, join
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.recordings.recording import read

FOLDER = ROOT / "tests" / "data" / "recordings"
NAMES = tuple(sorted(path.name for path in FOLDER.iterdir() if (path / "expect.json").exists()))

Values = dict[str, float]
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.M)
# What no rule reads: most buckets, creation times, and families that only describe.
_UNREAD = re.compile(
    r"^(python_|process_|http_|vllm:(estimated|mm_|request_params|e2e|request_(prefill|decode|inference|queue)))|_created$"
)
_BUCKET_NEEDED = re.compile(r'le="(1|1\.0)"')


@dataclass(frozen=True)
class Timeline:
    """Every series' values at each step; ``step`` and ``seconds`` say when."""

    step: int
    seconds: int
    series: Mapping[str, list[str]]

    def inputs(self) -> list[dict[str, str]]:
        """As promtool reads it."""
        return [{"series": name, "values": " ".join(values)} for name, values in self.series.items()]


def expect(name: str) -> dict[str, Any]:
    """What a correct monitor says of a recording."""
    loaded: dict[str, Any] = json.loads((FOLDER / name / "expect.json").read_text())
    return loaded


def scrapes(path: Path, step: int) -> Iterator[tuple[int, Scrape]]:
    """The last scrape taken by each step, with the seconds since the first."""
    rows = list(read(path))
    start, position = rows[0].at, 0
    for at in range(0, int(rows[-1].at - start) + 1, step):
        while position + 1 < len(rows) and rows[position + 1].at <= start + at + 0.5:
            position += 1
        yield at, rows[position]


def raw(path: Path, step: int, model: str = "", target: str = "", buckets: bool = False) -> Timeline:
    """vLLM's own series under ``instance`` = target; ``buckets`` keeps all of them."""
    model = model or path.parent.name
    target = target or f"{model}:8000"
    scraped = f'instance="{target}",job="vllm"'

    def sample(at: int, scrape: Scrape) -> Values:
        values = {f"up{{{scraped}}}": float(scrape.body is not None)}
        for name, labels, value in _SAMPLE.findall("" if scrape.body is None else scrape.body.decode()):
            if _UNREAD.search(name) or (not buckets and name.endswith("_bucket") and not _BUCKET_NEEDED.search(labels)):
                continue
            renamed = re.sub(r'model_name="[^"]*"', f'model_name="{model}"', labels)
            values[f"{name}{{{renamed}{',' if renamed else ''}{scraped}}}"] = float(value)
        return values

    return _timeline(path, step, sample)


def served(
    path: Path, step: int, model: str = "", scraped: str = 'instance="vitals-a:9840",job="vllm-vitals"'
) -> Timeline:
    """What the exporter serves of it, scraping and being scraped every ``step`` seconds."""
    model = model or path.parent.name
    limits = Thresholds(fast_window=max(60.0, 4.0 * step))
    judge, renderer = TargetEvaluator(f"{model}:8000", limits), TargetRenderer()

    def sample(at: int, scrape: Scrape) -> Values:
        body = scrape.body
        if body is not None:
            body = re.sub(rb'model_name="[^"]*"', f'model_name="{model}"'.encode(), body)
        text = join([renderer.render(judge.observe(replace(scrape, at=float(at), body=body)))]).decode()
        values = {f"up{{{scraped}}}": 1.0, f"vllm_vitals_build_info{{{scraped}}}": 1.0}
        for name, labels, value in _SAMPLE.findall(text):
            if not name.endswith(("_bucket", "_sum")):
                values[f"{name}{{{labels}{',' if labels else ''}{scraped}}}"] = float(value)
        return values

    return _timeline(path, step, sample)


def _timeline(path: Path, step: int, sample: Callable[[int, Scrape], Values]) -> Timeline:
    rows: dict[str, list[str]] = {}
    count = 0
    for at, scrape in scrapes(path, step):
        for series, value in sample(at, scrape).items():
            mine = rows.setdefault(series, [])
            mine.extend([*_gap(mine, count), repr(value)])
        count += 1
    for mine in rows.values():
        mine.extend(_gap(mine, count))
    return Timeline(step, (count - 1) * step, rows)


def _gap(mine: list[str], count: int) -> list[str]:
    """What stands for the steps in which a series was missing: it went stale at once."""
    missing = count - len(mine)
    if not missing:
        return []
    return [*(["stale"] if mine else ["_"]), *["_"] * (missing - 1)]
