"""The commands ``snapshot``, ``compare`` and ``whatif``: a tuning experiment, one knob at a time.

Input: a command line. Output: a file, or a table on standard output. Exit codes of compare: 0 keep, 1 roll back,
3 not comparable, 4 no difference or not enough. Invariant: what is compared or simulated is named with its settings,
told and assumed.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from vllm_vitals.cli import terminal
from vllm_vitals.cli.options import FILE
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.planner import tables
from vllm_vitals.planner.experiment import baseline
from vllm_vitals.planner.experiment.compare import Comparison
from vllm_vitals.planner.experiment.compare import compare as compared
from vllm_vitals.planner.options import (
    SPAN,
    Source,
    clear,
    parse_between,
    parse_when,
    progress_line,
    review_section,
    source_options,
)
from vllm_vitals.planner.review import render_json, render_text, words
from vllm_vitals.planner.telemetry import recorded
from vllm_vitals.planner.telemetry.collect import collect
from vllm_vitals.planner.telemetry.telemetry import Telemetry
from vllm_vitals.planner.whatif import fitting, measured, variants
from vllm_vitals.planner.whatif.set_overrides import KNOBS, SIMULATED, parse, parse_changes, parse_growth
from vllm_vitals.planner.whatif.variants import Variant
from vllm_vitals.planner.whatif.whatif import whatif as tried
from vllm_vitals.planner.whatif.workload_slice import Focus
from vllm_vitals.prometheus.promapi import PromApi
from vllm_vitals.recordings.recording import target_name
from vllm_vitals.scrape.target import shown
from vllm_vitals.simulator.settings import SettingsError

_format = click.option(
    "--format", "kind", type=click.Choice(["text", "md", "json"]), default="text", show_default=True,
    help="Output format: for a terminal, Markdown, JSON.",
)  # fmt: skip
EXITS = {"keep": 0, "roll back": 1, "not comparable": 3, "no difference": 4, "not enough": 4}


def _read(
    source: Source,
    since: float,
    until: str,
    labels: list[str],
    told: Mapping[str, str],
    between: tuple[float, float] | None = None,
) -> tuple[Telemetry, str]:
    """Telemetry from either source, and what to call it. What could not be read is said."""
    if source.recording is not None:
        found, name = recorded.telemetry(source.recording, told, between), target_name(source.recording)
        source.choice.keep(found)
    else:
        found, name = _asked(source, since, until, labels)
    for gap in found.missing:
        click.echo(f"vllm-vitals: missing: {gap.what}: {gap.why}", err=True)
    return found, name


def _asked(source: Source, since: float, until: str, labels: list[str]) -> tuple[Telemetry, str]:
    if source.access is None:
        raise click.UsageError("give --prometheus URL or --recording FILE")
    end = parse_when(until) if until else time.time()
    askers = [PromApi(source.access) for _ in range(2)]
    found = collect(askers, end - since, end, labels, source.choice.matchers, progress=progress_line())
    clear()
    return found, shown(source.access.url)


def _one_model(telemetry: Telemetry) -> str:
    models = telemetry.models()
    if len(models) != 1:
        raise click.UsageError(f"there are {len(models)} models ({', '.join(models)}): choose one with --model")
    return models[0]


def _with_config(settings: ReviewSettings, model: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of ``--set``, over those that the config file has for the model."""
    own = settings.models.get(model)
    return {**{k: f"{v:.15g}" for k, v in (own.settings if own else {}).items()}, **given}


@click.command()
@source_options
@click.option("--since", type=SPAN, default="30m", show_default=True, help="Length of the measured period.")
@click.option("--until", default="", metavar="TIME", help="End of the period; default: now.")
@click.option(
    "--repeats",
    default=10,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Split the period into at most this many equal parts; their spread is the noise.",
)
@click.option("--between", default="", metavar="FROM,TO", help="Part of a recording, from its start: 2m,10m.")
@click.option("--name", default="", metavar="TEXT", help="Name of the snapshot, such as seqs-24.")
@click.option(
    "--set", "given", multiple=True, metavar="NAME=VALUE", help="Server setting not exposed as a metric (repeatable)."
)
@click.option("--config", type=click.Path(path_type=Path), help="Config file with a review section.")
@click.option("-o", "--output", required=True, type=FILE, help="Output file.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def snapshot(
    source: Source, since: float, until: str, repeats: int, between: str, name: str, given: tuple[str, ...],
    config: Path | None, output: Path, force: bool,
) -> None:  # fmt: skip
    """Save a snapshot of settings, version, workload shape and vital signs, to compare later."""
    settings = review_section(config)
    told = parse(given, KNOBS)
    if between and source.recording is None:
        raise click.UsageError("--between is for recordings; give --since and --until")
    part = parse_between(between, recorded=True)
    if output.exists() and not force:
        raise click.ClickException(_exists(output))
    telemetry, where = _read(source, since, until, settings.identity_labels, told, part)
    model = _one_model(telemetry)
    taken = baseline.baseline(
        telemetry, model, name or output.stem, where, time.time(), repeats, _with_config(settings, model, told)
    )
    _write(output, baseline.to_bytes(taken), force)
    click.echo(f"wrote {output}: {_took(taken, repeats)}")


def _exists(output: Path) -> str:
    return f"{output} exists: choose another name, or give --force"


def _write(output: Path, content: bytes, force: bool) -> None:
    """Refuse to overwrite a baseline unasked: what it was taken from may be gone."""
    try:
        with output.open("wb" if force else "xb") as file:
            file.write(content)
    except FileExistsError:
        raise click.ClickException(_exists(output)) from None
    except OSError as error:
        raise click.ClickException(f"{output}: {error.strerror}") from None


def _took(taken: baseline.Baseline, asked: int) -> str:
    """Return what a snapshot covers."""
    engines = f"{taken.engines} engine{'s' if taken.engines > 1 else ''}"
    kept = len(taken.vitals["generated tokens"].repeats)
    out = "" if kept == asked else f" of {asked}, the others were not scraped throughout"
    span = f"{words.when(taken.start)} to {words.when(taken.end)} UTC"
    return f"{taken.model_name}, {engines}, {kept} repeat{'s' if kept != 1 else ''}{out}, {span}"


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--anyway", is_flag=True, help="Compare anyway; report incompatibilities as warnings.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; the same as --format json.")
@_format
def compare(before: Path, after: Path, anyway: bool, as_json: bool, kind: str) -> None:
    """Compare two snapshots: keep the change, or roll it back?

    Exit code: 0 keep, 1 roll back, 3 not comparable, 4 no difference, or too short to tell.
    """
    old, new = baseline.read(before), baseline.read(after)
    found = compared(old, new, anyway)
    if as_json or kind == "json":
        click.echo(orjson.dumps(render_json.plain(found), option=orjson.OPT_INDENT_2).decode())
    elif kind == "md":
        click.echo(render_text.comparison(old, new, found), nl=False)
    else:
        tables.comparison(terminal.console(), old, new, found)
    click.get_current_context().exit(_exit(found))


def _exit(found: Comparison) -> int:
    return EXITS[found.decision]


@click.command()
@source_options
@click.option("--since", type=SPAN, default="7d", show_default=True, help="Length of the period to search.")
@click.option("--until", default="", metavar="TIME", help="End of the period; default: now.")
@click.option("--focus", type=click.Choice(["worst", "peak"]), default="worst", show_default=True,
              help="Part of the period to simulate: the longest run of preemptions, or the busiest hour.")  # fmt: skip
@click.option(
    "--between",
    default="",
    metavar="FROM,TO",
    help="Part to simulate: two times, or durations from a recording's start.",
)
@click.option(
    "--set", "given", multiple=True, metavar="NAME=VALUE", help="Server setting not exposed as a metric (repeatable)."
)
@click.option(
    "--set-to", "changes", multiple=True, metavar="NAME=VALUE",
    help="Setting to try at this value, such as max_num_seqs=5 or gateway_concurrency=8 (repeatable).",
)  # fmt: skip
@click.option("--engines", type=click.IntRange(1, 10_000), help="Number of engines to try for the model.")
@click.option("--traffic", default="", metavar="CHANGE", help="Traffic to try, such as +30%.")
@click.option(
    "--measured",
    "shared",
    type=FILE,
    multiple=True,
    help="File of measured pairs (vllm-vitals tune writes one): they put the error bars right (repeatable).",
)
@click.option("--config", type=click.Path(path_type=Path), help="Config file with a review section.")
@_format
def whatif(
    source: Source, since: float, until: str, focus: Focus, between: str, given: tuple[str, ...],
    changes: tuple[str, ...], engines: int | None, traffic: str, shared: tuple[Path, ...], config: Path | None,
    kind: str,
) -> None:  # fmt: skip
    """Predict what a knob would do to this workload, by a simulated server fitted to it."""
    settings = review_section(config)
    told, stretch = parse(given, SIMULATED), parse_between(between, source.recording is not None)
    wanted, growth = parse_changes(changes), parse_growth(traffic) if traffic else 1.0
    bars = measured.bars(pair for path in shared for pair in measured.read(path))
    telemetry, _ = _read(source, since, until, settings.identity_labels, told)
    model = _one_model(telemetry)
    if stretch is not None and source.recording is not None:
        stretch = telemetry.grid.start + stretch[0], telemetry.grid.start + stretch[1]
    known = _with_config(settings, model, told)
    case = fitting.case(telemetry, telemetry.of(model), known, focus, stretch, source.recording)

    def asked(base: Variant) -> Iterator[Variant]:
        for name, value in wanted:
            try:
                yield variants.asked(base, name, value)
            except SettingsError as error:
                raise click.UsageError(f"--set-to {name}={value}: {error}") from None
        yield from variants.fleet(base, case.engines, engines, growth)

    found = tried(case, asked=asked, progress=progress_line("simulating"), bars=bars)
    clear()
    document: dict[str, Any] = {"schema": render_json.SCHEMA, "model_name": model, **render_json.plain(found)}
    if kind == "json":
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    elif kind == "md":
        click.echo(render_text.experiment(found), nl=False)
    else:
        tables.experiment(terminal.console(), found)
