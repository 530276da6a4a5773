"""`python -m alerts.build`: writes rules, routes and runbooks; `--check` fails where a file is not what it would write.

Input: the config (defaults, or a user's overrides). Output: files under --out. Invariant: the same config gives the
same bytes, and nothing is written that the linter finds fault with.
"""

import difflib
import sys
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from alerts import concurrency, meta, native, native_state, page, presence, raw, routing, runbook, shared, slo, ticket
from alerts.config import Config, ConfigError, load
from alerts.files import write
from alerts.lint import lint
from alerts.model import Group, Recording, dump, groups_dict
from alerts.passes import PASSES, only_native

ROOT = Path(__file__).parent
MODES = ("daemon", "native")


def rules(config: Config, modes: frozenset[str] = frozenset(MODES)) -> dict[str, tuple[Group, ...]]:
    """Groups by file name without its ending. Without the daemon, alerts that need it are left out."""
    step = config.evaluation_seconds
    files: dict[str, tuple[Group, ...]] = {
        "recording": (
            Group("vllm_vitals.before", _before(config), step),
            Group("vllm_vitals.slo", slo.recordings(config), step),
        ),
        "alerts": (
            Group("vllm_vitals.pages", page.alerts(config), step),
            Group("vllm_vitals.tickets", ticket.alerts(config), step),
            Group("vllm_vitals.meta", meta.alerts(config), step),
        ),
        "native": (Group("vllm_vitals.native", (*native.rules(config), *native_state.rules(config)), step),),
    }
    if "native" not in modes:
        del files["native"]
    for one in PASSES:
        files = {name: one(config, groups) for name, groups in files.items()}
    if "daemon" not in modes:
        files["alerts"] = only_native(config, files["alerts"])
    return files


def _before(config: Config) -> tuple[Recording, ...]:
    return (*shared.rules(config), *concurrency.rules(config), *presence.rules(config), *meta.recordings())


def findings(config: Config, files: Mapping[str, tuple[Group, ...]]) -> list[str]:
    """What the linter says of all files together."""
    every = tuple(g for groups in files.values() for g in groups)
    return [str(finding) for finding in lint(config, every, frozenset(runbook.GUIDANCE))]


def outputs(config: Config, modes: frozenset[str] = frozenset(MODES), operator: bool = False) -> dict[str, str]:
    """Every file to write, by path relative to the output directory."""
    files = rules(config, modes)
    texts = {f"out/{name}.yml": _rule_file(name, groups, operator) for name, groups in files.items()}
    texts["out/alertmanager.yml"] = dump(routing.document(config))
    return texts | {f"runbooks/{name}": text for name, text in runbook.render(config, files["alerts"]).items()}


def _rule_file(name: str, groups: tuple[Group, ...], operator: bool) -> str:
    document: dict[str, Any] = groups_dict(groups)
    if operator:
        metadata = {"name": f"vllm-vitals-{name}", "labels": {"app.kubernetes.io/name": "vllm-vitals"}}
        document = {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": metadata,
            "spec": document,
        }
    return dump(document)


def note_on_links(config: Config) -> str:
    """One line where the runbook links of these alerts open nowhere but in a checkout; else nothing."""
    if urlsplit(config.runbook_base).scheme in ("http", "https"):
        return ""
    return (
        f"note: runbook_base: {config.runbook_base} is a path, which no pager can open: publish the runbooks and give "
        "their URL (docs/alerts.md, Links)"
    )


def notes_on_slos(config: Config) -> list[str]:
    """One line for each SLO whose time lies between vLLM's buckets: no series says how many requests met it."""
    notes = []
    for slo_ in config.slos:
        bounds = raw.BOUNDS[slo_.indicator]
        if slo_.seconds not in bounds:
            above = bisect_left(bounds, slo_.seconds)
            near = bounds[max(0, above - 1) : above + 1]
            notes.append(
                f"note: slos: {slo_.name}: {slo_.seconds:g} s is no bucket bound of {slo_.indicator} in vLLM 0.32, so "
                f"its alert can never fire there; take {' or '.join(f'{bound:g}' for bound in near)}"
            )
    return notes


def drift(out: Path, texts: Mapping[str, str]) -> list[str]:
    """A unified diff for each file that is not as it would be written."""
    differences = []
    for name, text in texts.items():
        path = out / name
        have = path.read_text(encoding="utf-8") if path.exists() else ""
        if have != text:
            lines = difflib.unified_diff(have.splitlines(), text.splitlines(), str(path), "built", lineterm="", n=1)
            differences.append("\n".join(lines))
    kept = {out / name for name in texts}
    stray = [p for p in sorted((out / "runbooks").glob("*.md")) if p not in kept]
    return differences + [f"{p}: belongs to no alert: delete it" for p in stray]


def _modes(_: click.Context, __: click.Parameter, value: str) -> frozenset[str]:
    chosen = frozenset(MODES if value == "both" else value.split(","))
    if not chosen <= set(MODES):
        raise click.BadParameter(f"choose from {', '.join(MODES)}, both")
    return chosen


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 where a file is not up to date.")
@click.option(
    "--config", "path", type=click.Path(path_type=Path), help="YAML with what to change (see docs/alerts.md)."
)
@click.option(
    "--mode",
    "modes",
    default="both",
    show_default=True,
    callback=_modes,
    help="Who makes the series: daemon, native or both.",
)
@click.option("--format", "form", type=click.Choice(["prometheus", "operator"]), default="prometheus")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT, help="Where out/ and runbooks/ go.")
def main(check: bool, path: Path | None, modes: frozenset[str], form: str, out: Path) -> None:
    """Build alerting and recording rules, the Alertmanager config and the runbooks."""
    try:
        config = load(path) if path else Config()
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    faults = findings(config, rules(config, modes))
    if faults:
        click.echo("\n".join(faults), err=True)
        sys.exit(1)
    texts = outputs(config, modes, operator=form == "operator")
    if check:
        differences = drift(out, texts)
        if differences:
            click.echo("\n".join(differences), err=True)
            click.echo("Run `python -m alerts.build` and commit what it writes.", err=True)
            sys.exit(1)
        return
    write(out, texts)
    for note in notes_on_slos(config):
        click.echo(note, err=True)
    # Without a config this is the project's own build, whose readers have the checkout.
    if path and (note := note_on_links(config)):
        click.echo(note, err=True)


if __name__ == "__main__":
    main()
