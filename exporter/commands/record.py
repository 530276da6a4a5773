"""``vllm-vitals record``: scrapes into a file, to replay or to attach to a bug report."""

import asyncio
from pathlib import Path

import click

from exporter import check as checking
from exporter.commands.options import DURATION, FILE, configured


@click.command()
@click.argument("url")
@click.option("-o", "--output", type=FILE, required=True, help="Where to write, such as server.jsonl.gz.")
@click.option("--for", "seconds", type=DURATION, default="2m", show_default=True, help="How long to record.")
@click.option("--interval", default="2s", show_default=True, help="How often to scrape.")
@click.option("--force", is_flag=True, help="Write over a file that exists.")
def record(url: str, output: Path, seconds: float, interval: str, force: bool) -> None:
    """Record the scrapes of one vLLM server. Holds metrics only: no prompt, no output, no request."""
    (target,) = configured(None, (url,), {"interval": interval}).targets
    try:
        file = output.open("wb" if force else "xb")
    except FileExistsError:
        raise click.ClickException(f"{output} exists: choose another name, or say --force") from None
    with file:
        good, failed, last = asyncio.run(checking.record(target, file, seconds))
    click.echo(f"{output}: {good} scrapes of {target.name}, {failed} failed{f' ({last})' if last else ''}")
    if not good:
        raise click.ClickException(f"{target.name} gave no metrics: {last}")
