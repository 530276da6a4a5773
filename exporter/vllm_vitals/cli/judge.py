"""What `check` does: a verdict, for a person or as JSON.

Input: targets, a Prometheus, or a recording. Output: text on standard output, and the exit code that says the same.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson
from rich.console import Console
from rich.text import Text

from vllm_vitals.cli import gate as gates
from vllm_vitals.cli import observe, terminal, verdict
from vllm_vitals.cli import table as tables
from vllm_vitals.cli.first_look import FirstLook
from vllm_vitals.cli.options import configured
from vllm_vitals.clock import Clock
from vllm_vitals.config.durations import duration_text
from vllm_vitals.core.follow_up import FollowUp
from vllm_vitals.core.snapshot import TargetSnapshot
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.scrape.target import Target
from vllm_vitals.serve import views

if TYPE_CHECKING:
    from vllm_vitals.prometheus.promapi import Access
    from vllm_vitals.recordings.replay import Replay
    from vllm_vitals.recordings.replay_series import SeriesSpool

ASKING, OFTEN_S = 4, 15.0  # connections to a Prometheus, and how often it is asked with --watch


def before(path: Path) -> list[gates.Engine]:
    """Return the engines of an answer that was kept. Raises a usage error in one line."""
    try:
        return gates.parse(orjson.loads(path.read_bytes()))
    except (gates.GateError, ValueError) as error:
        why = error if isinstance(error, gates.GateError) else "not JSON: write it with `vllm-vitals check --json`"
        raise click.ClickException(f"{path}: {why}") from None


@dataclass(frozen=True, slots=True)
class Report:
    """How snapshots are told: as JSON or text, against what was ``before`` where that was given; ``follow`` says
    whether a change worked.
    """

    as_json: bool
    before: Sequence[gates.Engine] | None = None
    follow: FollowUp | None = None

    def tell(
        self, snapshots: Sequence[TargetSnapshot], now: float, problems: Sequence[str] = (), note: str = ""
    ) -> int:
        """Print, and return the exit code. ``problems``: what was not judged; ``note``: how long to look."""
        answer = {**verdict.answer(snapshots, now), "look_for": note or None}
        found = None if self.before is None else gates.compare(self.before, gates.parse(answer))
        code = verdict.exit_code(snapshots) if found is None else gates.EXIT_CODES[gates.result(found)]
        if self.as_json:
            if found is not None:
                answer["gate"] = {"result": gates.result(found), "findings": [asdict(each) for each in found]}
            answer |= verdict.after(self.follow)
            click.echo(orjson.dumps({**answer, "problems": list(problems)}, option=orjson.OPT_INDENT_2))
            return code
        console = terminal.console()
        engines = tables.pairs(snapshots)
        if len(engines) > tables.FEW:
            drawn, counted = tables.table(snapshots)
            console.print(drawn)
            console.print(Text(counted + "\n"))
            troubled = {id(snapshot): snapshot for snapshot, engine in engines if engine.state.severity != "ok"}
            verdict.print_verdict(console, list(troubled.values())[:1])
        else:
            verdict.print_verdict(console, snapshots)
        verdict.print_after(console, self.follow)
        for each in found or ():
            console.print(Text(verdict.clean(f"{each.result:7} {each.model}: {each.text}")))
        for problem in problems:
            click.echo(f"vllm-vitals: {problem}", err=True)
        if note:
            click.echo(f"For a firm verdict check longer: --for {note}")
        return code


def live(targets: Sequence[Target], seconds: float, report: Report, problems: Sequence[str] = ()) -> int:
    """Watch servers for so many seconds and print the verdict; the exit code that says it.

    ``problems``: who is not watched, and why.
    """
    errors, look = Console(stderr=True, highlight=False), FirstLook(seconds)
    with terminal.progress("looking", errors) as progress:

        def tell(done: float, snapshots: Sequence[TargetSnapshot]) -> None:
            first = [s.engines[0].state.value for s in views.worst_first(snapshots)[:1] if s.engines]
            progress(done, "".join(first))
            if report.follow is not None:
                for snapshot in snapshots:
                    report.follow.see(snapshot)
            if (lines := look.see(snapshots, len(targets))) and errors.is_terminal:
                errors.print(Text("So far (provisional):", style="dim"))
                for line in lines:
                    errors.print(Text(f"  {verdict.clean(line)}", style="dim"))

        snapshots = asyncio.run(observe.watch(targets, seconds, tell))
    longer = look.longer(snapshots)
    return report.tell(snapshots, Clock().now(), problems, "" if longer is None else duration_text(longer))


def _drawn(shown: tables.Watch, _: float, snapshots: Sequence[TargetSnapshot]) -> None:
    shown.draw(snapshots, time.time())


def watched(targets: Sequence[Target]) -> int:
    """Look until Ctrl-C; return the exit code of what was seen last."""
    with tables.Watch(terminal.console()) as shown:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(observe.watch(targets, observe.FOR_EVER_S, partial(_drawn, shown)))
        return verdict.exit_code(shown.last)


def kept(how: "Access", look_back: float, limits: Thresholds, report: Report, again: bool) -> int:
    """Judge what a Prometheus keeps of the last minutes; with ``again`` until Ctrl-C."""
    from vllm_vitals.prometheus.now import judged_now
    from vllm_vitals.prometheus.promapi import PromApi
    from vllm_vitals.prometheus.raw import servers

    asks = [PromApi(how) for _ in range(ASKING)]
    errors = Console(stderr=True, highlight=False)

    def look() -> tuple[list[TargetSnapshot], list[str], float]:
        now = time.time()
        found = servers(asks[0], now - look_back, now)
        with errors.status("reading") as status:
            snapshots, problems = judged_now(
                asks,
                found,
                now,
                look_back,
                limits,
                lambda done, of, what: status.update(f"reading {done} of {of}: {what}"),
            )
        return snapshots, problems, now

    if not again:
        snapshots, problems, now = look()
        return report.tell(snapshots, now, problems)
    with tables.Watch(terminal.console()) as shown:
        try:
            while True:
                snapshots, _, now = look()
                shown.draw(snapshots, now)
                time.sleep(max(0.0, now + OFTEN_S - time.time()))
        except KeyboardInterrupt:
            return verdict.exit_code(shown.last)


def recording(path: Path, file: Path | None, as_json: bool, follow: FollowUp | None = None) -> int:
    """Judge a recording, by the thresholds of a config file where one is given, and print the verdict."""
    from vllm_vitals.recordings import recording as recordings
    from vllm_vitals.recordings.replay import Replay
    from vllm_vitals.recordings.replay_series import SeriesSpool

    limits = configured(file, (), {}).thresholds if file is not None else Thresholds()
    with contextlib.ExitStack() as files:
        spool = files.enter_context(SeriesSpool()) if as_json else None
        done = Replay(recordings.target_name(path), spool, None if follow is None else follow.see)
        done.take(recordings.read(path), limits)
        moment = done.worst.poll
        if moment is None:
            raise click.ClickException(f"{path}: no scrape in it: give a file that `vllm-vitals record` wrote")
        if spool is None:
            verdict.print_replay(terminal.console(), done, moment)
            verdict.print_after(terminal.console(), follow)
        else:
            _write_json(path, done, spool, {**verdict.answer([moment], moment.at), **verdict.after(follow)})
    if done.cut_off:
        click.echo(f"vllm-vitals: {done.cut_off}", err=True)
    return verdict.exit_code([moment])


def _write_json(path: Path, done: "Replay", spool: "SeriesSpool", answer: Mapping[str, object]) -> None:
    """Write a recording's JSON: the verdict at its worst moment, then engine by engine. Times are the recording's."""
    from vllm_vitals.recordings.replay_series import MAX_ENTRIES

    if spool.is_full:
        done.cut_off = f"{path}: more than {MAX_ENTRIES:,} entries: the rest of the series is left out"
    write = partial(click.echo, nl=False)
    write(orjson.dumps({"recording": str(path), **answer})[:-1] + b',"engines":[')
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
