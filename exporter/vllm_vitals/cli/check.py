"""``vllm-vitals check``: a verdict on live servers or on a recording; the exit code says it too."""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
import orjson
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from vllm_vitals import log
from vllm_vitals.cli import observe as checking
from vllm_vitals.cli import terminal, verdict
from vllm_vitals.cli.options import DURATION, FILE, Access, access_options, configured, say_notes
from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import TargetSnapshot
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.recordings import recording
from vllm_vitals.recordings.replay import Replay
from vllm_vitals.recordings.replay_series import MAX_ENTRIES, SeriesSpool
from vllm_vitals.scrape.target import Target
from vllm_vitals.serve import views


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option(
    "--for", "seconds", type=DURATION, default="30s", show_default=True, help="Observe for this long; at least 5s."
)
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="Scrape interval.")
@access_options
@click.option("--replay", "recorded", type=FILE, help="Recording to judge instead of live servers; - is stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def check(
    context: click.Context,
    urls: tuple[str, ...],
    seconds: float,
    interval: float,
    file: Path | None,
    access: Access,
    recorded: Path | None,
    as_json: bool,
) -> None:
    """Judge the state of vLLM servers.

    Exit code: 0 healthy, 1 warning, 2 critical, 3 unknown; it reflects the worst engine. With --replay, the verdict is
    for the worst point in the recording.
    """
    log.configure("critical")
    if recorded is not None:
        given = context.get_parameter_source
        if urls:
            raise click.UsageError("give either URLs or --replay, not both")
        if ParameterSource.COMMANDLINE in (given("seconds"), given("interval")):
            raise click.UsageError("--for and --interval are for live servers: a recording has its own times")
        if access:
            raise click.UsageError("options such as --bearer-token-file are for live servers, not for --replay")
        sys.exit(_recording(recorded, file, as_json))
    if seconds < checking.SHORTEST_S:
        raise click.UsageError(f"--for: a verdict needs {checking.SHORTEST_S:g}s at least")
    config = configured(file, urls, {}, access)
    if not config.targets:
        raise click.UsageError("nothing to check: give a URL such as http://localhost:8000, or --replay FILE")
    say_notes(config)
    sys.exit(_live([checking.at_pace(target, interval, seconds) for target in config.targets], seconds, as_json))


def _live(targets: Sequence[Target], seconds: float, as_json: bool) -> int:
    errors = Console(stderr=True)
    with Progress(
        TextColumn("looking"), BarColumn(), TextColumn("{task.description}"),
        console=errors, transient=True, disable=not errors.is_terminal,
    ) as progress:  # fmt: skip
        bar = progress.add_task("", total=1.0)

        def tell(done: float, snapshots: Sequence[TargetSnapshot]) -> None:
            first = [s.engines[0].state.value for s in views.worst_first(snapshots)[:1] if s.engines]
            progress.update(bar, completed=done, description="".join(first))

        snapshots = asyncio.run(checking.watch(targets, seconds, tell))
    now = Clock().now()
    if as_json:
        answer = {"targets": [views.target(s, now) for s in views.worst_first(snapshots)]}
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2))
    else:
        verdict.print_verdict(terminal.console(), snapshots)
    return verdict.exit_code(snapshots)


def _recording(path: Path, file: Path | None, as_json: bool) -> int:
    limits = configured(file, (), {}).thresholds if file is not None else Thresholds()
    with contextlib.ExitStack() as files:
        spool = files.enter_context(SeriesSpool()) if as_json else None
        done = Replay(recording.target_name(path), spool)
        done.take(recording.read(path), limits)
        moment = done.worst.poll
        if moment is None:
            raise click.ClickException(f"{path}: no scrape in it: give a file that `vllm-vitals record` wrote")
        if spool is None:
            verdict.print_replay(terminal.console(), done, moment)
        else:
            _write_json(path, done, spool)
    if done.cut_off:
        click.echo(f"vllm-vitals: {done.cut_off}", err=True)
    return verdict.exit_code([moment])


def _write_json(path: Path, done: Replay, spool: SeriesSpool) -> None:
    """Write a recording's JSON engine by engine. Times are the recording's (epoch s)."""
    if spool.is_full:
        done.cut_off = f"{path}: more than {MAX_ENTRIES:,} entries: the rest of the series is left out"
    write = partial(click.echo, nl=False)
    write(b'{"recording":%b,"engines":[' % orjson.dumps(str(path)))
    for number, (key, timeline) in enumerate(done.engines):
        head = {
            "target": key.target,
            "model_name": key.model_name,
            "engine": key.engine,
            "timeline": [{"from": run.start, "to": run.end, "state": run.state.value} for run in timeline.runs],
        }
        write(b"," * bool(number) + orjson.dumps(head)[:-1] + b',"series":[')
        for piece in spool.read(key):
            write(piece)
        write(b"]}")
    write(b"]" + (b',"cut_off":%b' % orjson.dumps(done.cut_off) if done.cut_off else b"") + b"}\n")
