"""The command ``incident``: what happened, from the raw series that a Prometheus already has.

Input: a command line. Output: a post-mortem on standard output, or in a file; progress on standard error when it is a
terminal. Exit code: 0, also where there was no incident; 2 where the Prometheus cannot be read. Invariant: no daemon
and no rule is needed.
"""

import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import click
from rich.markdown import Markdown

from vllm_vitals.cli import terminal
from vllm_vitals.cli.options import DURATION, FILE, configured
from vllm_vitals.core.snapshot import EngineKey
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.planner.incident import bundle as bundles
from vllm_vitals.planner.incident import postmortem
from vllm_vitals.planner.incident.beside import Beside, Fact
from vllm_vitals.planner.incident.episodes import Incident
from vllm_vitals.planner.incident.past import Past, Span, judge_all
from vllm_vitals.planner.incident.screen import PASSES_OVER, screened
from vllm_vitals.planner.options import SPAN, clear, parse_when, progress_line, prometheus_options
from vllm_vitals.prometheus.promapi import Access, PromApi
from vllm_vitals.prometheus.raw import Reader, Server, servers
from vllm_vitals.scrape.target import shown

PROBED = 5  # servers whose interval is looked at
LOOKED_BESIDE = 5  # incidents beside which other series are looked at
NEAR_S = 300.0  # an incident so close to the moment is the one that was asked for
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_DRAW = {"md": postmortem.markdown, "json": postmortem.json, "html": postmortem.html}


@click.command()
@partial(prometheus_options, server="instance")
@click.option(
    "--at", default="", metavar="TIME",
    help="Moment to explain: 03:07 (UTC, the last one), 2026-11-02T03:07Z, or epoch seconds.",
)  # fmt: skip
@click.option("--around", type=DURATION, default="1h", show_default=True, help="Period read before and after --at.")
@click.option("--since", type=SPAN, help="List every incident of such a period up to --until instead: 12h, 30d.")
@click.option("--until", default="", metavar="TIME", help="End of the period of --since; default: now.")
@click.option("--every-scrape", is_flag=True, help="Judge every scrape of --since, not only those near something odd.")
@click.option("--config", "file", type=FILE, help="Config file whose thresholds are used.")
@click.option(
    "--format", "kind", type=click.Choice(list(_DRAW)), default="md", show_default=True, help="Output format."
)
@click.option("-o", "--output", type=FILE, help="File to write; default: standard output.")
@click.option(
    "--bundle", type=FILE, metavar="FILE", help="Zip file for a bug report: post-mortem and scrapes, without names."
)
def incident(
    access: Access,
    matchers: str,
    at: str,
    around: float,
    since: float | None,
    until: str,
    every_scrape: bool,
    file: Path | None,
    kind: str,
    output: Path | None,
    bundle: Path | None,
) -> None:
    """Explain an incident, or list all, from the raw vllm:* series of any Prometheus.

    Samples are read as they were scraped and judged as the daemon would have judged them: no daemon, no rule is needed.
    """
    if bool(at) == (since is not None):
        raise click.UsageError("give either --at TIME or --since PERIOD")
    if at and (until or every_scrape):
        raise click.UsageError("--until and --every-scrape are for --since")
    now = time.time()
    moment = _when(at, now) if at else None
    end = min(now, moment + around) if moment is not None else parse_when(until) if until else now
    start = moment - around if moment is not None else end - (since or 0.0)
    if start >= end:
        raise click.UsageError(f"--at: {at} lies in the future")
    limits = configured(file, (), {}).thresholds if file is not None else Thresholds()
    ask = PromApi(access)
    pasts = _read(ask, start, end, matchers, limits, screen=moment is None and not every_scrape)
    chosen = _chosen(pasts, start, end, moment)
    looked, also = _beside(ask, pasts, chosen if moment is not None else [])
    found = postmortem.document(pasts, chosen, start, end, shown(access.url), moment, limits, looked)
    found["not_known"] += also
    if moment is None and not every_scrape:
        found["not_known"].append(PASSES_OVER)
    _write(_DRAW[kind](found), kind, output)
    if bundle is not None:
        try:
            servers_in_it = bundles.write(bundle, found, ask, pasts, chosen)
        except OSError as error:
            raise click.ClickException(f"{bundle}: {error.strerror}") from None
        servers_said = f"{servers_in_it} server{'s' if servers_in_it != 1 else ''}"
        click.echo(f"wrote {bundle}: scrapes of {servers_said}, without names; read it before you send it", err=True)


def _when(text: str, now: float) -> float:
    """Return epoch seconds; a time of day is the last such one (UTC)."""
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        return parse_when(text)
    hour, minute, second = (int(part or 0) for part in clock.groups())
    today = datetime.fromtimestamp(now, UTC).replace(hour=hour, minute=minute, second=second, microsecond=0)
    return (today if today.timestamp() <= now else today - timedelta(days=1)).timestamp()


def _read(
    ask: PromApi, start: float, end: float, matchers: str, limits: Thresholds, *, screen: bool
) -> list[Past]:  # fmt: skip
    """Judge every server's past. Raises `PromError` where not even the list of servers can be read."""
    found = servers(ask, start, end, matchers)
    spans: list[tuple[Server, list[Span]]] = [(server, [(start, end)]) for server in found]
    if screen:
        interval = max(Reader(ask, server).probe(start, end) for server in found[:PROBED])
        spans = screened(ask, found, start, end, interval, matchers, progress_line("looking for the odd,"))
    pasts = list(judge_all(ask, spans, limits, progress_line("reading server")))
    clear()
    return pasts


def _chosen(pasts: list[Past], start: float, end: float, at: float | None) -> list[Incident]:
    """Return the incidents that touch the moment, or the period."""
    first, last = (start, end) if at is None else (at - NEAR_S, at + NEAR_S)
    return [each for past in pasts for each in past.episodes.incidents if each.start <= last and each.end >= first]


def _beside(
    ask: PromApi, pasts: list[Past], chosen: list[Incident]
) -> tuple[Callable[[Incident], Sequence[Fact]], list[str]]:
    """Return what else changed in the minutes of the worst incidents, and what was looked for and not found."""
    by_name = {past.server.name: past.server for past in pasts}
    beside, found = Beside(ask), dict[tuple[EngineKey, float], list[Fact]]()
    for each in sorted(chosen, key=lambda i: i.state.rank)[:LOOKED_BESIDE]:
        found[each.key, each.start] = beside.look(by_name[each.key.target], each.start, each.end)
    return lambda incident: found.get((incident.key, incident.start), ()), beside.lacking


def _write(text: str, kind: str, output: Path | None) -> None:
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{output}: {error.strerror}") from None
        click.echo(f"wrote {output}")
        return
    console = terminal.console()
    if kind == "md" and console.is_terminal:
        console.print(Markdown(text))
    else:
        click.echo(text, nl=False)
