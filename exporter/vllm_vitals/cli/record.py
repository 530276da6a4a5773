"""``vllm-vitals record``: scrapes into a file or a pipe, to replay or to attach to a bug report."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import click
from rich.console import Console

from vllm_vitals.cli import observe as checking
from vllm_vitals.cli import terminal
from vllm_vitals.cli.options import DURATION, FILE, Access, access_options, configured, say_notes
from vllm_vitals.recordings.recording import STANDARD
from vllm_vitals.scrape.target import Target, parse_address


@click.command()
@click.argument("url", required=False)
@click.option("-o", "--output", type=FILE, required=True, help="Output file, such as server.jsonl.gz; - is stdout.")
@click.option("--for", "seconds", type=DURATION, default="2m", show_default=True, help="Record for this long.")
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="Scrape interval.")
@access_options
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def record(
    url: str | None, output: Path, seconds: float, interval: float, file: Path | None, access: Access, force: bool
) -> None:
    """Record the scrapes of one vLLM server, for a time or until Ctrl-C.

    The server is a URL, or the name of a target of --config. A recording holds metrics only: no prompts, outputs or
    requests.
    """
    target = replace(server(url, file, access), interval=interval)
    tally, interrupted = take(target, output, seconds, force)
    scrapes = f"{tally.good} scrape{'s' if tally.good != 1 else ''} of {target.name}"
    failed = f", {tally.failed} failed" + (f" ({tally.last})" if tally.last else "")
    where = "standard output" if output == STANDARD else output
    click.echo(f"{where}: {scrapes}{failed}{', interrupted' if interrupted else ''}", err=output == STANDARD)


def take(target: Target, output: Path, seconds: float, force: bool) -> tuple[checking.Tally, bool]:
    """Write scrapes of so many seconds; what was scraped, and whether Ctrl-C ended it.

    Raises `click.ClickException` where the file cannot be written, or nothing answered; then none is kept.
    """
    tally, interrupted = checking.Tally(), False
    try:
        with _opened(output, force) as stream:
            try:
                asyncio.run(_watched(target, stream, seconds, tally))
            except KeyboardInterrupt:
                interrupted = True
    except BrokenPipeError:
        raise
    except FileExistsError:
        raise click.ClickException(f"{output} exists: choose another name, or give --force") from None
    except OSError as error:
        raise click.ClickException(f"{output}: {error.strerror or error}") from None
    if not tally.good:
        _remove(output)
        why = tally.last or "interrupted before the first answer"
        raise click.ClickException(f"{target.name} gave no metrics, so no recording is kept: {why}")
    return tally, interrupted


def server(url: str | None, file: Path | None, access: Access) -> Target:
    """Return the one server to record."""
    named = {} if file is None else {target.name: target for target in configured(file, (), {}).targets}
    if url in named and not access:
        return named[url]
    if url is None and len(named) == 1 and not access:
        return next(iter(named.values()))
    if url is None:
        which = f"one of {', '.join(sorted(named)[:10])}" if named else "such as http://localhost:8000"
        raise click.UsageError(f"which server? give its URL or name: {which}")
    config = configured(file, (url,), {}, access)
    say_notes(config)
    added = [target for target in config.targets if target.name not in named]
    return added[0] if added else _same(url, config.targets)


def _same(url: str, targets: tuple[Target, ...]) -> Target:
    """Return the target of the config whose address a URL is."""
    address = parse_address(url)
    return next(target for target in targets if target.url == address.url)


@contextlib.contextmanager
def _opened(output: Path, force: bool) -> Iterator[BinaryIO]:
    if output == STANDARD:
        if sys.stdout.isatty():
            raise click.UsageError("-o -: a recording is no text for a terminal: give a file name, or pipe it on")
        yield sys.stdout.buffer
        return
    with output.open("wb" if force else "xb") as stream:
        yield stream


async def _watched(target: Target, stream: BinaryIO, seconds: float, tally: checking.Tally) -> None:
    """Record, with a bar where a person looks on."""
    with terminal.progress("recording", Console(stderr=True)) as progress:

        def tell(done: float) -> None:
            failed = f", {tally.failed} failed: {tally.last}" if tally.failed else ""
            progress(done, f"{tally.good} scrapes{failed} (Ctrl-C keeps them)")

        await checking.record(target, stream, seconds, tally, tell)


def _remove(output: Path) -> None:
    """Take away what we wrote; a device is left alone."""
    if output != STANDARD and output.is_file():
        output.unlink()
