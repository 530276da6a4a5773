"""``vllm-vitals top``: a live view of engines in the terminal, worst first."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from vllm_vitals import log
from vllm_vitals.cli.observe import at_pace, patient
from vllm_vitals.cli.options import DURATION, FILE, Access, access_options, configured, say_notes
from vllm_vitals.top.sources import Daemon, Recording, Servers, Source

FOR_EVER = 1e9


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--interval", type=DURATION, default="5s", show_default=True, help="Scrape interval.")
@access_options
@click.option("--daemon", default="", metavar="URL", help="Running vllm-vitals daemon to read instead of servers.")
@click.option("--replay", "recorded", type=FILE, help="Recording to play instead of live servers.")
@click.option(
    "--speed", type=click.FloatRange(0.1, 10_000.0), default=1.0, show_default=True, help="Speed of --replay."
)
def top(
    urls: tuple[str, ...],
    interval: float,
    file: Path | None,
    access: Access,
    daemon: str,
    recorded: Path | None,
    speed: float,
) -> None:
    """Watch vLLM servers live in the terminal, worst engine first.

    Keys: arrows and enter for one engine, / to filter, s to sort, p to pause, ? for help, q to quit.
    """
    log.silence_libraries()
    if bool(urls) + bool(daemon) + (recorded is not None) > 1:
        raise click.UsageError("give one of: URLs, --daemon, --replay")
    source = _source(urls, interval, file, access, daemon, recorded, speed)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.ClickException("top needs a terminal; for a verdict in a pipe: vllm-vitals check")
    from vllm_vitals.top.terminal import Screen  # termios: not on every system

    try:
        asyncio.run(Screen(source, Console(highlight=False)).run())
    except KeyboardInterrupt:
        return


def _source(
    urls: tuple[str, ...], interval: float, file: Path | None, access: Access, daemon: str, recorded: Path | None,
    speed: float,
) -> Source:  # fmt: skip
    if recorded is not None:
        if access:
            raise click.UsageError("options such as --bearer-token-file are for live servers, not for --replay")
        return Recording(recorded, speed, configured(file, (), {}).thresholds if file is not None else None)
    if daemon:
        (target,) = configured(None, (daemon,), {}, access).targets
        return Daemon(replace(target, timeout=max(target.timeout, 10.0)), interval)
    config = configured(file, urls, {}, access)
    if not config.targets:
        raise click.UsageError(
            "nothing to watch: give URLs such as http://localhost:8000, --daemon URL or --replay FILE"
        )
    say_notes(config)
    return Servers([patient(at_pace(target, interval, FOR_EVER), interval) for target in config.targets])
