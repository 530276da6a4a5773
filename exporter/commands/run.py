"""``vllm-vitals run``: the daemon."""

import asyncio
from pathlib import Path

import click

from exporter import log
from exporter.commands.options import FILE, configured
from exporter.daemon import Daemon


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--config", "file", type=FILE, help="YAML config file; URLs are added to its targets.")
@click.option("--listen", help='Where to serve, such as "127.0.0.1:9840".')
@click.option("--interval", help='How often to scrape, such as "5s".')
@click.option("--histograms", type=click.Choice(["all", "latency", "none"]), help="Which histograms to pass through.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def run(
    urls: tuple[str, ...],
    file: Path | None,
    listen: str | None,
    interval: str | None,
    histograms: str | None,
    log_level: str,
) -> None:
    """Watch vLLM servers and serve what is known: metrics, a status page, JSON.

    Zero config: vllm-vitals run http://localhost:8000
    """
    if not urls and file is None:
        raise click.UsageError("nothing to watch: give a URL such as http://localhost:8000, or --config FILE")
    log.configure(log_level)
    overrides = {"listen": listen, "interval": interval, "histograms": histograms}
    asyncio.run(Daemon(lambda: configured(file, urls, overrides)).run())
