"""``vllm-vitals rules build`` and ``rules check``: rules, Alertmanager routes and runbooks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vllm_vitals.generated import config_option, drift, mode_option, needing_packages, out_option, report, write


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that build and check share."""
    form = click.option(
        "--format", "form", type=click.Choice(["prometheus", "operator", "victoria-metrics", "mimir", "grafana"]),
        default="prometheus", show_default=True,
        help="Rule files; PrometheusRule or VMRule objects; files of mimirtool; or alerts that Grafana evaluates.",
    )  # fmt: skip
    shard = click.option(
        "--shard", "shards", multiple=True, metavar="LABEL=VALUE",
        help="Cut the rules by an identity label: files of this value's servers alone (repeat), and of all others.",
    )  # fmt: skip
    return config_option(mode_option("both")(form(shard(out_option("alerts")(command)))))


@click.group()
def rules() -> None:
    """Generate Prometheus rules, Alertmanager routes and runbooks."""


@rules.command()
@_options
def build(path: Path | None, modes: frozenset[str], form: str, shards: tuple[str, ...], out: Path) -> None:
    """Write rules, routes and runbooks."""
    texts, notes = _generated(path, modes, form, shards)
    write(out, texts)
    for note in notes:
        click.echo(f"note: {note}", err=True)


@rules.command()
@_options
def check(path: Path | None, modes: frozenset[str], form: str, shards: tuple[str, ...], out: Path) -> None:
    """Compare the files with what build would write; exit 1 and print a diff if they differ."""
    texts, _ = _generated(path, modes, form, shards)
    report(drift(out, texts, ["runbooks/*.md"]), f"vllm-vitals rules build -o {out}")


def _generated(
    path: Path | None, modes: frozenset[str], form: str, shards: tuple[str, ...]
) -> tuple[dict[str, str], list[str]]:
    """Return the texts, and notes on them."""
    with needing_packages():
        from vllm_vitals.config import section  # noqa: PLC0415
        from vllm_vitals.config.alerts import Config  # noqa: PLC0415
        from vllm_vitals.rules import build as rules_build  # noqa: PLC0415 - the parser of PromQL is an extra
        from vllm_vitals.rules import readme, shard  # noqa: PLC0415
    config = section.alerts(path) if path else Config()
    if faults := rules_build.findings(config, rules_build.rules(config, modes)):
        raise click.ClickException("\n".join(faults))
    notes = rules_build.notes(config, published=path is not None)
    try:
        texts = rules_build.outputs(config, modes, form, shards)
    except shard.ShardError as error:
        raise click.UsageError(str(error)) from None
    return {**texts, "README.md": readme.render(texts, form)}, notes
