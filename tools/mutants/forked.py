"""Judging mutants in forked children: pytest imports and collects once, each child runs a few tests.

Input: mutants and the tests' paths. Output: `Outcome` by key. A child ends with 0 where every test passed, so the
mutant survives; anything else, a crash or the end of its CPU time too, kills it.
"""

import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn

import mutations
import pytest
from _pytest.runner import runtestprotocol
from mutations import Mutant

TESTS_S = 15.0  # CPU seconds of tests, as they take unmutated, that one mutant may meet
PATIENCE = 5.0  # so many times what its tests take unmutated, and no less than:
LEAST_S = 20.0
BROKEN = 70  # the exit code of a child in which not a test, but this tool failed
OPTIONS = (
    "-o", "addopts=--import-mode=importlib", "-s", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
    "-p", "no:terminal", "--hypothesis-seed=0",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant, and why it is believed."""

    killed: bool
    why: str


def judge(found: Sequence[Mutant], tests: Sequence[str], jobs: int, until: float) -> dict[str, Outcome]:
    """Judge all mutants, ``jobs`` at a time; begin none after ``until`` (monotonic)."""
    pool, known = Pool(jobs, until), _in_child(lambda: _traced(tests, {str(path) for path in _core(found)}))
    if known.failed:
        raise SystemExit(f"mutants: without any mutant {known.failed}")
    print(f"{len(known.took)} tests, {sum(known.took.values()):.0f} s of CPU", flush=True)
    for mutant in found:
        if not mutant.late and (mine := known.selected(mutant, pool)):
            pool.start(mutant.key, functools.partial(_import_anew, mutant, mine.tests), mine.cpu_s, mine.why)
    pool.wait()
    loop = Loop([mutant for mutant in found if mutant.late], pool, known)
    if loop.found:
        pytest.main([*OPTIONS, *tests], plugins=[loop])
    return pool.outcomes


def _core(found: Sequence[Mutant]) -> set[Path]:
    return {path for mutant in found for path in mutant.path.parent.glob("*.py")}


@dataclass(frozen=True)
class Selection:
    """The tests that a mutant meets, by id, and the CPU time that they may take together."""

    tests: tuple[str, ...]
    cpu_s: float
    why: str


@dataclass(frozen=True)
class Known:
    """One traced run: which tests (by id) reach which lines, and how long each takes."""

    failed: str = ""
    reached: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)
    took: Mapping[str, float] = field(default_factory=dict)

    def selected(self, mutant: Mutant, pool: "Pool") -> Selection | None:
        """The fastest tests that reach a mutant; where none does, it has survived."""
        able = sorted(self._that_reach(mutant), key=self.took.__getitem__)
        chosen, spent = [], 0.0
        for test in able:
            spent += self.took[test]
            if chosen and spent > TESTS_S:
                break
            chosen.append(test)
        if not chosen:
            pool.outcomes[mutant.key] = Outcome(False, "no test reaches it")
            return None
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


def _in_child(work: Callable[[], Known]) -> Known:
    """So that nothing is imported or cached here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as out:
            pickle.dump(work(), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        known = pickle.load(told)  # noqa: S301 - from our own child
    os.waitpid(pid, 0)
    assert isinstance(known, Known)  # noqa: S101
    return known


class Pool:
    """Children at work, and what became of those that are done."""

    def __init__(self, jobs: int, until: float) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._jobs, self._until = jobs, until
        self._running: dict[int, tuple[str, str]] = {}

    def start(self, key: str, work: Callable[[], int], cpu_s: float, why: str = "all tests") -> None:
        """Have ``work`` done in a child once there is room. Its result is the child's exit code."""
        while len(self._running) >= self._jobs:
            self._reap()
        if time.monotonic() > self._until:
            return
        pid = os.fork()
        if pid == 0:
            _child(work, cpu_s)
        self._running[pid] = key, why

    def wait(self) -> None:
        """Until all are done."""
        while self._running:
            self._reap()

    def _reap(self) -> None:
        pid, status = os.wait()
        key, why = self._running.pop(pid)
        if os.waitstatus_to_exitcode(status) == BROKEN:
            raise SystemExit(f"mutants: a fault of this tool at {key}")
        self.outcomes[key] = Outcome(status != 0, why)
        if status == 0:
            print(f"survived {key} [{why}]", flush=True)
        done = len(self.outcomes)
        if done % 100 == 0:
            killed = sum(outcome.killed for outcome in self.outcomes.values())
            print(f"{done} done, {killed} killed", flush=True)


def _child(work: Callable[[], int], cpu_s: float) -> NoReturn:
    code = BROKEN
    try:
        devnull = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(devnull, number)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 2))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        code = work()
    finally:
        os._exit(code)


# mutants of what a module computes at its import


class _Loader(importlib.abc.SourceLoader):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def get_filename(self, _: str) -> str:
        return str(self._mutant.path)

    def get_data(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def get_code(self, _: str) -> CodeType:
        return compile(self._mutant.tree(), str(self._mutant.path), "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        return importlib.util.spec_from_loader(name, _Loader(self._mutant))


def _import_anew(mutant: Mutant, tests: Sequence[str]) -> int:
    sys.meta_path.insert(0, _Finder(mutant))
    return int(pytest.main([*OPTIONS, *tests]) != 0)


# mutants of function bodies


@dataclass
class Loop:
    """A pytest plugin that, instead of running the tests it collected, runs mutants against them."""

    found: Sequence[Mutant]
    pool: Pool
    known: Known
    functions: Mapping[str, list[FunctionType]] = field(default_factory=lambda: defaultdict(list))
    caches: list[Any] = field(default_factory=list)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Pytest's own hook."""
        item_of = {item.nodeid: item for item in session.items}
        gc.collect()
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                self.functions[thing.__code__.co_filename].append(thing)
            elif isinstance(thing, functools._lru_cache_wrapper):
                self.caches.append(thing)
        gc.freeze()  # children share what they do not touch
        for mutant in self.found:
            mine = self.known.selected(mutant, self.pool)
            if mine is not None:
                items = [item_of[test] for test in mine.tests]
                self.pool.start(mutant.key, functools.partial(self._run, mutant, items), mine.cpu_s, mine.why)
        self.pool.wait()
        return True

    def _run(self, mutant: Mutant, items: Sequence[pytest.Item]) -> int:
        exchange(mutant, self.functions[str(mutant.path)])
        for cache in self.caches:
            cache.cache_clear()
        return int(any(map(_failure, items)))


@dataclass
class Tracer:
    """A pytest plugin that runs the tests and notes which lines of ``files`` each reaches."""

    files: set[str]
    known: Known = field(default_factory=Known)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Pytest's own hook."""
        reached: dict[str, dict[int, set[str]]] = {file: defaultdict(set) for file in self.files}
        took = {}
        for item in session.items:
            lines: dict[str, set[int]] = {file: set() for file in self.files}
            begun = time.process_time()
            sys.settrace(functools.partial(_calls, lines))
            try:
                bad = _failure(item)
            finally:
                sys.settrace(None)
            took[item.nodeid] = time.process_time() - begun
            if bad:
                self.known = Known(bad)
                return True
            for file, seen in lines.items():
                for line in seen:
                    reached[file][line].add(item.nodeid)
        whole = {file: {line: frozenset(tests) for line, tests in lines.items()} for file, lines in reached.items()}
        self.known = Known("", whole, took)
        return True


def _traced(tests: Sequence[str], files: set[str]) -> Known:
    tracer = Tracer(files)
    code = pytest.main([*OPTIONS, *tests], plugins=[tracer])
    return tracer.known if tracer.known.took or tracer.known.failed else Known(f"pytest ends with {code}")


def _calls(lines: dict[str, set[int]], frame: FrameType, _: str, __: object) -> Any:
    seen = lines.get(frame.f_code.co_filename)
    if seen is None:
        return None
    seen.add(frame.f_lineno)

    def local(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            seen.add(frame.f_lineno)
        return local

    return local


def _failure(item: pytest.Item) -> str:
    """What a test says as it fails, or nothing."""
    reports = runtestprotocol(item, log=False, nextitem=None)
    return "".join(f"{item.nodeid} fails:\n{report.longreprtext[-2000:]}" for report in reports if report.failed)


def exchange(mutant: Mutant, functions: Sequence[FunctionType]) -> None:
    """Put the mutated code into every function that has the module's own. Raises LookupError where none has."""
    trees = mutations.parsed(mutant.path), mutant.tree()
    old, new = (compile(tree, str(mutant.path), "exec", dont_inherit=True) for tree in trees)
    new_of = {_identity(one): other for one, other in _pairs(old, new) if one != other}
    changed = 0
    for function in functions:
        code = new_of.get(_identity(function.__code__))
        if code is not None:
            function.__code__ = code
            changed += 1
    if not changed:
        raise LookupError(f"no function holds {mutant.key}")


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    yield old, new
    inner = ([const for const in code.co_consts if isinstance(const, CodeType)] for code in (old, new))
    for pair in zip(*inner, strict=True):
        yield from _pairs(*pair)


def _identity(code: CodeType) -> tuple[object, ...]:
    return code.co_qualname, code.co_firstlineno, tuple(code.co_positions())
