"""Recordings as a Prometheus that scrapes vLLM itself would keep them: raw samples, thinned to its interval."""

import re
from collections.abc import Iterator
from pathlib import Path

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.recordings import recording

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")


def thinned(path: Path, every: float) -> Iterator[Scrape]:
    """The scrapes that a slower Prometheus would have taken: the first at or after each of its times."""
    due: float | None = None
    for scrape in recording.read(path):
        due = scrape.at if due is None else due
        if scrape.at >= due:
            yield scrape
            while due <= scrape.at:
                due += every


def lines(instance: str, scrapes: Iterator[Scrape], *, about: bool = True) -> Iterator[str]:
    """Sample lines with times, as promtool reads them; ``about``: what Prometheus itself adds is kept, too."""
    place = f'instance="{instance}",job="vllm"'
    for scrape in scrapes:
        if about:
            yield f"up{{{place}}} {int(scrape.body is not None)} {scrape.at:.3f}"
            yield f"scrape_duration_seconds{{{place}}} {scrape.duration_s:.6f} {scrape.at:.3f}"
        for line in (scrape.body or b"").decode().splitlines():
            if sample := _SAMPLE.fullmatch(line):
                own = f",{sample[2]}" if sample[2] else ""
                yield f"{sample[1]}{{{place}{own}}} {sample[3]} {scrape.at:.3f}"
