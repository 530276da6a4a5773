"""CPU time to judge one scrape, against reading it: `python -m bench.judge [--beside EXPORTER] [RECORDINGS ...]`.

Every scrape of recorded servers, in order (those in tests/data, or of the folders given). Reading is `normalise`;
judging is all else that a target's evaluator does: checks, windows, signals, state, evidence and advice. With
``--beside`` the package below another source root judges the same scrapes in the same run, in turn with this one.
"""

import argparse
import gc
import gzip
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from typing import IO

from vllm_vitals.core import target_evaluator
from vllm_vitals.core.dialect import Layout, normalise
from vllm_vitals.core.sample import TargetSample
from vllm_vitals.core.snapshot import Scrape

HERE = Path(__file__).resolve()
DATA = HERE.parents[1] / "tests" / "data"
ROUNDS = 7
MOST_OF_READING = 1.5  # times what reading costs


class Recorded:
    """One recording: its good scrapes, and what each says."""

    def __init__(self, folder: Path) -> None:
        """Read and normalise it once."""
        with gzip.open(folder / "metrics.jsonl.gz", "rt") as lines:
            good = [line for line in map(json.loads, lines) if line["status"] == 200]
        self.scrapes = [Scrape(line["t"], line["dur"], line["text"].encode()) for line in good]
        self.samples = list(self.read())

    def read(self) -> Iterator[TargetSample]:
        """Normalise every scrape, as the daemon does."""
        layout = Layout()
        return (normalise(scrape.body or b"", layout) for scrape in self.scrapes)

    def judge(self) -> None:
        """Judge every scrape by what it says; nothing is read."""
        waiting = iter(self.samples)
        target_evaluator.normalise = lambda _body, _layout: next(waiting)
        judge = target_evaluator.TargetEvaluator("recorded")
        for scrape in self.scrapes:
            judge.observe(scrape)

    def cost(self, what: str) -> float:
        """Seconds of user CPU to ``read``, or to ``judge``, one scrape."""
        gc.collect()
        gc.freeze()  # what the bench holds is none of their garbage
        start = getrusage(RUSAGE_SELF).ru_utime
        if what == "read":
            deque(self.read(), 0)
        else:
            self.judge()
        return (getrusage(RUSAGE_SELF).ru_utime - start) / len(self.scrapes)


def work(folders: list[Path], orders: IO[str]) -> None:
    """Measure what each line of ``orders`` asks for: what, of which recording."""
    recorded = [Recorded(folder) for folder in folders]
    for line in orders:
        what, number = line.split()
        print(recorded[int(number)].cost(what), flush=True)


class Worker:
    """A process that measures the package below one source root."""

    def __init__(self, root: Path, folders: list[Path]) -> None:
        """Start it."""
        command = [sys.executable, str(HERE), "--work", *map(str, folders)]
        env = {**os.environ, "PYTHONPATH": str(root)}
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def cost(self, what: str, number: int) -> float:
        """Seconds of user CPU a scrape of one recording."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(what, number, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """Nothing more is asked."""
        self._process.communicate()


def measured(folders: list[Path], beside: Path | None, rounds: int) -> dict[str, list[float]]:
    """By recording: the middle of all rounds to read, to judge, and to judge beside; one after the other each time."""
    here = HERE.parents[1] / "exporter"
    roots = [(here, "read"), (here, "judge"), *([] if beside is None else [(beside, "judge")])]
    asked = [(Worker(root, folders), what) for root, what in roots]  # each alone with its caches
    found: list[list[list[float]]] = [[[] for _ in asked] for _ in folders]
    for turn in range(rounds):
        for number, costs in enumerate(found):
            for (worker, what), times in list(zip(asked, costs, strict=True))[:: 1 if turn % 2 else -1]:
                times.append(worker.cost(what, number))
    for worker, _ in asked:
        worker.end()
    return {folder.name: [median(times) for times in costs] for folder, costs in zip(folders, found, strict=True)}


def main(argv: list[str]) -> int:
    """Print one row a recording; 1 where judging costs more, against reading, than is promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="RECORDING", help="folders that hold metrics.jsonl.gz")
    parser.add_argument("--beside", type=Path, metavar="EXPORTER", help="the source root of another checkout")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the middle one counts (%(default)s)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    folders: list[Path] = asked.folders or [path.parent for path in sorted(DATA.glob("*/*/metrics.jsonl.gz"))]
    if asked.work:
        work(folders, sys.stdin)
        return 0
    return _report(measured(folders, asked.beside, asked.rounds))


def _report(found: dict[str, list[float]]) -> int:
    rows = {**found, "mean of all": [sum(costs) / len(found) for costs in zip(*found.values(), strict=True)]}
    beside = len(rows["mean of all"]) > 2
    print(f"{'recording':24}{'read':>10}{'judge':>10}{'ratio':>8}" + (f"{'beside':>11}{'factor':>8}" if beside else ""))
    for name, (read, judge, *others) in rows.items():
        more = "".join(f"{other * 1e6:>8.0f} us{judge / other:>8.2f}" for other in others)
        print(f"{name:24}{read * 1e6:>7.0f} us{judge * 1e6:>7.0f} us{judge / read:>8.2f}{more}")
    middle = median(judge / read for read, judge, *_ in found.values())
    print(f"judging costs {middle:.2f} times what reading does (the middle recording); at most {MOST_OF_READING:g}")
    return 0 if middle <= MOST_OF_READING else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
