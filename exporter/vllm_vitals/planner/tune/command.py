"""``vllm-vitals tune``: leads a person through a tuning experiment, one knob at a time, in runs A, B, A.

Input: a server to record, or recordings. Output: a folder with the recordings, ``tune.json``, ``report.md`` and
``measured.json``; what to do next, on standard output. Exit codes are those of compare, for the last decision; 0 where
a run comes next. Invariant: it changes and restarts nothing; a call goes on where the one before ended.
"""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from vllm_vitals.cli import record, terminal
from vllm_vitals.cli.options import DURATION, FILE, Access, Duration, access_options
from vllm_vitals.cli.verdict import clean
from vllm_vitals.planner import tables
from vllm_vitals.planner.experiment import aba
from vllm_vitals.planner.experiment.commands import EXITS
from vllm_vitals.planner.options import clear, parse_between, progress_line
from vllm_vitals.planner.review import render_text, words
from vllm_vitals.planner.tune import journal as journals
from vllm_vitals.planner.tune import loop, session
from vllm_vitals.planner.tune.journal import Journal, Run, Trial
from vllm_vitals.planner.whatif import measured
from vllm_vitals.planner.whatif.calibrate import SimulationBudget
from vllm_vitals.planner.whatif.measured import Bars, Pair
from vllm_vitals.planner.whatif.set_overrides import CHANGED, KNOBS, parse

FIRST_S, WARM_UP_S, LONGEST_S = 600.0, 60.0, 7200.0
LOOK_S = 2.0  # before a run: does the server answer, and with the setting?
QUICK = SimulationBudget(seeds=1, seconds=120.0)
REPORT, SHARED = "report.md", "measured.json"


@dataclass(slots=True)
class _Session:
    """One call: where the runs come from, and what there is so far."""

    folder: Path
    journal: Journal
    console: Console
    told: dict[str, str]
    changes: list[tuple[str, str]]
    given: list[Path]
    between: tuple[float, float] | None
    shared: list[Pair]
    effort: SimulationBudget | None
    fixed: bool  # a person chose how long each run is

    @property
    def bars(self) -> Bars:
        """What every measured pair says of the error bars."""
        return measured.bars(session.others(self.shared, session.pairs(self.journal)))

    def say(self, text: str, style: str = "") -> None:
        """Print a line."""
        self.console.print(Text(clean(text), style))

    def keep(self, journal: Journal) -> None:
        """Write what there is."""
        self.journal = journal
        journals.write(self.folder, journal)


@click.command()
@click.argument("url", required=False)
@click.option("-o", "--output", "folder", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder of the session; one that exists is continued.")  # fmt: skip
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE",
              help="Setting that the server runs with and no metric exposes (repeatable).")  # fmt: skip
@click.option("--change", "changes", multiple=True, metavar="NAME=VALUE",
              help="Change to try next, in place of what the simulated server finds best (repeatable).")  # fmt: skip
@click.option("--for", "seconds", type=Duration(least=30.0, most=LONGEST_S),
              help="Length of each run; default: 10m, or longer where the noise asks for it.")  # fmt: skip
@click.option("--warm-up", type=Duration(least=0.0, most=LONGEST_S), default="1m", show_default=True,
              help="Start of each run that does not count.")  # fmt: skip
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="Scrape interval.")
@click.option("--recording", "recordings", multiple=True, type=FILE,
              help="Recording to take as the next run, in place of the server (repeatable: A, B, A).")  # fmt: skip
@click.option("--between", default="", metavar="FROM,TO", help="Part of each --recording, from its start: 2m,10m.")
@click.option("--repeats", default=10, show_default=True, type=click.IntRange(2, 100),
              help="Parts of each run; their spread is the noise.")  # fmt: skip
@click.option("--measured", "shared", type=FILE, multiple=True,
              help="File of pairs measured elsewhere, to put the error bars right (repeatable).")  # fmt: skip
@click.option("--quick", is_flag=True, help="Simulate less: one seed, two minutes.")
@access_options
@click.pass_context
def tune(
    context: click.Context, url: str | None, folder: Path, given: tuple[str, ...], changes: tuple[str, ...],
    seconds: float | None, warm_up: float, interval: float, recordings: tuple[Path, ...], between: str, repeats: int,
    shared: tuple[Path, ...], quick: bool, file: Path | None, access: Access,
) -> None:  # fmt: skip
    """Lead through a tuning experiment: one knob at a time, in runs A, B, A; keep it or roll it back.

    Records a run, tries changes on a simulated server, says what to change and how long to run, records again and
    decides. It changes and restarts nothing itself. Call it again to go on; on a terminal it waits for you instead.
    """
    if url is not None and recordings:
        raise click.UsageError("give either a URL or --recording, not both")
    if between and not recordings:
        raise click.UsageError("--between is for --recording")
    found = journals.read(folder)
    if found is None and url is None and not recordings:
        raise click.UsageError("which server? give its URL such as http://localhost:8000, or --recording FILE")
    told, part = parse(given, KNOBS), parse_between(between, recorded=True)
    if found is not None and told:
        raise click.UsageError(f"{folder} has its settings already: leave out --set, or use another folder")
    folder.mkdir(parents=True, exist_ok=True)
    found = found or Journal(seconds=seconds or FIRST_S, warm_up=warm_up, repeats=repeats)
    if seconds is not None:
        found = found.model_copy(update={"seconds": seconds})
    it = _Session(
        folder, found, terminal.console(), told, _wanted(changes), list(recordings), part,
        [pair for path in shared for pair in measured.read(path)], QUICK if quick else None,
        seconds is not None or bool(recordings),
    )  # fmt: skip
    decision = _went(it, url, interval, file, access)
    context.exit(EXITS.get(decision, 0))


def _wanted(changes: Sequence[str]) -> list[tuple[str, str]]:
    known = {**KNOBS, **CHANGED}
    return [item for text in changes for item in parse((text,), known, "--change").items()]


def _went(it: _Session, url: str | None, interval: float, file: Path | None, access: Access) -> str:
    """Go on until a run is missing or nothing is left; the last decision, or nothing where a run comes next."""
    recorded, decision = 0, ""
    while True:
        match loop.step(it.journal, it.told):
            case loop.Take() as take:
                if it.given:
                    _adopted(it, take, it.given.pop(0))
                elif url is None or not _ready(it, take, recorded):
                    return _ended(it, f"Next: {take.text}", decision)
                else:
                    _record(it, take, url, interval, file, access)
                    recorded += 1
            case loop.Choose():
                waits = url is not None or it.given or it.changes or not it.journal.trials
                if not waits:
                    return _ended(it, "Next: call it again with the server's URL to try another knob.", decision)
                if not _chose(it):
                    return _ended(it, "Nothing is left to try.", decision)
            case loop.Decide(trial):
                decision = _decided(it, trial)
            case loop.Done():
                return _ended(it, "Nothing is left to try.", decision)


def _ready(it: _Session, take: loop.Take, recorded: int) -> bool:
    """Return whether the run is to be recorded now: a person says so, or called for this one."""
    if sys.stdin.isatty():
        it.say(take.text, "bold")
        return click.confirm("Ready to record", default=True)
    return recorded == 0


def _record(
    it: _Session, take: loop.Take, url: str, interval: float, file: Path | None, access: Access
) -> None:  # fmt: skip
    target = replace(record.server(url, file, access), interval=interval)
    look = it.folder / ".look.jsonl.gz"
    record.take(replace(target, interval=1.0), look, LOOK_S, force=True)
    _refuse(session.reported(look), take)
    look.unlink(missing_ok=True)
    path = _free(it, take.role)
    _, interrupted = record.take(target, path, it.journal.seconds + it.journal.warm_up, force=True)
    if interrupted:
        path.unlink(missing_ok=True)
        raise click.Abort
    warm = it.journal.warm_up
    part = (warm, warm + it.journal.seconds) if warm else None
    _took(it, Run(file=path.name, role=take.role, settings=take.settings, at=0.0, between=part))


def _refuse(said: dict[str, str], take: loop.Take) -> None:
    wrong = session.not_in_force(said, take.settings)
    if wrong:
        raise click.ClickException(f"{wrong}: change it, restart the server and go on")


def _free(it: _Session, role: str) -> Path:
    return it.folder / f"{len(it.journal.runs) + 1}-{role.lower()}.jsonl.gz"


def _adopted(it: _Session, take: loop.Take, source: Path) -> None:
    """Copy a recording into the folder as the next run."""
    path = _free(it, take.role)
    try:
        shutil.copyfile(source, path)
    except OSError as error:
        raise click.ClickException(f"{source}: {error.strerror or error}") from None
    _refuse(session.reported(path), take)
    _took(it, Run(file=path.name, role=take.role, settings=take.settings, at=0.0, between=it.between))


def _took(it: _Session, run: Run) -> None:
    """Keep a run that can be measured; of a first one, say how long all must be."""
    taken = session.snapshot(it.folder, run, it.journal.repeats)
    run = run.model_copy(update={"at": taken.start})
    tokens = taken.vitals["generated tokens"].value
    it.say(f"Run {len(it.journal.runs) + 1} ({run.role}): {words.number(tokens)} tokens/s over {taken.seconds:.0f} s")
    if it.journal.runs:
        it.keep(it.journal.with_run(run))
        return
    sees, more = aba.enough(taken)
    seen = "the noise is not known" if sees is None else f"runs like this one cannot show less than {words.share(sees)}"
    if more is None or it.fixed:
        more_text = f"; {words.minutes(more)} more of each would show 15 %" if more is not None else ""
        it.say(f"Order: A, B, A. {seen}{more_text}.")
        it.keep(it.journal.with_run(run))
        return
    seconds = min(LONGEST_S, taken.seconds + more)
    it.say(f"Order: A, B, A. {seen}, so each run takes {words.minutes(seconds)}; this one is not used.")
    (it.folder / run.file).unlink(missing_ok=True)
    it.fixed = True
    it.keep(it.journal.model_copy(update={"seconds": seconds}))


def _chose(it: _Session) -> bool:
    change = it.changes.pop(0) if it.changes else None
    progress = progress_line("simulating")
    chosen = session.choose(it.folder, it.journal, change, it.effort, progress)
    clear()
    if chosen.note:
        it.say(chosen.note)
    if chosen.found is not None and change is None:
        tables.experiment(it.console, chosen.found)
    if chosen.trial is None:
        if chosen.found is not None:
            it.keep(it.journal.model_copy(update={"nothing_left": True}))
        return False
    it.keep(it.journal.with_trial(chosen.trial))
    _predicted(it, chosen.trial)
    return True


def _predicted(it: _Session, trial: Trial) -> None:
    if not trial.predicted:
        return
    bars = it.bars
    shown = [
        f"{name} {words.change(trial.predicted[key][0] - 1)} ± {words.share(bars.of(key, trial.predicted[key][1]))}"
        for key, name in (("generated", "tokens/s"), ("ttft_mean", "mean TTFT"), ("tpot_mean", "mean TPOT"))
        if key in trial.predicted
    ]
    it.say(f"{trial.knob} {trial.before} → {trial.value}, simulated: {', '.join(shown)}. Trust: {trial.trust}")


def _decided(it: _Session, trial: Trial) -> str:
    done, found, taken = session.decide(it.folder, it.journal, trial)
    it.keep(it.journal.with_trial(done))
    both = aba.both(taken[0], taken[2])
    number = len(it.journal.trials)
    text = render_text.comparison(both, taken[1], found.found)
    journals.put(it.folder / f"trial-{number}.md", text.encode())
    tables.comparison(it.console, both, taken[1], found.found)
    if found.drift:
        it.say(f"The two runs of A differ: {found.drift}")
    it.say(f"{done.knob} {done.before} → {done.value}: {done.decision}: {done.why}", "bold")
    inside = [each.miss <= 1 for each in done.measured.values()]
    if inside:
        it.say(f"{sum(inside)} of {len(inside)} predictions lay in their bars")
    return done.decision


def _ended(it: _Session, following: str, decision: str) -> str:
    """Write the report, and say what is next."""
    own = session.pairs(it.journal)
    if own:
        journals.put(it.folder / SHARED, measured.to_bytes(own))
    text = render_text.tuning(it.journal, it.bars, it.folder.resolve().name, f"{_in_force(it.journal)}{following}")
    journals.put(it.folder / REPORT, text.encode())
    it.say(f"{_in_force(it.journal)}{following}")
    it.say(f"Report: {it.folder / REPORT}", "dim")
    return decision


def _in_force(journal: Journal) -> str:
    kept = [trial for trial in journal.trials if trial.decision == "keep"]
    if not kept:
        return ""
    changes = ", ".join(f"{trial.knob}={trial.value}" for trial in kept)
    return f"To keep: {changes} (the last run A had the old value: set it again). "
