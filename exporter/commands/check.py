"""``vllm-vitals check``: a verdict on live servers or on a recording; the exit code says it too."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from exporter import check as checking
from exporter import log, recording, replay, verdict, views
from exporter.clock import Clock
from exporter.commands.options import DURATION, FILE, configured
from exporter.config import Config
from exporter.core.snapshot import TargetSnapshot
from exporter.core.thresholds import Thresholds


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--for", "seconds", type=DURATION, default="30s", show_default=True, help="How long to look.")
@click.option("--interval", default="2s", show_default=True, help="How often to scrape.")
@click.option("--config", "file", type=FILE, help="Take targets, credentials and thresholds from this file.")
@click.option("--replay", "recorded", type=FILE, help="Judge a recording instead of live servers.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
def check(
    urls: tuple[str, ...], seconds: float, interval: str, file: Path | None, recorded: Path | None, as_json: bool
) -> None:
    """Say what state vLLM servers are in. Exit code: 0 healthy, 1 warning, 2 critical, 3 unknown."""
    log.configure("critical")
    if recorded is not None:
        if urls:
            raise click.UsageError("give either URLs or --replay, not both")
        sys.exit(_recording(recorded, file, as_json))
    config = configured(file, urls, {"interval": interval})
    if not config.targets:
        raise click.UsageError("nothing to check: give a URL such as http://localhost:8000, or --replay FILE")
    sys.exit(_live(config, seconds, as_json))


def _live(config: Config, seconds: float, as_json: bool) -> int:
    errors = Console(stderr=True)
    with Progress(
        TextColumn("looking"), BarColumn(), TextColumn("{task.description}"),
        console=errors, transient=True, disable=not errors.is_terminal,
    ) as progress:  # fmt: skip
        bar = progress.add_task("", total=1.0)

        def tell(done: float, snapshots: Sequence[TargetSnapshot]) -> None:
            first = [s.engines[0].state.value for s in views.worst_first(snapshots)[:1] if s.engines]
            progress.update(bar, completed=done, description="".join(first))

        snapshots = asyncio.run(checking.watch(config.targets, seconds, tell))
    now = Clock().now()
    if as_json:
        answer = {"targets": [views.target(s, now) for s in views.worst_first(snapshots)]}
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2))
    else:
        verdict.print_verdict(_console(), snapshots)
    return verdict.exit_code(snapshots)


def _recording(path: Path, file: Path | None, as_json: bool) -> int:
    limits = configured(file, (), {}).thresholds if file is not None else Thresholds()
    done = replay.judge(recording.target_name(path), recording.read(path), limits)
    if as_json:
        click.echo(orjson.dumps(replay.as_json(path, done)))
    else:
        verdict.print_replay(_console(), done)
    if done.cut_off:
        click.echo(f"vllm-vitals: {done.cut_off}", err=True)
    return verdict.exit_code(done.polls[-1:])


def _console() -> Console:
    """Colour on a terminal; in a pipe plain text, and lines that are never wrapped."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=10_000)
