"""``vllm-vitals dashboards build`` and ``dashboards check``: the Grafana dashboards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vllm_vitals.dashboards.links import ALERTMANAGER
from vllm_vitals.generated import config_option, drift, mode_option, needing_packages, out_option, report, write


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that build and check share."""
    form = click.option(
        "--format", "form", type=click.Choice(["grafana", "kubernetes"]), default="grafana", show_default=True,
        help="JSON files, or ConfigMaps that hold them.",
    )  # fmt: skip
    alertmanager = click.option(
        "--alertmanager", default=ALERTMANAGER, show_default=True, metavar="NAME",
        help="Grafana's data source for groups and silences; '' for none.",
    )  # fmt: skip
    return config_option(mode_option("both")(form(alertmanager(out_option("dashboards")(command)))))


@click.group()
def dashboards() -> None:
    """Generate the Grafana dashboards."""


@dashboards.command()
@_options
def build(path: Path | None, modes: frozenset[str], form: str, alertmanager: str, out: Path) -> None:
    """Write the dashboards."""
    write(out, _generated(path, modes, form, alertmanager))


@dashboards.command()
@_options
def check(path: Path | None, modes: frozenset[str], form: str, alertmanager: str, out: Path) -> None:
    """Compare the files with what build would write; exit 1 and print a diff if they differ."""
    texts = _generated(path, modes, form, alertmanager)
    report(drift(out, texts, ["*.json" if form == "grafana" else "*.yml"]), f"vllm-vitals dashboards build -o {out}")


def _generated(path: Path | None, modes: frozenset[str], form: str, alertmanager: str) -> dict[str, str]:
    with needing_packages():
        from vllm_vitals.config import section  # noqa: PLC0415
        from vllm_vitals.config.alerts import Config  # noqa: PLC0415
        from vllm_vitals.dashboards import build as dashboards_build  # noqa: PLC0415 - grafanalib is an extra
        from vllm_vitals.dashboards import readme  # noqa: PLC0415
        from vllm_vitals.dashboards.site import Site  # noqa: PLC0415
    config = section.alerts(path) if path else Config()
    files = dashboards_build.build(Site("daemon" in modes, "native" in modes, config, alertmanager))
    kubernetes = form == "kubernetes"
    texts = dashboards_build.as_configmaps(files) if kubernetes else files
    return {**texts, "README.md": readme.render(files, kubernetes=kubernetes)}
