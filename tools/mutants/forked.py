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
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

import mutations
import pytest
from mutations import Mutant
from reach import OPTIONS, Known, Selection, failure, traced

BROKEN = 70  # the exit code of a child in which not a test, but this tool failed


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant, and why it is believed."""

    killed: bool
    why: str


def judge(found: Sequence[Mutant], tests: Sequence[str], jobs: int, until: float) -> tuple[dict[str, Outcome], bool]:
    """Judge mutants, ``jobs`` at a time, none after ``until`` (monotonic); and whether the tests themselves pass."""
    files = {str(path) for mutant in found for path in mutant.path.parent.glob("*.py")}
    pool, known = Pool(jobs, until), traced(tests, files)
    if not known.took:
        raise SystemExit(f"mutants: no test passes: {known.failed}")
    if known.failed:
        print(f"without any mutant, and so left out: {known.failed}", flush=True)
    print(f"{len(known.took)} tests, {sum(known.took.values()):.0f} s of CPU", flush=True)
    for mutant in found:
        if not mutant.late:
            mine = known.selected(mutant)
            pool.start(mutant, mine, functools.partial(_import_anew, mutant, mine))
    pool.wait()
    loop = Loop([mutant for mutant in found if mutant.late], pool, known)
    if loop.found:
        pytest.main([*OPTIONS, *tests], plugins=[loop])
    return pool.outcomes, not known.failed


class Pool:
    """Children at work, and what became of those that are done."""

    def __init__(self, jobs: int, until: float) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._jobs, self._until = jobs, until
        self._running: dict[int, tuple[str, str]] = {}

    def start(self, mutant: Mutant, mine: Selection, work: Callable[[], int]) -> None:
        """Have ``work`` done in a child once there is room; its result is the child's exit code."""
        if not mine.tests:
            self._end(mutant.key, Outcome(False, "no test reaches it"))
            return
        while len(self._running) >= self._jobs:
            self._reap()
        if time.monotonic() > self._until:
            return
        pid = os.fork()
        if pid == 0:
            _child(work, mine.cpu_s)
        self._running[pid] = mutant.key, mine.why

    def wait(self) -> None:
        """Until all are done."""
        while self._running:
            self._reap()

    def _reap(self) -> None:
        pid, status = os.wait()
        key, why = self._running.pop(pid)
        if os.waitstatus_to_exitcode(status) == BROKEN:
            raise SystemExit(f"mutants: a fault of this tool at {key}")
        self._end(key, Outcome(status != 0, why))

    def _end(self, key: str, outcome: Outcome) -> None:
        self.outcomes[key] = outcome
        if not outcome.killed:
            print(f"survived {key} [{outcome.why}]", flush=True)
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


def _import_anew(mutant: Mutant, mine: Selection) -> int:
    sys.meta_path.insert(0, _Finder(mutant))
    return int(pytest.main([*OPTIONS, *mine.tests]) != 0)


# mutants of function bodies


@dataclass(eq=False)
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
            mine = self.known.selected(mutant)
            items = [item_of[test] for test in mine.tests]
            _compiled(mutant.path)  # here, so that no child does it again
            self.pool.start(mutant, mine, functools.partial(self._run, mutant, items))
        self.pool.wait()
        return True

    def _run(self, mutant: Mutant, items: Sequence[pytest.Item]) -> int:
        exchange(mutant, self.functions[str(mutant.path)])
        for cache in self.caches:
            cache.cache_clear()
        return int(any(map(failure, items)))


@functools.cache
def _compiled(path: Path) -> CodeType:
    return compile(mutations.parsed(path), str(path), "exec", dont_inherit=True)


def exchange(mutant: Mutant, functions: Sequence[FunctionType]) -> None:
    """Put the mutated code into every function that has the module's own. Raises LookupError where none has."""
    new = compile(mutant.tree(), str(mutant.path), "exec", dont_inherit=True)
    new_of = {_identity(one): other for one, other in _pairs(_compiled(mutant.path), new) if one != other}
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
