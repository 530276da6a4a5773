"""``vllm-vitals config check``: is this file usable, and if not, where exactly. ``config init`` writes a first one."""

import asyncio
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from vllm_vitals.cli.options import FILE, Access, configured, ways_in
from vllm_vitals.config import loader as configs
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.core.snapshot import STARTING_REASONS

# A server that answers so may be vLLM: it stays in the config. Anything else is a wrong address.
_MAY_BE_VLLM = STARTING_REASONS | {"unauthorized", "tls", "http_error", "too_large", "too_many_series", "impaired"}


@click.group()
def config() -> None:
    """Write a first config file, and validate config files."""


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


@config.command()
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option(
    "--log", "paths", multiple=True, metavar="PATH", help="Log of a server, in the order of the URLs; may hold *."
)
@click.option("-o", "--out", type=FILE, default=Path("-"), help="File to write, a new one; - is standard output.")
@ways_in
def init(urls: tuple[str, ...], paths: tuple[str, ...], out: Path, access: Access) -> None:
    """Ask servers once, and write a commented config that watches them.

    Exit code 0 where every server was read, 1 where the config holds one that was not yet, 2 where none is vLLM.
    """
    from vllm_vitals.cli import first_config, probe  # check needs no event loop and no log reader

    if len(paths) > len(urls):
        raise click.UsageError(f"{len(paths)} times --log for {len(urls)} URLs: give each server's log once")
    if any("@" in urlsplit(url if "://" in url else f"http://{url}").netloc for url in urls):
        raise click.UsageError("a login in an address would stand in the file: give --user and --password-file")
    if str(out) != "-" and out.exists():
        raise click.ClickException(f"{out}: exists already: remove it, or give another --out")
    access = _absolute(access)
    targets = configured(None, urls, {}, access).targets
    if len(targets) < len(urls):
        raise click.UsageError("two of the URLs are one server: give each server once")
    seen = asyncio.run(probe.look(targets))
    kept = [one for one in seen if not one.reason or one.reason in _MAY_BE_VLLM]
    notes = [f"{one.target.name}: left out: {one.detail or one.reason}" for one in seen if one not in kept]
    notes += [f"{one.target.name}: not read yet: {one.detail or one.reason}" for one in kept if one.reason]
    logs = [probe.read_log(str(Path(path).absolute())) for path in paths]
    notes += [f"{log.path}: {log.problem}" for log in logs if log.problem]
    for note in notes:
        click.echo(f"vllm-vitals: {note}", err=True)
    if not kept:
        raise click.ClickException("none of the addresses is a vLLM server: nothing is written")
    kept_logs = [log for one, log in zip(seen, logs, strict=False) if one in kept]
    text = first_config.text(kept, kept_logs, access, "vllm-vitals.yml" if str(out) == "-" else str(out))
    if str(out) == "-":
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        click.echo(f"{out}: {len(kept)} target{'s' if len(kept) != 1 else ''}; next: vllm-vitals run --config {out}")
    sys.exit(1 if notes else 0)


def _absolute(access: Access) -> Access:
    """Return the same with whole paths: in a file they would begin at its folder."""
    if isinstance(access, dict):
        return {
            key: str(Path(value).absolute()) if key.endswith("_file") else _absolute(value)
            for key, value in access.items()
        }
    return access
