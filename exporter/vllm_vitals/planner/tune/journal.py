"""What a tuning session has done so far: ``tune.json`` in its folder.

Input: runs and what came of them. Output: a file that the next call goes on from. Invariant: it is replaced whole or
not at all, it holds no address and no secret, and a file that cannot be read is named, never half read.
"""

from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import Field

from vllm_vitals import whole_file
from vllm_vitals.config.values import Strict
from vllm_vitals.planner import versioned
from vllm_vitals.planner.whatif.measured import Foretold

SCHEMA = 1
FILE = "tune.json"
MAX_BYTES, MAX_RUNS = 4 * 1024 * 1024, 300


class JournalError(Exception):
    """The folder cannot be gone on with. One line."""


class Run(Strict):
    """One recording: ``file`` in the folder, under ``settings``; ``between`` is what counts of it (s from its start).

    ``settings`` are those that were given and changed, as text; what the metrics say besides is in the recording.
    """

    file: str
    role: Literal["A", "B"]
    settings: dict[str, str]
    at: float
    between: tuple[float, float] | None = None


class Trial(Strict):
    """One knob: ``first``, ``changed`` and ``again`` are its runs A, B and A, by their numbers from 0 on.

    ``predicted`` is by metric what the twin predicted (after / before) with its bar, ``measured`` the same beside what
    was measured. ``decision`` is empty until all three runs are there; ``vllm`` is the version that they ran.
    """

    knob: str
    before: str
    value: str
    first: int
    changed: int | None = None
    again: int | None = None
    verdict: str = ""
    trust: str = ""
    predicted: dict[str, tuple[float, float]] = Field(default_factory=dict)
    measured: dict[str, Foretold] = Field(default_factory=dict)
    decision: str = ""
    why: str = ""
    vllm: str = ""

    @property
    def is_open(self) -> bool:
        """Whether a run is missing."""
        return not self.decision


class Journal(Strict, populate_by_name=True):
    """The file: ``seconds`` is how long each run is, ``warm_up`` what does not count at the start of each."""

    schema_version: Annotated[int, Field(alias="schema")] = SCHEMA
    seconds: float
    warm_up: float
    repeats: int
    runs: list[Run] = Field(default_factory=list, max_length=MAX_RUNS)
    trials: list[Trial] = Field(default_factory=list, max_length=MAX_RUNS)
    nothing_left: bool = False

    @property
    def trial(self) -> Trial | None:
        """The knob that is being tried."""
        return self.trials[-1] if self.trials and self.trials[-1].is_open else None

    @property
    def base(self) -> int:
        """The latest run under the settings to keep: what the next change is compared with."""
        if not self.trials:
            return len(self.runs) - 1
        last = self.trials[-1]
        found = last.changed if last.decision == "keep" else last.again
        return last.first if found is None else found

    def with_run(self, run: Run) -> "Journal":
        """Return the journal with a run of the open trial, or with a first run."""
        runs, number = [*self.runs, run], len(self.runs)
        trials = list(self.trials)
        if self.trial is not None:
            where = "changed" if run.role == "B" else "again"
            trials[-1] = self.trial.model_copy(update={where: number})
        return self.model_copy(update={"runs": runs, "trials": trials})

    def with_trial(self, trial: Trial) -> "Journal":
        """Return the journal with a trial begun, or in place of the open one."""
        before = self.trials[:-1] if self.trial is not None else self.trials
        return self.model_copy(update={"trials": [*before, trial]})


def read(folder: Path) -> Journal | None:
    """Read the journal of a folder; None where there is none. Raises `JournalError`."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from None
    again = "; use another folder"
    wrote = f"that vllm-vitals tune wrote{again}"
    found = versioned.parse(path, content, Journal, SCHEMA, JournalError, wrote, again)
    _check(path, found)
    return found


def _check(path: Path, found: Journal) -> None:
    numbers = {n for t in found.trials for n in (t.first, t.changed, t.again) if n is not None}
    if any(not 0 <= number < len(found.runs) for number in numbers):
        raise JournalError(f"{path}: it names a run that it does not hold; use another folder")
    for run in found.runs:
        if Path(run.file).name != run.file or not (path.parent / run.file).is_file():
            raise JournalError(f"{path.parent / run.file} is missing: put the recording back, or use another folder")


def write(folder: Path, journal: Journal) -> None:
    """Replace the journal of a folder. Raises `JournalError`."""
    put(folder / FILE, orjson.dumps(journal.model_dump(by_alias=True), option=orjson.OPT_INDENT_2))


def put(path: Path, content: bytes) -> None:
    """Replace a file whole. Raises `JournalError`."""
    try:
        whole_file.replace(path, content)
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror or error}") from None
