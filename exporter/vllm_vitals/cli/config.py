"""``vllm-vitals config check``: is this file usable, and if not, where exactly."""

from pathlib import Path

import click

from vllm_vitals.cli.options import FILE
from vllm_vitals.config import loader as configs
from vllm_vitals.config.errors import ConfigError


@click.group()
def config() -> None:
    """Validate config files."""


@config.command()
@click.argument("file", type=FILE)
def check(file: Path) -> None:
    """Validate a config file, all its sections; print each error on one line, with the key's path."""
    loaded = configs.load(file)
    if lacking := configs.missing_packages(loaded):
        raise ConfigError("\n".join(f"{file}: {what}" for what in lacking))
    click.echo(f"{file}: ok, {len(loaded.targets)} target{'s' if len(loaded.targets) != 1 else ''}")
    for warning in configs.warnings(loaded):
        click.echo(f"{file}: note: {warning}", err=True)
