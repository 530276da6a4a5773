"""``vllm-vitals config check``: is this file usable, and if not, where exactly."""

from pathlib import Path

import click

from vllm_vitals.cli.options import FILE
from vllm_vitals.config import loader as configs


@click.group()
def config() -> None:
    """Validate config files."""


@config.command()
@click.argument("file", type=FILE)
def check(file: Path) -> None:
    """Validate a config file; print each error on one line, with the key's path."""
    loaded = configs.load(file)
    click.echo(f"{file}: ok, {len(loaded.targets)} target{'s' if len(loaded.targets) != 1 else ''}")
    for warning in configs.warnings(loaded):
        click.echo(f"{file}: note: {warning}", err=True)
