"""The work between the runs of a tuning session: choose by the twin, decide by compare, learn from what was measured.

Input: a folder of recordings, a `Journal`. Output: the journal with a trial begun or decided. Invariant: a change is
tried on the twin before a person is asked to make it, and no (knob, value) is tried a second time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.planner.experiment import aba, baseline
from vllm_vitals.planner.experiment.aba import Judgement
from vllm_vitals.planner.experiment.baseline import Baseline
from vllm_vitals.planner.telemetry import recorded
from vllm_vitals.planner.telemetry.telemetry import Telemetry
from vllm_vitals.planner.tune.journal import Journal, JournalError, Run, Trial
from vllm_vitals.planner.whatif import fitting, variants, verified
from vllm_vitals.planner.whatif.calibrate import Case, SimulationBudget
from vllm_vitals.planner.whatif.error_floor import WHATIF_ERROR_FLOOR
from vllm_vitals.planner.whatif.measured import Foretold, Pair
from vllm_vitals.planner.whatif.set_overrides import CHANGED
from vllm_vitals.planner.whatif.variants import Variant
from vllm_vitals.planner.whatif.whatif import Row, WhatIf, whatif
from vllm_vitals.planner.whatif.workload_slice import SituationError, situation
from vllm_vitals.recordings import recording
from vllm_vitals.simulator.settings import SettingsError

Progress = Callable[[int, int, str], None]
BLOCKS = "num_gpu_blocks_override"  # another name for a KV capacity that the twin knows in tokens
GOOD_BAR = 2.0  # a bar beyond which a prediction says nothing to hold a measurement against


@dataclass(frozen=True, slots=True)
class Chosen:
    """A trial begun, and what the twin said; ``found`` None where it could not be asked."""

    trial: Trial | None
    found: WhatIf | None
    note: str


def snapshot(folder: Path, run: Run, repeats: int) -> Baseline:
    """Return a run as compare sees it. Raises `baseline.BaselineError`."""
    seen = recorded.telemetry(folder / run.file, run.settings, run.between)
    models = seen.models()
    if len(models) != 1:
        raise JournalError(f"{folder / run.file}: {len(models)} models ({', '.join(models)}); tune takes one")
    return baseline.baseline(seen, models[0], run.file, run.file, run.at, repeats, run.settings)


def reported(path: Path) -> dict[str, str]:
    """Return the settings that a server's metrics say at the start of a recording."""
    judge = TargetEvaluator(recording.target_name(path))
    for scrape in recording.read(path):
        if scrape.body is not None:
            return dict(judge.observe(scrape).settings)
    return {}


def not_in_force(said: dict[str, str], wanted: dict[str, str]) -> str:
    """Return which setting the server contradicts, or nothing."""
    for name, value in wanted.items():
        if name in said and not _same(said[name], value):
            return f"the server reports {name}={said[name]}, not {value}"
    return ""


def _same(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one.lower() == other.lower()


def choose(
    folder: Path, journal: Journal, change: tuple[str, str] | None, effort: SimulationBudget | None, progress: Progress
) -> Chosen:
    """Begin the next trial: what a person asked for, or what the twin finds best of what was not tried."""
    run = journal.runs[journal.base]
    try:
        seen, case = _case(folder, run)
    except SituationError as error:
        if change is None:
            return Chosen(None, None, f"the twin cannot be fitted ({error}): choose with --change NAME=VALUE")
        return Chosen(_asked(journal, change, run.settings.get(change[0], "")), None, f"not simulated: {error}")
    told = fitting.settings_of(seen, next(iter(seen.engines)), run.settings)
    if change is not None:
        try:
            variant = _variant(case, change)
        except SettingsError as error:
            return Chosen(None, None, f"{change[0]}={change[1]}: {error}")
        before = told.get(change[0], "")
        if variant is None:
            note = f"{change[0]} is not simulated, so nothing is predicted"
            return Chosen(_asked(journal, change, before), None, note)
        found = whatif(case, (variant,), effort, progress=progress)
        return Chosen(_begun(journal, case, found, found.rows[-1], change, before), found, "")
    found = whatif(case, effort=effort, progress=progress)
    tried = {(trial.knob, trial.value) for trial in journal.trials}
    left = [row for row in found.rows if row.value and (row.knob, row.value) not in tried]
    row = verified.first(left)
    if row is None:
        return Chosen(None, found, "no change that was not tried is better for users, by the simulated server")
    before = told.get(row.knob, "") or _now(found, row.knob)
    return Chosen(_begun(journal, case, found, row, (row.knob, row.value), before), found, "")


def _case(folder: Path, run: Run) -> tuple[Telemetry, Case]:
    path = folder / run.file
    seen = recorded.telemetry(path, run.settings)
    return seen, fitting.case(seen, seen.engines, run.settings, "worst", _epochs(seen, run), path)


def _epochs(seen: Telemetry, run: Run) -> tuple[float, float] | None:
    return None if run.between is None else (seen.grid.start + run.between[0], seen.grid.start + run.between[1])


def _variant(case: Case, change: tuple[str, str]) -> Variant | None:
    """Return the change as the twin knows it; None for a knob that it does not have."""
    base, (name, value) = Variant("", "as it is", case.settings, case.here.load), change
    if name == BLOCKS:
        return variants.asked(base, "kv_cache_capacity_tokens", f"{int(value) * case.settings.block_size}")
    return variants.asked(base, name, value) if name in CHANGED else None


def _now(found: WhatIf, knob: str) -> str:
    value = getattr(found.settings, knob, None)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value).lower()


def _asked(journal: Journal, change: tuple[str, str], before: str) -> Trial:
    return Trial(knob=change[0], before=before, value=change[1], first=journal.base)


def _begun(
    journal: Journal, case: Case, found: WhatIf, row: Row, change: tuple[str, str], before: str
) -> Trial:  # fmt: skip
    seen = case.here.observed
    predicted = {
        name: (each.value / was, each.error)
        for name in WHATIF_ERROR_FLOOR
        if (each := row.metrics[name]).value is not None and (was := seen[name].value)
    }
    return _asked(journal, change, before).model_copy(
        update={"predicted": predicted, "trust": found.trust.partition(":")[0], "verdict": _verdict(row)}
    )


def _verdict(row: Row) -> str:
    return "" if row.verdict is None else f"{row.verdict.word} ({row.verdict})"


def decide(folder: Path, journal: Journal, trial: Trial) -> tuple[Trial, Judgement, Sequence[Baseline]]:
    """Decide on a trial whose three runs are there, and hold what was measured against what was predicted."""
    runs = [journal.runs[n] for n in (trial.first, trial.changed, trial.again) if n is not None]
    taken = [snapshot(folder, run, journal.repeats) for run in runs]
    found = aba.judge(taken[0], taken[1], taken[2])
    done = trial.model_copy(
        update={
            "decision": found.decision, "why": found.why, "measured": _measured(folder, runs, trial),
            "vllm": taken[0].version,
        }
    )  # fmt: skip
    return done, found, taken


def _measured(folder: Path, runs: Sequence[Run], trial: Trial) -> dict[str, Foretold]:
    """Return predictions beside what came; the two runs of A together are what B is held against."""
    if not trial.predicted:
        return {}
    try:
        first, changed, again = (_observed(folder, run) for run in runs)
    except SituationError:
        return {}
    found = {}
    for name, (predicted, error) in trial.predicted.items():
        old = [value for each in (first, again) if (value := each.get(name)) is not None]
        new = changed.get(name)
        if len(old) == 2 and sum(old) > 0 and new is not None and 0 < error <= GOOD_BAR:
            found[name] = Foretold(predicted=predicted, error=error, measured=2 * new / sum(old))
    return found


def _observed(folder: Path, run: Run) -> dict[str, float | None]:
    seen = recorded.telemetry(folder / run.file, run.settings)
    _, series = fitting.busiest(seen.engines)
    return {
        name: reading.value
        for name, reading in situation(series, seen.grid, "worst", _epochs(seen, run)).observed.items()
    }


def pairs(journal: Journal) -> list[Pair]:
    """Return what is shared: every change that was predicted and measured."""
    return [
        Pair(
            vllm=trial.vllm[:100], knob=trial.knob, before=trial.before[:100],
            after=trial.value[:100], trust=trial.trust, metrics=trial.measured,
        )
        for trial in journal.trials
        if trial.measured
    ]  # fmt: skip


def others(given: Iterable[Pair], own: Iterable[Pair]) -> list[Pair]:
    """Return all pairs, each once: a session's own file may be among those given."""
    return list({pair.model_dump_json(): pair for pair in (*given, *own)}.values())
