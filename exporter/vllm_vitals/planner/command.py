"""The commands ``review``, ``snapshot``, ``compare`` and ``whatif``.

Input: a command line. Output: files, or text on standard output; progress on standard error when it is a terminal.
Invariant: what can be said is said: a part that could not be read is named in the report, not a reason to have none.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click

from vllm_vitals.cli.options import Duration
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.planner.experiment.commands import compare, snapshot, whatif
from vllm_vitals.planner.options import SPAN, clear, parse_when, progress_line, prometheus_options, review_section
from vllm_vitals.planner.review import render_html, render_json, render_text
from vllm_vitals.planner.review.change import Measures, measures
from vllm_vitals.planner.review.charts import album
from vllm_vitals.planner.review.charts.style import Chart, ChartsMissingError
from vllm_vitals.planner.review.report import Review, build, with_whatif
from vllm_vitals.planner.telemetry import history
from vllm_vitals.planner.telemetry.collect import Progress, collect
from vllm_vitals.planner.telemetry.grid import DAY
from vllm_vitals.planner.telemetry.queries import BEFORE
from vllm_vitals.planner.telemetry.telemetry import Missing, Telemetry
from vllm_vitals.planner.whatif import fitting
from vllm_vitals.planner.whatif.calibrate import Case, SimulationBudget
from vllm_vitals.planner.whatif.engine_capacity import Carries, carries
from vllm_vitals.planner.whatif.whatif import WhatIf, advised
from vllm_vitals.planner.whatif.whatif import whatif as simulated
from vllm_vitals.planner.whatif.workload_slice import SituationError
from vllm_vitals.prometheus.promapi import Access, PromApi, PromError
from vllm_vitals.scrape.target import shown

__all__ = ["compare", "review", "snapshot", "whatif"]

FORMATS = ("html", "md", "json")
MAX_TRIED = 6  # models that are simulated, in the order of the report
EFFORT = SimulationBudget(seeds=2, seconds=300.0)


@click.command()
@prometheus_options
@click.option("--since", type=SPAN, default="7d", show_default=True, help="Length of the period, such as 12h, 7d, 4w.")
@click.option(
    "--until",
    default="",
    metavar="TIME",
    help="End of the period, such as 2026-11-02T06:00Z or epoch seconds; default: now.",
)
@click.option(
    "--trend",
    type=Duration(least=0.0, most=3650 * DAY),
    default="28d",
    show_default=True,
    help="History for trend and forecast; 0d: neither.",
)
@click.option(
    "--format",
    "formats",
    default="html,md,json",
    show_default=True,
    metavar="LIST",
    help="Formats to write: html, md, json.",
)
@click.option(
    "-o", "--output", default=".", show_default=True, metavar="DIR", help="Output directory; - prints a single format."
)
@click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    help="Config file whose review section has prices and objectives.",
)
@click.option("--no-before", is_flag=True, help="Skip the comparison with the previous period.")
@click.option("--no-whatif", is_flag=True, help="Skip the simulation of other settings.")
def review(
    access: Access,
    matchers: str,
    since: float,
    until: str,
    trend: float,
    formats: str,
    output: str,
    config: Path | None,
    no_before: bool,
    no_whatif: bool,
) -> None:
    """Write the weekly capacity review, from any Prometheus-compatible API."""
    wanted = _formats(formats)
    if output == "-" and len(wanted) != 1:
        raise click.UsageError("-o - prints one format: choose it with --format")
    if output != "-":
        _folder(output)
    settings = review_section(config)
    now = time.time()
    end = parse_when(until) if until else now
    span = since
    progress = progress_line()
    askers = [PromApi(access) for _ in range(2)]
    labels = settings.identity_labels
    telemetry = collect(askers, end - span, end, labels, matchers, progress=progress)
    before = {} if no_before else _before(askers, end - span, span, labels, matchers, progress, telemetry)
    days = int(trend // DAY)
    past, lost = history.history(askers[0], end, days, labels, matchers) if days else ({}, [])
    telemetry.missing.extend(lost)
    warnings = sorted({text for asker in askers for text in asker.warnings})
    cases, carried = ({}, {}) if no_whatif else _carried(telemetry, settings)
    done = build(telemetry, settings, shown(access.url), now, before, past, warnings, carried)
    if not no_whatif:
        done = with_whatif(done, _tried(cases, done))
    clear()
    _write(done, telemetry, wanted, output)


def _before(
    askers: list[PromApi],
    end: float,
    span: float,
    labels: list[str],
    matchers: str,
    progress: Progress,
    into: Telemetry,
) -> dict[str, Measures]:
    """Return the figures of the period before, by model, or none. A failure is named in the report."""
    try:
        found = collect(askers, end - span, end, labels, matchers, BEFORE, progress=progress)
    except PromError as error:
        if "no series" not in str(error):
            into.missing.append(Missing("the period before", end - span, end, str(error)))
        return {}
    into.missing.extend(found.missing)
    return {name: measures(found.of(name), found.grid) for name in found.models()}


def _carried(telemetry: Telemetry, settings: ReviewSettings) -> tuple[dict[str, Case | str], dict[str, Carries | str]]:
    """Return each model's peak ready to be simulated, and what one engine carries; or why there is none."""
    cases: dict[str, Case | str] = {}
    carried: dict[str, Carries | str] = {}
    for name in telemetry.models()[:MAX_TRIED]:
        own = settings.models.get(name)
        told = {key: f"{value:.15g}" for key, value in (own.settings if own else {}).items()}
        try:
            case = fitting.case(telemetry, telemetry.of(name), told, "peak")
            cases[name], carried[name] = case, carries(case, settings.slos_of(name))
        except SituationError as error:
            cases[name] = carried[name] = str(error)
    return cases, carried


def _tried(cases: Mapping[str, Case | str], done: Review) -> dict[str, WhatIf | str]:
    """Return a what-if of each model's peak, with what the review advises among its rows; or why there is none."""
    found: dict[str, WhatIf | str] = {}
    for model in done.models:
        case, advice = cases.get(model.model_name, ""), model.slots
        if isinstance(case, str):
            found[model.model_name] = case
            continue
        number = advice.value if advice.direction in ("up", "down") else None
        found[model.model_name] = simulated(
            case, effort=EFFORT, progress=progress_line(f"simulating {model.model_name},"),
            asked=lambda base, number=number: () if number is None else advised(base, number),  # type: ignore[misc]
        )  # fmt: skip
    return found


def _formats(text: str) -> list[str]:
    wanted = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    odd = [part for part in wanted if part not in FORMATS]
    if odd or not wanted:
        raise click.UsageError(f"--format: expected some of {', '.join(FORMATS)}, got {', '.join(odd) or 'nothing'}")
    return wanted


def _folder(output: str) -> Path:
    """Return where the files go; checked before a week of a fleet is read."""
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise click.ClickException(f"{output} is not a directory: -o names the one that the report is written into")
    return folder


def _write(done: Review, telemetry: Telemetry, wanted: list[str], output: str) -> None:
    if output == "-":
        sys.stdout.buffer.write(_make(wanted[0], done, telemetry))
        return
    name = f"capacity-review-{time.strftime('%Y-%m-%d', time.gmtime(done.end))}"
    for each in wanted:
        path = _folder(output) / f"{name}.{each}"
        content = _make(each, done, telemetry)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise click.ClickException(f"{path}: {error.strerror}") from None
        click.echo(f"wrote {path}")
    for model in done.models:
        click.echo(f"{model.model_name}: {model.verdict}: {model.findings[0].text}")
    if done.missing:
        click.echo(
            f"{len(done.missing)} thing{'s' if len(done.missing) > 1 else ''} could not be read; the report says which",
            err=True,
        )


def _make(kind: str, done: Review, telemetry: Telemetry) -> bytes:
    if kind == "html":
        return render_html.html(done, _charts(done, telemetry)).encode()
    return render_text.markdown(done).encode() if kind == "md" else render_json.render(done)


def _charts(done: Review, telemetry: Telemetry) -> Mapping[str, tuple[Chart, ...]]:
    """Return every chart, or none without matplotlib: the figures are in the report's tables as well."""
    try:
        return album.draw(telemetry, done)
    except ChartsMissingError as error:
        click.echo(f"vllm-vitals: {error}", err=True)
        return {}
