"""Which tests reach a mutant, and how long each takes: one run of all of them, traced, in a child.

Input: the tests' paths. Output: `Known`, which selects the tests that a mutant meets.
"""

import os
import pickle
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest
from _pytest.runner import runtestprotocol
from mutations import Mutant

TESTS_S = 15.0  # CPU seconds of tests, as they take unmutated, that one mutant may meet
PATIENCE = 5.0  # so many times what its tests take unmutated, and no less than:
LEAST_S = 20.0
OPTIONS = (
    "-o", "addopts=--import-mode=importlib", "-s", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
    "-p", "no:terminal", "--hypothesis-seed=0",
)  # fmt: skip


@dataclass(frozen=True)
class Selection:
    """The tests that a mutant meets, by id, and the CPU time that they may take together."""

    tests: tuple[str, ...]
    cpu_s: float
    why: str


@dataclass(frozen=True)
class Known:
    """One traced run: which tests (by id) reach which lines, how long each takes, and what those said that fail."""

    failed: str = ""
    reached: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)
    took: Mapping[str, float] = field(default_factory=dict)

    def selected(self, mutant: Mutant) -> Selection:
        """The fastest tests that reach a mutant."""
        able = sorted(self._that_reach(mutant), key=self.took.__getitem__)
        chosen, spent = [], 0.0
        for test in able:
            spent += self.took[test]
            if chosen and spent > TESTS_S:
                break
            chosen.append(test)
        why = f"{len(chosen)} of {len(able)} tests that reach it"
        return Selection(tuple(chosen), LEAST_S + PATIENCE * spent, why)

    def _that_reach(self, mutant: Mutant) -> set[str]:
        if mutant.late:
            lines = self.reached.get(str(mutant.path), {})
            return {test for line in mutant.lines for test in lines.get(line, ())}
        # what is computed at import is reached by whoever reads its name
        found = set()
        for path, lines in self.reached.items():
            for number, text in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
                if any(name in text for name in mutant.names):
                    found |= lines.get(number, frozenset())
        return found


def traced(tests: Sequence[str], files: Set[str]) -> Known:
    """Run the tests once; in a child, so that nothing is imported or cached here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "wb") as out:
                pickle.dump(_traced(tests, files), out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        known: Known = pickle.load(told)  # noqa: S301 - from our own child
    os.waitpid(pid, 0)
    return known


@dataclass(eq=False)
class Tracer:
    """A pytest plugin that runs the tests and notes which lines of ``files`` each reaches."""

    files: Set[str]
    known: Known = field(default_factory=Known)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Pytest's own hook."""
        if report.failed:
            self.known = Known(f"{report.nodeid} cannot be collected:\n{report.longreprtext[-2000:]}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Pytest's own hook."""
        lines = coverage.Coverage(data_file=None, include=sorted(self.files), config_file=False, messages=False)
        took, failed = {}, ""
        lines.start()
        for item in session.items:
            lines.switch_context(item.nodeid)
            begun = time.process_time()
            bad = failure(item)
            if bad:
                failed += bad
            else:
                took[item.nodeid] = time.process_time() - begun
        lines.stop()
        found = lines.get_data()
        reached = {file: _by_line(found.contexts_by_lineno(file), took.keys()) for file in self.files}
        self.known = Known(failed, reached, took)
        return True


def _by_line(contexts: Mapping[int, Sequence[str]], tests: Set[str]) -> dict[int, frozenset[str]]:
    return {line: frozenset(reach) & tests for line, reach in contexts.items()}


def _traced(tests: Sequence[str], files: Set[str]) -> Known:
    tracer = Tracer(files)
    code = pytest.main([*OPTIONS, *tests], plugins=[tracer])
    return tracer.known if tracer.known.took else Known(tracer.known.failed or f"pytest ends with {int(code)}")


def failure(item: pytest.Item) -> str:
    """What a test says as it fails, or nothing."""
    reports = runtestprotocol(item, log=False, nextitem=None)
    return "".join(f"{item.nodeid} fails:\n{report.longreprtext[-2000:]}" for report in reports if report.failed)
