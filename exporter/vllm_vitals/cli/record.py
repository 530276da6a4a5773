"""``vllm-vitals record``: scrapes into a file, to replay or to attach to a bug report."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import click

from vllm_vitals.cli import observe as checking
from vllm_vitals.cli.options import DURATION, FILE, configured


@click.command()
@click.argument("url")
@click.option("-o", "--output", type=FILE, required=True, help="Output file, such as server.jsonl.gz.")
@click.option("--for", "seconds", type=DURATION, default="2m", show_default=True, help="Record for this long.")
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="Scrape interval.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def record(url: str, output: Path, seconds: float, interval: float, force: bool) -> None:
    """Record the scrapes of one vLLM server, for a time or until Ctrl-C.

    A recording holds metrics only: no prompts, outputs or requests.
    """
    if str(output) == "-":
        raise click.UsageError("-o: give a file name such as server.jsonl.gz, not -")
    target = replace(configured(None, (url,), {}).targets[0], interval=interval)
    tally, interrupted = checking.Tally(), False
    try:
        with output.open("wb" if force else "xb") as file:
            try:
                asyncio.run(checking.record(target, file, seconds, tally))
            except KeyboardInterrupt:
                interrupted = True
    except FileExistsError:
        raise click.ClickException(f"{output} exists: choose another name, or give --force") from None
    except OSError as error:
        raise click.ClickException(f"{output}: {error.strerror or error}") from None
    if not tally.good:
        _remove(output)
        why = tally.last or "interrupted before the first answer"
        raise click.ClickException(f"{target.name} gave no metrics, so no recording is kept: {why}")
    scrapes = f"{tally.good} scrape{'s' if tally.good != 1 else ''} of {target.name}"
    failed = f", {tally.failed} failed" + (f" ({tally.last})" if tally.last else "")
    click.echo(f"{output}: {scrapes}{failed}{', interrupted' if interrupted else ''}")
    if interrupted:
        sys.exit(130)


def _remove(output: Path) -> None:
    """Take away what we wrote; a device is left alone."""
    if output.is_file():
        output.unlink()
