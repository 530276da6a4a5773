"""What `check` does: a verdict, for a person or as JSON.

Input: targets, or a recording. Output: text on standard output, and the exit code that says the same.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from vllm_vitals.cli import observe, terminal, verdict
from vllm_vitals.cli.options import configured
from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import TargetSnapshot
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.recordings import recording as recordings
from vllm_vitals.recordings.replay import Replay
from vllm_vitals.recordings.replay_series import MAX_ENTRIES, SeriesSpool
from vllm_vitals.scrape.target import Target
from vllm_vitals.serve import views


def live(targets: Sequence[Target], seconds: float, as_json: bool) -> int:
    """Watch servers for so many seconds and print the verdict; the exit code that says it."""
    errors = Console(stderr=True)
    with Progress(
        TextColumn("looking"), BarColumn(), TextColumn("{task.description}"),
        console=errors, transient=True, disable=not errors.is_terminal,
    ) as progress:  # fmt: skip
        bar = progress.add_task("", total=1.0)

        def tell(done: float, snapshots: Sequence[TargetSnapshot]) -> None:
            first = [s.engines[0].state.value for s in views.worst_first(snapshots)[:1] if s.engines]
            progress.update(bar, completed=done, description="".join(first))

        snapshots = asyncio.run(observe.watch(targets, seconds, tell))
    now = Clock().now()
    if as_json:
        answer = {"targets": [views.target(s, now) for s in views.worst_first(snapshots)]}
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2))
    else:
        verdict.print_verdict(terminal.console(), snapshots)
    return verdict.exit_code(snapshots)


def recording(path: Path, file: Path | None, as_json: bool) -> int:
    """Judge a recording, by the thresholds of a config file where one is given, and print the verdict."""
    limits = configured(file, (), {}).thresholds if file is not None else Thresholds()
    with contextlib.ExitStack() as files:
        spool = files.enter_context(SeriesSpool()) if as_json else None
        done = Replay(recordings.target_name(path), spool)
        done.take(recordings.read(path), limits)
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
