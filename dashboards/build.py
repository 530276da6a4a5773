"""Writes every dashboard as JSON, or says how the committed files differ: ``python -m dashboards.build [--check]``.

Input: the dashboard modules and whom to build for. Output: ``<uid>.json`` files. Invariant: the same source gives the
same bytes.
"""

import difflib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from alerts.config import Config, ConfigError, load
from dashboards import capacity, engine, itself, links, overview, workload
from dashboards.absent import explain_absent
from dashboards.identity import widen
from dashboards.site import Site, parse_mode

OUT = Path(__file__).parent / "out"
_BUILDERS: dict[str, Callable[[Site], dict[str, Any]]] = {
    links.OVERVIEW: overview.build,
    links.ENGINE: engine.build,
    links.WORKLOAD: workload.build,
    links.CAPACITY: capacity.build,
    links.SELF: itself.build,
}


def build(site: Site) -> dict[str, str]:
    """Every dashboard's file name and text."""
    labels = site.config.identity_labels
    made = {uid: widen(explain_absent(builder(site), site), labels) for uid, builder in _BUILDERS.items()}
    return {f"{uid}.json": json.dumps(made[uid], indent=2, sort_keys=True, ensure_ascii=False) + "\n" for uid in made}


def drift(files: dict[str, str], out: Path) -> list[str]:
    """A unified diff a file that is missing or differs, and a line for each file that should not be there."""
    found = []
    for name, text in files.items():
        path = out / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old != text:
            found.append("".join(difflib.unified_diff(old.splitlines(True), text.splitlines(True), str(path), "built")))
    return found + [
        f"{path}: no dashboard of this name\n" for path in sorted(out.glob("*.json")) if path.name not in files
    ]


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 and show a diff where the files are out of date.")
@click.option(
    "--mode", default="daemon,native", show_default=True, help="Who feeds Prometheus: daemon, native, or both."
)
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), help="The alert config (YAML)."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=OUT, help="Where the files go.")
def main(check: bool, mode: str, config_file: Path | None, out: Path) -> None:
    """Build the Grafana dashboards."""
    try:
        daemon, native = parse_mode(mode)
        config = load(config_file) if config_file else Config()
    except (ValueError, ConfigError) as error:
        raise click.UsageError(str(error)) from None
    files = build(Site(daemon, native, config))
    if check:
        different = drift(files, out)
        sys.stdout.write("".join(different))
        if different:
            raise click.ClickException(
                f"{len(different)} dashboard(s) are out of date; run: python -m dashboards.build"
            )
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
